"""Every field of input files replaced by odd values gives one line of error or none, never a traceback.

The test recomputes the checksums, like a careful forger or a faulty program.
"""

import copy
import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.verify.corpus import verify_corpus
from pipeline.verify.inspect_shards import inspect_rows
from schemas.errors import BertmillError, CheckpointError, CorpusError
from schemas.json_text import parse_json
from schemas.manifest import parse_manifest
from tests.pipeline.small_corpus import SmallCorpus, build_small_corpus
from tests.trainer.runs import train_config
from tests.trainer.synthetic import write_corpus
from trainer.checkpoint.listing import format_line, list_checkpoints, verify_run
from trainer.checkpoint.manifest import MANIFEST
from trainer.config import TrainConfig
from trainer.distributed.ranks import single_rank
from trainer.export.load_model import load_model
from trainer.run.export_run import export_run
from trainer.run.loop import train
from trainer.startup.setup import preflight

ODD = [
    None,
    -1,
    10**18,
    10**30,
    1.5,
    float("nan"),
    "x",
    "../../etc/passwd",
    "/etc/passwd",
    [],
    {},
    ["a"],
    {"a": 1},
]
DELETED = object()
# Tests every n-th of the slowest changes, where n has no common factor with the number of values.
_STEP = 5
DEEP = [b"[" * 200_000, b'{"a":' * 200_000, b"1" * 5000, b"\xff\xfe", b"null", b"[]", b'{"files": {}}']


def changed(body: dict[str, Any], skip: Callable[[tuple[Any, ...]], bool]) -> Iterator[dict[str, Any]]:
    """Copies of ``body`` in which one field, at any depth, has an odd value or is missing."""
    for path in places(body, ()):
        if not path or skip(path):
            continue
        for value in (*ODD, DELETED):
            yield with_value(body, path, value)


def with_value(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of ``body``, which shares the parts that do not change."""
    edited = copy.copy(body)
    if len(path) > 1:
        edited[path[0]] = with_value(body[path[0]], path[1:], value)
    elif value is DELETED:
        del edited[path[0]]
    else:
        edited[path[0]] = value
    return edited


def places(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for name in value:
            yield from places(value[name], (*path, name))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*path, 0))


def fine(*actions: Callable[[], object]) -> int:
    """How many of the actions end without an error. Only expected errors are caught."""
    count = 0
    for action in actions:
        try:
            action()
        except BertmillError:
            continue
        count += 1
    return count


def write_sealed(path: Path, manifest: dict[str, Any]) -> None:
    """Writes a manifest with the right hash of its changed content, which ``parse_manifest`` accepts."""
    text = json.dumps({**manifest, "sha256": ""}, ensure_ascii=False, sort_keys=True, indent=1) + "\n"
    line = '\n "sha256": "{}",'
    digest = hashlib.sha256(text.replace(line.format(""), "", 1).encode()).hexdigest()
    path.write_text(text.replace(line.format(""), line.format(digest), 1))


def test_a_corpus_manifest(tmp_path: Path) -> None:
    corpus = build_small_corpus(tmp_path / "corpus")
    manifest = json.loads(corpus.manifest_path.read_bytes())
    # One set represents all, because each change requires reading the rows.
    manifest["sets"] = manifest["sets"][:1]
    manifest["counts"]["by_set"] = {"len64/train/0": manifest["counts"]["by_set"]["len64/train/0"]}
    uninteresting = ("sha256", "config", "libraries", "code_version", "config_hash")
    tried = 0
    for edited in itertools.islice(
        changed(manifest, lambda path: path[0] in uninteresting or path[:2] == ("languages", "fi")),
        0,
        None,
        _STEP,
    ):
        tried += 1
        write_sealed(corpus.manifest_path, edited)
        fine(lambda: list(inspect_rows(str(corpus.folder), rows=1)))
        if _passes_the_schema(corpus):
            fine(lambda: verify_corpus(str(corpus.folder)))
    assert tried > 150


def _passes_the_schema(corpus: SmallCorpus) -> bool:
    try:
        parse_manifest(corpus.manifest_path.read_bytes(), "m")
    except CorpusError:
        return False
    return True


def test_a_corpus_manifest_before_a_training(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "corpus", validation_rows=(20,))
    config = TrainConfig.model_validate(train_config(tmp_path, path))
    manifest = json.loads(path.read_bytes())
    refused = tried = 0
    for edited in changed(manifest, lambda path: path[0] in ("sha256", "config", "libraries")):
        write_sealed(path, edited)
        tried += 1
        refused += 1 - fine(lambda: preflight(config))
    assert tried > 500
    assert refused > tried // 2


def test_what_a_training_keeps_in_its_checkpoints(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "corpus")
    config = TrainConfig.model_validate(train_config(tmp_path, path, checkpoints={"every_steps": 12}))
    train(config, single_rank())
    run = tmp_path / "runs" / "run"
    (folder,) = (run / "checkpoints").iterdir()
    whole = tmp_path / "whole"
    shutil.copytree(folder, whole)
    body = json.loads((folder / MANIFEST).read_bytes())
    unread = ("config", "identity")

    def skip(path: tuple[Any, ...]) -> bool:
        return path[0] == "sha256" or (len(path) > 2 and path[1] in unread)

    tried = 0
    for number, edited in enumerate(itertools.islice(changed(body, skip), 0, None, _STEP)):
        edited.pop("sha256", None)
        digest = hashlib.sha256(json.dumps(edited, sort_keys=True).encode()).hexdigest()
        (folder / MANIFEST).write_text(json.dumps({**edited, "sha256": digest}))
        tried += 1
        fine(
            lambda: [format_line(listed) for listed in list_checkpoints(str(run))],
            lambda: load_model(str(run)),
            lambda: export_run(str(run), str(tmp_path / "out")),
        )
        if number % 3 == 0:
            fine(lambda: verify_run(str(run)), lambda: train(config, single_rank()))
            shutil.rmtree(run)
            shutil.copytree(whole, folder)
    assert tried > 150


@pytest.mark.parametrize("raw", DEEP, ids=lambda raw: raw[:6].decode("latin-1"))
def test_values_that_are_not_json(tmp_path: Path, raw: bytes) -> None:
    folder = tmp_path / "run" / "checkpoints" / "step-00000001.000001-a"
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_bytes(raw)
    (listed,) = list_checkpoints(str(tmp_path / "run"))
    assert listed.problem is not None
    assert "not a checkpoint manifest" in listed.problem
    with pytest.raises(CheckpointError, match="none of its 1 checkpoints"):
        load_model(str(tmp_path / "run"))
    with pytest.raises(CorpusError, match="m: "):
        parse_manifest(raw, "m")


def test_json_that_is_deep_or_no_json() -> None:
    assert parse_json(b'{"a": [1, NaN]}')["a"][0] == 1
    for text in ("[" * 100_000, "{", "1" * 5000, b"\xff"):
        with pytest.raises(ValueError, match=r"."):
            parse_json(text)
    with pytest.raises(ValueError, match="NaN is not a number"):
        parse_json("[NaN]", constants=False)
