"""Tests tables whose bars are magic words."""

import pytest

from pipeline.wikitext.magic_tables import without_magic_tables
from pipeline.wikitext.plain_text import plain_text
from pipeline.wikitext.site import SiteInfo


@pytest.mark.parametrize(
    "table",
    [
        "{{{!}} class=wikitable\n{{!}}-\n{{!}} a {{!!}} b\n{{!}}}",
        "{{(!}} class=wikitable\n{{!}}-\n{{!}} a\n{{!)}}",
        "{| class=wikitable\n{{!}}-\n{{!}} a\n|}",
        "{{#if:x|{{{!}} class=wikitable\n{{!}}-\n{{!}} a {{!!}} b\n{{!}}}\n}}\n",
    ],
)
def test_a_table_by_magic_words_is_dropped(table: str) -> None:
    text = plain_text(f"Top.\n{table}\nText after.", SiteInfo("en"))
    assert text.paragraphs == ["Top.", "Text after."]


def test_outside_tables_the_words_stay() -> None:
    assert without_magic_tables("[[A{{!}}B]]\n{{!}} x") == "[[A{{!}}B]]\n{{!}} x"
