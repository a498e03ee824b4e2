"""Compares the table of characters with the library from which it is made."""

import numpy as np
import pytest
from tokenizers import pre_tokenizers

from pipeline.wordpiece.character_table import (
    ALONE,
    DROPPED,
    LETTER,
    LONGER,
    SPACE,
    Accents,
    character_table,
    normalizer_for,
)

CLASS_BITS = 0x3F
CODES = [*range(0x3100), *range(0xA600, 0xAC10), *range(0xD7A0, 0xD800), *range(0xDFF0, 0x10500), 0x1D15E]
CODES += [*range(0x1E900, 0x1E960), *range(0x20000, 0x20010), *range(0xE0000, 0xE0200), 0x10FFFF, 0x50000]


@pytest.mark.parametrize(
    ("cased", "accents"),
    [(False, "strip_letters"), (True, "keep"), (False, "strip"), (True, "strip_letters")],
)
def test_entries_are_what_the_library_says_of_each_character_alone(cased: bool, accents: Accents) -> None:
    table, normalizer = character_table(cased, accents), normalizer_for(cased, accents)
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    for code in CODES:
        if 0xD800 <= code < 0xE000:
            continue
        given = normalizer.normalize_str(chr(code))
        text = given.strip(" ")
        kind = table.kind[code] & CLASS_BITS
        if len(text) > 1:
            assert kind == LONGER
            assert table.folded is not None
            entry = table.folded[code] - 0x110000
            letters = [chr(of_place[entry]) for of_place in table.longer_letters]
            assert "".join(letters)[: table.longer_counts[entry]] == text
        elif not text:
            assert kind == (SPACE if given else DROPPED)
        else:
            isolated = given != text or len(split(f"a{text}a")) == 3
            assert (kind, chr(code if table.folded is None else table.folded[code])) == (
                ALONE if isolated else LETTER,
                text,
            )


def test_planes_without_characters_stay_unchanged() -> None:
    table = character_table(True, "keep")
    assert not np.any(table.kind[0x40000:0xE0000])
