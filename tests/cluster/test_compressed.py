"""Tests small compressed files: every format, damage, and the limit on their decompressed size."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from cluster.compressed import read_decompressed
from pipeline.dedup.evaluation_files import evaluation_texts
from schemas.errors import InputError
from trainer.finetuning.inputs.text_files import read_text

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.compress,
}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_file_is_read_whole_up_to_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr("cluster.compressed.MOST_BYTES", 2 << 20)
    path = tmp_path / f"Dev.TXT.{suffix}"
    path.write_bytes(COMPRESS[suffix](b"x" * (2 << 20)))
    assert read_decompressed(str(path)) == b"x" * (2 << 20)
    # Two members. Only the second exceeds the limit.
    path.write_bytes(COMPRESS[suffix](b"x" * (2 << 20)) + COMPRESS[suffix](b"x" * (2 << 20)))
    assert path.stat().st_size < 10_000
    for read in (read_decompressed, read_text, lambda uri: list(evaluation_texts(uri))):
        with pytest.raises(InputError, match=rf"^{path}: decompresses to more than 2 MiB"):
            read(str(path))


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("damage", ["cut", "other"])
def test_damage_is_one_line_with_the_name(tmp_path: Path, suffix: str, damage: str) -> None:
    path = tmp_path / f"dev.tsv.{suffix}"
    whole = COMPRESS[suffix](bytes(range(256)) * 40)
    path.write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"<html>not found</html>")
    for read in (read_text, lambda uri: list(evaluation_texts(uri))):
        with pytest.raises(InputError, match=rf"^{path}: cannot be read as \.{suffix}: ") as error:
            read(str(path))
        assert "\n" not in str(error.value)
