"""Compares the finishing of lines with the same rules written as plain regular expressions."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.text.normalize import is_visible
from pipeline.wikitext.markup import GAP, SOFT
from pipeline.wikitext.paragraphs import finish

_DOUBLED = re.compile(
    f"[,;:，、،؛]\\s*+{GAP}[{GAP}\\s]*+(?=[,;.，、。،؛)）])|\\.\\s*+{GAP}[{GAP}\\s]*+(?=\\.)"
)
_GAPS = re.compile(f"(?<!\\s)\\s*+{GAP}[\\s{GAP}]*+")
_LINES = st.text(st.sampled_from(list(f"{GAP * 3}{SOFT}  \u3000\xa0\u200bab.,:;!)】é")), max_size=14)


def _closed(match: re.Match[str]) -> str:
    line, start, end = match.string, match.start(), match.end()
    if start == 0 or end == len(line) or line[end] in ",.;:!)":
        return ""
    return " " if match.group().strip(GAP) else ""


def _expected(line: str) -> str:
    return " ".join(_GAPS.sub(_closed, _DOUBLED.sub("", line)).split())


@settings(max_examples=100, deadline=None)
@given(st.lists(_LINES, max_size=4))
def test_gaps_and_spaces_are_those_of_the_rules(lines: list[str]) -> None:
    clean = finish("\n".join(lines), "en")
    expected = [line for line in map(_expected, lines) if len(line) > 3 or any(map(str.isalnum, line))]
    assert clean.paragraphs == expected
    if clean.plain:
        assert all(is_visible(line) and line == " ".join(line.split()) for line in clean.paragraphs)


def test_an_empty_bracket_goes_with_one_space() -> None:
    text = "one () two\nthree ( )\nfour( ) 五（）\n六 （ ） 七\nprint() here"
    clean = finish(text, "en")
    assert [line.strip() for line in clean.paragraphs] == [
        "one two",
        "three",
        "four( ) 五（）",
        "六 七",
        "print() here",
    ]
