"""The other contents of a checkpoint besides the state, and the error when they cannot be written."""

import os
import tempfile
from pathlib import Path

import pytest
import torch

from schemas.errors import CheckpointError
from tests.trainer.states import TinyTraining, saved_steps
from trainer.checkpoint.files import TrainingState
from trainer.checkpoint.parts import PartWriter
from trainer.checkpoint.reading import latest_verified
from trainer.checkpoint.store import CheckpointStore

TOKENIZER = {"vocab.txt": b"a\nb\n", "tokenizer.json": b"{}", "tokenizer_config.json": b"{}"}


@pytest.mark.parametrize("ranks", [None, 2])
def test_the_tokenizer_comes_back_from_whole_and_sharded_ones(run: str, ranks: int | None) -> None:
    state = TinyTraining().state()
    state = TrainingState(state.model, state.optimizer, state.run, tokenizer=TOKENIZER)
    store = CheckpointStore(run, sharded_by=ranks)
    store.acquire_lease()
    if ranks:
        other = PartWriter(run, store.folder_suffix, 1, 2)
        other.save_async(1, state)
        other.close()
    store.save_async(1, state)
    store.close()
    found = latest_verified(run)
    assert found is not None
    assert set(TOKENIZER) <= found.manifest.files.keys()
    assert found.load().tokenizer == TOKENIZER


@pytest.mark.s3
def test_a_full_folder_for_temporary_files_is_named(
    s3_folder: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(s3_folder)
    store.acquire_lease()

    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(torch, "save", full)
    store.save_async(1, TinyTraining().state())
    with pytest.raises(
        CheckpointError, match=r"cannot write the files .* TMPDIR moves .*No space left"
    ) as caught:
        store.close()
    assert tempfile.gettempdir() in str(caught.value)
    assert saved_steps(s3_folder) == []
