"""Rows of Parquet: damage and decompression bombs are refused by their row group."""

from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import BuildConfig, Source
from pipeline.sources.plan import plan_units
from pipeline.sources.rows import read_rows
from pipeline.sources.units import Unit
from schemas.errors import InputError, StorageError


def _unit(path: Path) -> Unit:
    source = Source(name="rows", kind="jsonl", lang="en", paths=[str(path)])
    (unit,) = plan_units(BuildConfig(output="out", sources=[source]))
    return unit


def _read(path: Path) -> list[str]:
    return [row.values["text"] for row in read_rows(_unit(path))]


def _parquet(path: Path, **columns: pa.Array) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


_LONG = "long " * 100_000


@pytest.mark.parametrize(
    ("texts", "group", "most_rows"),
    [
        # The decompressed size in the metadata of one group.
        ([number * _LONG for number in range(1, 5)], 0, 0),
        # What all groups so far have said.
        ([_LONG, "a", "b", _LONG + "c", _LONG + "d"], 2, 4),
        # One value in the dictionary, which many rows have.
        ([_LONG] * 1000, 0, 3),
    ],
    ids=["one-group", "many-groups", "dictionary"],
)
def test_a_parquet_bomb_is_refused_by_its_row_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[str], group: int, most_rows: int
) -> None:
    monkeypatch.setattr("pipeline.sources.chunks.BOMB_BYTES", 1 << 20)
    path = tmp_path / "en.parquet"
    group_rows = 2 if group else len(texts)
    pq.write_table(pa.table({"text": texts}), path, row_group_size=group_rows, compression="zstd")
    rows = read_rows(_unit(path))
    message = rf"^{path}: row group {group}: \d+ bytes of Parquet data became \d+ bytes, too many for text$"
    with pytest.raises(InputError, match=message):
        list(islice(rows, most_rows + 1))


def test_a_parquet_file_of_nothing_but_nulls_is_bounded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.sources.chunks.BOMB_BYTES", 1 << 10)
    path = _parquet(tmp_path / "en.parquet", text=pa.nulls(50_000, pa.string()))
    with pytest.raises(
        InputError, match=r"row group 0: \d+ bytes of Parquet data became \d+ bytes, too many for text"
    ):
        _read(path)


@pytest.mark.parametrize("texts", [["same"] * 5000, [f"text {number}" for number in range(5000)]])
def test_dense_text_in_parquet_is_accepted_with_any_batch_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[str]
) -> None:
    path = _parquet(tmp_path / "en.parquet", text=pa.array(texts))
    for batch_bytes in (1, 10_000, 1 << 28):
        monkeypatch.setattr("pipeline.sources.rows._BATCH_BYTES", batch_bytes)
        assert _read(path) == texts


def test_parquet_text_that_is_not_utf_8_is_refused_by_its_row_group(tmp_path: Path) -> None:
    """Writers of Parquet do not check it."""
    binary = pa.array([b"One.", b"caf\xe9"], pa.binary())
    texts = pa.StringArray.from_buffers(2, *binary.buffers()[1:])
    path = tmp_path / "en.parquet"
    pq.write_table(pa.table({"text": texts}), path, row_group_size=1)
    with pytest.raises(InputError, match=r"en\.parquet: row group 1 is damaged, .*: 'utf-8' codec [^\n]*$"):
        _read(path)


def test_a_parquet_file_with_a_damaged_footer_is_one_line(tmp_path: Path) -> None:
    path = _parquet(tmp_path / "en.parquet", text=pa.array(["One."]))
    raw = path.read_bytes()
    footer = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    damaged = raw[:footer] + b"\xff" + raw[footer + 1 :]
    path.write_bytes(damaged)
    with pytest.raises(StorageError, match=r"en\.parquet: read as Parquet: [^\n]*thrift[^\n]*$"):
        _read(path)
