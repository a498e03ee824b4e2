"""Tests that any division of a bzip2 file into ranges gives the text of the whole file or an error."""

import bz2
import random
import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.sources.bzip2 import read_blocks
from schemas.errors import InputError
from tests.pipeline.sources.bzip2_blocks import BLOCK, FOOTER, block_of, stream
from tests.pipeline.sources.dumps import LTG

SYMBOLS = bytes([48, 9, 64, 32, 85, 19, 49])
TEXT = bz2.decompress(LTG.read_bytes())[:330_000]


def _own(path: Path, start: int, end: int) -> bytes:
    """The text that a range owns. Like a reader of pages, it reads beyond the range."""
    own = []
    with path.open("rb") as file:
        for place, piece in read_blocks(file, path.name, start, end):
            if place >= end:
                break
            own.append(piece)
    return b"".join(own)


def _in_ranges(path: Path, cuts: Iterable[int]) -> bytes:
    places = sorted({0, path.stat().st_size, *cuts})
    return b"".join(_own(path, start, end) for start, end in pairwise(places))


def _block_places(path: Path) -> list[int]:
    with path.open("rb") as file:
        return sorted({place for place, _ in read_blocks(file, path.name, 0, path.stat().st_size)})


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real text as one stream of four blocks, then a second stream."""
    path = tmp_path_factory.mktemp("real") / "real.bz2"
    path.write_bytes(bz2.compress(TEXT[:300_000], 1) + bz2.compress(TEXT[300_000:], 1))
    return path


def test_cuts_around_and_inside_every_magic_number(real: Path) -> None:
    places = _block_places(real)
    assert len(places) >= 4
    assert _in_ranges(real, [place + step for place in places for step in range(-2, 8)]) == TEXT


@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(0, 100_000), max_size=40))
def test_any_cuts_of_a_real_file(real: Path, cuts: list[int]) -> None:
    assert _in_ranges(real, [cut % real.stat().st_size for cut in cuts]) == TEXT


def test_a_last_block_of_one_byte(tmp_path: Path) -> None:
    path = tmp_path / "one.bz2"
    letters = bytes(random.Random(3).choices(b"abcdefghijklmnopqrstuvwxyz", k=300_000))
    path.write_bytes(bz2.compress(letters, 1))
    text = letters[: len(_own(path, 0, 5)) + 1]
    path.write_bytes(bz2.compress(text, 1))
    _, last = _block_places(path)
    assert _own(path, last, last + 1) == text[-1:]
    assert _in_ranges(path, range(last - 8, path.stat().st_size)) == text


def _parts() -> st.SearchStrategy[bytes]:
    magic = st.sampled_from([number.to_bytes(6, "big") for number in (BLOCK, FOOTER)])
    noise = st.binary(max_size=30).map(lambda data: bytes(2 + byte % 252 for byte in data))
    return st.lists(st.one_of(magic, noise), min_size=1, max_size=5).map(
        lambda parts: SYMBOLS + b"".join(parts)
    )


@settings(max_examples=15, deadline=None)
@given(streams=st.lists(st.lists(_parts(), max_size=3), min_size=1, max_size=3))
def test_magic_numbers_by_chance_at_every_cut(
    tmp_path_factory: pytest.TempPathFactory, streams: list[list[bytes]]
) -> None:
    blocks = [[block_of(symbols) for symbols in one] for one in streams]
    path = tmp_path_factory.mktemp("chance") / "chance.bz2"
    path.write_bytes(b"".join(stream(bits for bits, _ in one) for one in blocks))
    text = b"".join(text for one in blocks for _, text in one)
    assert bz2.decompress(path.read_bytes()) == text
    for step in (1, 7, 50, 1000):
        assert _in_ranges(path, range(0, path.stat().st_size, step)) == text


def _hideable() -> bytes:
    """A block and its successor, as bytes that a block can contain as data."""
    for seed in range(10_000):
        inner = bz2.compress(random.Random(seed).randbytes(3))[4:]
        if max(inner) < 254 and not re.search(rb"[\0\1]{6}", inner):
            return inner
    raise AssertionError("no such block")


def test_a_block_inside_a_block_is_refused_where_a_range_would_take_it(tmp_path: Path) -> None:
    bits, text = block_of(bytes(range(2, 100)) + _hideable() + bytes(range(2, 100)))
    path = tmp_path / "hidden.bz2"
    path.write_bytes(stream([bits]))
    assert _in_ranges(path, []) == text
    refused = []
    for cut in range(1, path.stat().st_size):
        try:
            assert _in_ranges(path, [cut]) == text
        except InputError as error:
            refused.append(str(error))
    assert 100 < len(refused) < path.stat().st_size - 100
    assert all(
        re.search(r"the bz2 block at byte 4 .*hides another block .* byte \d+", line) for line in refused
    )


def test_a_block_full_of_magic_numbers_is_refused_where_it_is_cut(tmp_path: Path) -> None:
    bits, text = block_of(SYMBOLS + BLOCK.to_bytes(6, "big") * 20)
    path = tmp_path / "full.bz2"
    path.write_bytes(stream([bits]))
    assert _in_ranges(path, []) == text
    with pytest.raises(InputError, match="hides another block"):
        _in_ranges(path, [10])


@settings(max_examples=40, deadline=None)
@given(bit=st.integers(0, 1 << 20), step=st.integers(1, 60))
def test_a_flipped_bit_never_changes_the_text(
    tmp_path_factory: pytest.TempPathFactory, bit: int, step: int
) -> None:
    blocks = [block_of(bytes(random.Random(seed).choices(range(2, 254), k=20))) for seed in range(6)]
    data = bytearray(stream(bits for bits, _ in blocks[:4]) + stream(bits for bits, _ in blocks[4:]))
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    path = tmp_path_factory.mktemp("flip") / "flip.bz2"
    path.write_bytes(data)
    try:
        assert _in_ranges(path, range(0, len(data), step * 10)) == b"".join(text for _, text in blocks)
    except InputError as error:
        assert re.search(r"flip\.bz2: .*byte \d+", str(error))  # noqa: PT017 - either outcome is right


def test_a_damaged_block_is_named_by_the_range_that_owns_it(real: Path, tmp_path: Path) -> None:
    places = _block_places(real)
    data = bytearray(real.read_bytes())
    data[places[2] + 500] ^= 1
    path = tmp_path / "bad.bz2"
    path.write_bytes(data)
    message = rf"bad\.bz2: the bz2 block at byte {places[2]} \(bit \d of it\) is corrupt"
    for start, end in [(0, len(data)), (places[2], places[3]), (places[1] + 9, places[2] + 1)]:
        with pytest.raises(InputError, match=message):
            _own(path, start, end)
    assert _own(path, places[3], len(data)) == _own(real, places[3], len(data))


def test_a_wrong_checksum_of_a_stream_is_refused(tmp_path: Path) -> None:
    data = bytearray(bz2.compress(b"text"))
    data[-2] ^= 16
    path = tmp_path / "sum.bz2"
    path.write_bytes(data)
    with pytest.raises(InputError, match="last of a stream whose checksum is wrong"):
        _in_ranges(path, [])


def test_a_truncated_file_is_refused_with_any_ranges(tmp_path: Path) -> None:
    data = stream(block_of(SYMBOLS)[0] for _ in range(2))
    path = tmp_path / "cut.bz2"
    for keep in range(1, len(data)):
        path.write_bytes(data[:keep])
        for step in (keep, 60):
            with pytest.raises(InputError, match=rf"truncated: the file ends at byte {keep}, inside"):
                _in_ranges(path, range(0, keep, step))


def test_a_range_of_a_block_that_grows_a_lot_gives_it_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "bomb.bz2"
    path.write_bytes(bz2.compress(bytes(12 << 20), 1))
    assert path.stat().st_size < 200
    places = _block_places(path)
    with path.open("rb") as file:
        assert max(len(piece) for _, piece in read_blocks(file, "bomb", places[1], 200)) <= 1 << 20
    assert len(_own(path, places[1], places[1] + 1)) > 5_000_000
