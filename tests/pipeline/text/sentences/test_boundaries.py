"""Runs the boundary benchmark on three documents of NTREX-128 in 125 languages and scripts.

``ntrex_excerpt.jsonl.xz`` is an excerpt of NTREX-128 (Federmann, Kocmi and Xin 2022, CC BY-SA 4.0,
https://github.com/MicrosoftTranslator/NTREX), whose English side is that of WMT's newstest2019.
"""

import json
import lzma
import statistics
from pathlib import Path

import pytest

from benchmarks.extraction.sentence_boundaries import Score, may_be_end, scores, texts_of
from pipeline.text.sentences.split import split_sentences

UNMARKED = {"tha", "dzo"}
"""Languages without a mark that only ends sentences."""


@pytest.fixture(scope="module")
def by_language() -> dict[str, Score]:
    with lzma.open(Path(__file__).with_name("ntrex_excerpt.jsonl.xz"), "rt", encoding="utf-8") as lines:
        documents = [(record["lang"], record["sentences"]) for record in map(json.loads, lines)]
    return scores(documents, split_sentences)


def test_nearly_all_sentence_ends_are_found_in_every_language(by_language: dict[str, Score]) -> None:
    marked = {lang: score for lang, score in by_language.items() if lang not in UNMARKED}
    assert len(marked) > 120
    assert {lang: score.missed for lang, score in marked.items() if score.recall < 90} == {}
    assert statistics.median(score.recall for score in marked.values()) >= 98
    ends, found = (sum(getattr(score, key) for score in marked.values()) for key in ("ends", "found"))
    assert found >= 0.985 * ends


def test_sentences_are_hardly_ever_cut_in_two(by_language: dict[str, Score]) -> None:
    marked = {lang: score for lang, score in by_language.items() if lang not in UNMARKED}
    assert {lang: score.false_cuts for lang, score in marked.items() if score.false > 4} == {}
    assert sum(score.false for score in marked.values()) <= 0.01 * sum(s.sentences for s in marked.values())


def test_the_benchmark_sees_a_bad_splitter() -> None:
    documents = [("deu", ["Im 19. Jahrhundert kam er.", "Sie ging am 3. Mai."])]
    whole = scores(documents, lambda text, _lang: [text])["deu"]
    eager = scores(documents, lambda text, _lang: text.replace(". ", ".\n").split("\n"))["deu"]
    assert (whole.found, whole.ends, whole.false) == (0, 1, 0)
    assert (eager.found, eager.false, eager.inside) == (1, 2, 2)


def test_a_run_ends_behind_a_sentence_without_a_mark() -> None:
    assert list(texts_of(["Heading", "One.", "", "Two.", "Three"], "en")) == [
        ["Heading"],
        ["One.", "Two.", "Three"],
    ]
    assert may_be_end("It was dark.", "Then it rained.")
    assert not may_be_end("Mr.", "Roe")
    assert not may_be_end("It was 19.", "Uhr")
