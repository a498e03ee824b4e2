"""Tests reading compressed files in bounded pieces: whole, in ranges, truncated and damaged."""

import bz2
import gzip
import lzma
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from pipeline.sources import chunks
from pipeline.sources.chunks import compression_of, read_chunks, transcode
from schemas.errors import InputError

TEXT = b"".join(b"line %d of some text\n" % number for number in range(100_000))


def _read(path: Path, compression: str, start: int = 0, end: int | None = None) -> tuple[bytes, bytes]:
    size = path.stat().st_size
    pieces = list(read_chunks(str(path), compression, start, size if end is None else end, size))
    owned = b"".join(chunk.data for chunk in pieces if chunk.owned)
    return owned, b"".join(chunk.data for chunk in pieces if not chunk.owned)


@pytest.mark.parametrize(
    ("compression", "pack"),
    [
        ("", bytes),
        ("bz2", bz2.compress),
        ("gz", gzip.compress),
        ("xz", lzma.compress),
        ("zst", zstandard.ZstdCompressor().compress),
    ],
)
def test_every_compression_gives_the_text_back_also_from_two_members(
    tmp_path: Path, compression: str, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / f"file.{compression}"
    path.write_bytes(pack(TEXT[:1000]) + pack(TEXT[1000:]))
    assert _read(path, compression) == (TEXT, b"")


@pytest.mark.parametrize(
    ("compression", "pack"),
    [
        ("bz2", bz2.compress),
        ("gz", gzip.compress),
        ("xz", lzma.compress),
        ("zst", zstandard.ZstdCompressor().compress),
    ],
)
def test_a_cut_file_is_refused_by_name(
    tmp_path: Path, compression: str, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / f"file.{compression}"
    path.write_bytes(pack(TEXT)[:-30])
    with pytest.raises(InputError, match=r"file\.\w+.*truncated.*byte"):
        _read(path, compression)


def test_output_stays_bounded_for_input_that_expands_a_lot(tmp_path: Path) -> None:
    packs: dict[str, Callable[[bytes], bytes]] = {
        "bz2": bz2.compress,
        "gz": gzip.compress,
        "xz": lzma.compress,
        "zst": zstandard.ZstdCompressor().compress,
    }
    for compression, pack in packs.items():
        path = tmp_path / f"zeros.{compression}"
        path.write_bytes(pack(bytes(64 << 20)))
        size = path.stat().st_size
        sizes = [len(chunk.data) for chunk in read_chunks(str(path), compression, 0, size, size)]
        assert sum(sizes) == 64 << 20
        assert max(sizes) <= 1 << 20


def test_bz2_ranges_own_the_blocks_that_begin_in_them(tmp_path: Path) -> None:
    parts = [TEXT[i : i + 50_000] for i in range(0, 500_000, 50_000)]
    packed = [bz2.compress(part) for part in parts]
    path = tmp_path / "many.bz2"
    path.write_bytes(b"".join(packed))
    size = path.stat().st_size
    for step in (1000, 3333, size // 2, size):
        owned = [_read(path, "bz2", start, min(start + step, size))[0] for start in range(0, size, step)]
        assert b"".join(owned) == b"".join(parts)
    # The header of a stream has 4 bytes. Its first block begins after it.
    start = len(packed[0]) + 4
    assert _read(path, "bz2", start, start + 1)[0] == parts[1]
    assert _read(path, "bz2", start + 1, start + 2) == (b"", b"")


@pytest.mark.parametrize(("compression", "pack"), [("", bytes), ("bz2", bz2.compress), ("gz", gzip.compress)])
def test_a_file_of_another_size_is_refused_before_and_while_it_is_read(
    tmp_path: Path, compression: str, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "shrinks"
    data = pack(random.Random(1).randbytes(4 << 20))
    path.write_bytes(data)
    chunks = read_chunks(str(path), compression, 0, len(data), len(data))
    next(chunks)
    with path.open("r+b") as file:
        file.truncate(len(data) - 50_000)
    message = (
        rf"shrinks: changed: {len(data)} bytes when the build was planned, {len(data) - 50_000} bytes now"
    )
    with pytest.raises(InputError, match=message):
        list(chunks)
    with pytest.raises(InputError, match=message):
        next(read_chunks(str(path), compression, 0, len(data), len(data)))


def test_plain_ranges_part_at_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "plain"
    path.write_bytes(TEXT)
    assert _read(path, "", 1000, 2000) == (TEXT[1000:2000], TEXT[2000:])


def test_damage_inside_and_after_bz2_streams_is_named(tmp_path: Path) -> None:
    packed = bz2.compress(TEXT)
    bad = tmp_path / "bad.bz2"
    bad.write_bytes(packed[:2000] + b"\0" * 50 + packed[2050:])
    with pytest.raises(InputError, match=r"the bz2 block at byte 4 \(bit 0 of it\) is corrupt"):
        _read(bad, "bz2")
    bad.write_bytes(packed + b"tail")
    with pytest.raises(InputError, match=f"byte {len(packed)}: trailing data"):
        _read(bad, "bz2")


def test_name_and_first_bytes_must_agree() -> None:
    assert compression_of("a.xml", b"BZh91AY&SY") == "bz2"
    assert compression_of("a.xml", b"<mediawiki") == ""
    assert compression_of("A.BZ2", b"BZh91AY&SY") == "bz2"
    with pytest.raises(InputError, match=r"a\.bz2: not a bzip2 file: .*HTML page"):
        compression_of("a.bz2", b"<!DOCTYPE html><html>")


def test_utf_16_becomes_utf_8_and_damage_in_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "utf16.txt"
    text = "жук 😀\n" * 100_000
    path.write_bytes(text.encode("utf-16"))
    size = path.stat().st_size
    chunks = transcode(read_chunks(str(path), "", 0, size, size), str(path), "utf-16")
    assert b"".join(chunk.data for chunk in chunks).decode() == text
    path.write_bytes("abc".encode("utf-16")[:-1])
    with pytest.raises(InputError, match="not utf-16 text"):
        list(transcode(read_chunks(str(path), "", 0, 7, 7), str(path), "utf-16"))


@pytest.mark.parametrize(
    ("compression", "pack"),
    [
        ("bz2", bz2.compress),
        ("gz", gzip.compress),
        ("xz", lzma.compress),
        ("zst", zstandard.ZstdCompressor().compress),
    ],
)
def test_a_decompression_bomb_is_refused_and_dense_text_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str, pack: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(chunks, "BOMB_BYTES", 1 << 20)
    path = tmp_path / f"bomb.{compression}"
    path.write_bytes(pack(bytes(64 << 20)))
    with pytest.raises(InputError, match=r"became \d+ bytes, too many for text"):
        _read(path, compression)
    path.write_bytes(pack(TEXT))
    assert _read(path, compression) == (TEXT, b"")
