"""Tests the shares of dropped text and of template calls by what decided them."""

from pipeline.report.cleaning import HEADER, cleaning_rows
from schemas.manifest import LanguageCounts
from tests.support.manifests import language_counts


def test_shares_add_up_and_languages_without_pages_have_no_row() -> None:
    text = {"chars": 75, "chars_dropped": 10, "back_matter_chars": 10, "formula_chars": 5}
    text |= {"calls_learned": 3, "calls_unknown": 1}
    languages = {
        "de": LanguageCounts.model_validate(language_counts(text_counts=text)),
        "en": LanguageCounts.model_validate(language_counts()),
    }
    (row,) = cleaning_rows(languages)
    assert row == ["de", "10.00%", "10.00%", "5.00%", 4, "0.0%", "75.0%", "0.0%", "25.0%"]
    assert len(row) == len(HEADER)
