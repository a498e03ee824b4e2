"""Tests learning abbreviations and sentence starters from counts."""

import random

from pipeline.text.sentences.learn_words import learn

_STARTS = ["They", "This", "Some", "Later", "There"]
_NAMES = ["Anna", "Bern", "Cuzco", "Delhi", "Eriks"]


def _paragraphs() -> list[str]:
    draw = random.Random(1)
    paragraphs = []
    for _ in range(400):
        start, name = draw.choice(_STARTS), draw.choice(_NAMES)
        paragraphs.append(
            f"{start} found the village near {name}. {draw.choice(_STARTS)} asked Prst. {name} about rivers. "
            f"{draw.choice(_STARTS)} weighed stones, seeds, etc. {draw.choice(_STARTS)} said nothing again."
        )
    return paragraphs


def test_a_word_that_keeps_its_stop_inside_sentences_is_an_abbreviation() -> None:
    learned = learn(_paragraphs())
    assert "prst" in learned.abbreviations
    assert not {"etc", "again", "it"} & set(learned.abbreviations)
    assert set(map(str.lower, _STARTS)) <= set(learned.starters)
    assert not set(map(str.lower, _NAMES)) & set(learned.starters)


def test_a_word_that_mostly_ends_sentences_is_an_ordinary_word() -> None:
    ends = "It was med that came, med that left, med that stayed. They said med. There was nothing more. "
    learned = learn([ends + "They counted boats. There it ended quickly. They slept."] * 30)
    assert "med" not in learned.abbreviations
    assert "med" in learned.ordinary


def test_the_order_of_the_texts_does_not_matter() -> None:
    paragraphs = _paragraphs()
    assert learn(paragraphs) == learn(paragraphs[::-1])


def test_little_text_teaches_nothing() -> None:
    learned = learn(["No start of a sentence is sure here. It. Was. Med. And. So. It. Went. On."] * 20)
    assert learned.abbreviations == ()
    learned = learn([])
    assert not any((learned.abbreviations, learned.before_numbers, learned.starters, learned.ordinary))
