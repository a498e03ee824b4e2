"""Tests word counts, smoothing and the files of a vocabulary."""

import json
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, BertTokenizerFast

from pipeline.wordpiece.tokenization import WordPieceTokenizer
from pipeline.wordpiece.training import train_wordpiece
from pipeline.wordpiece.vocabulary import (
    accents_of,
    languages_losing_marks,
    load_vocabulary,
    smooth_tables,
    smoothing_factors,
    write_tokenizer,
)
from pipeline.wordpiece.word_counts import (
    WordBucketCounts,
    count_words,
    frequent_by_language,
    frequent_words,
    merge_word_counts,
    most_frequent,
    word_counts,
)
from schemas.errors import CorpusError
from tests.pipeline.bert_reference import bert_words, sample_sentences

LANGS = st.sampled_from(["en", "de", "th", "zh-yue"])
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "river", "##s"]


@pytest.fixture(scope="module")
def counts() -> Any:
    return count_words(sample_sentences()[::20], True)


def test_words_are_counted_as_the_tokenizer_cuts_them() -> None:
    sentences = list(sample_sentences()[::200])
    expected: dict[Any, Any] = {}
    for sentence in sentences:
        for word in bert_words(sentence, True, False):
            expected[word] = expected.get(word, 0) + 1
    assert count_words(sentences, True) == expected


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text("ab ,山", max_size=8), max_size=20), st.integers(0, 20))
def test_counts_of_parts_add_up(sentences: list[str], at: int) -> None:
    whole = word_counts(sentences, cased=True)
    parts = [word_counts(part, cased=True) for part in (sentences[:at], sentences[at:])]
    assert merge_word_counts(parts).equals(whole)
    assert merge_word_counts(reversed(parts)).equals(whole)


def test_sums_are_exact_past_32_bits() -> None:
    """Case pipeline-011."""
    table = pa.table({"word": ["the", "a"], "count": [3_000_000_000, 1]}, merge_word_counts([]).schema)
    merged = merge_word_counts([table] * 5)
    assert merged.to_pydict() == {"word": ["a", "the"], "count": [5, 15_000_000_000]}


def counts_table(words: dict[str, int]) -> pa.Table:
    return pa.table([list(words), pa.array(words.values(), pa.int64())], schema=merge_word_counts([]).schema)


def smoothed_counts(by_lang: Any, exponent: float) -> dict[str, int]:
    totals = {lang: sum(words.values()) for lang, words in by_lang.items()}
    table = smooth_tables({lang: counts_table(words) for lang, words in by_lang.items()}, totals, exponent)
    return dict(zip(*table.to_pydict().values(), strict=True))


def test_smoothing_is_that_of_mbert() -> None:
    """Case pipeline-015."""
    shares = {"en": {"a": 90_000_000}, "de": {"b": 9_000_000}, "sv": {"c": 1_000_000}}
    smoothed = smoothed_counts(shares, 0.7)
    total = sum(smoothed.values())
    assert {word: round(count / total, 4) for word, count in smoothed.items()} == {
        "a": 0.8049, "b": 0.1606, "c": 0.0345}  # fmt: skip


@given(
    st.dictionaries(
        st.sampled_from(["en", "de", "sv", "is"]),
        st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(1, 1 << 40), min_size=1),
        min_size=1,
    ),
    st.sampled_from([1.0, 0.7, 0.3]),
)
def test_smoothing_loses_no_word_and_hangs_on_no_order(by_lang: Any, exponent: float) -> None:
    smoothed = smoothed_counts(by_lang, exponent)
    turned = {lang: dict(reversed(words.items())) for lang, words in reversed(by_lang.items())}
    assert list(smoothed.items()) == list(smoothed_counts(turned, exponent).items())
    for word, count in smoothed.items():
        assert count >= sum(words.get(word, 0) for words in by_lang.values())
    if exponent == 1.0:
        assert sum(smoothed.values()) == sum(sum(words.values()) for words in by_lang.values())


@given(
    st.dictionaries(st.text("abcกข", min_size=1, max_size=3), st.integers(1, 9)),
    st.integers(0, 40),
    st.randoms(),
)
def test_the_most_frequent_words_hang_on_no_order(
    words: dict[str, int], limit: int, chance: random.Random
) -> None:
    table = merge_word_counts([counts_table(words)])
    shuffled = table.take(pa.array(chance.sample(range(len(words)), len(words)), pa.int64()))
    kept = most_frequent(table, limit)
    assert kept.num_rows == min(limit, len(words))
    assert kept.sort_by("word").equals(most_frequent(shuffled, limit).sort_by("word"))
    if 0 < kept.num_rows < len(words):
        left = set(words) - set(kept["word"].to_pylist())
        assert min(kept["count"].to_pylist()) >= max(words[word] for word in left)


def test_a_threshold_costs_no_letter_and_no_phrase_of_a_script_without_spaces() -> None:
    table = counts_table({"river": 5, "rive": 1, "ß": 1, "ก็ดี": 1, "すし": 1, "川": 1, "рек": 1, "реки": 1})
    assert frequent_words(table, 2)["word"].to_pylist() == ["river", "ß", "ก็ดี", "すし", "川", "реки"]


def forms(words: Iterable[str]) -> set[tuple[bool, str]]:
    """The letters that start words, and those inside them."""
    return {(place > 0, char) for word in words for place, char in enumerate(word)}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(LANGS, st.text("abก山", min_size=1, max_size=3), st.integers(1, 4)), max_size=30),
    st.integers(1, 6),
    st.integers(0, 6),
)
def test_words_of_a_bucket_are_frequent_in_all_languages_together(
    rows: Any, min_count: int, limit: int
) -> None:
    table = pa.table(list(map(list, zip(*rows, strict=True))) or [[], [], []], ["lang", "word", "count"])
    schema = [("lang", pa.string()), ("word", pa.string()), ("count", pa.int64())]
    kept, account = frequent_by_language(table.cast(pa.schema(schema)), min_count, limit)
    totals, by_lang = Counter[str](), dict[str, Any]()
    for lang, word, count in rows:
        totals[word] += count
        by_lang.setdefault(lang, Counter())[word] += count
    spared = {word for word in totals if len(word) == 1 or "ก" in word or "山" in word}
    frequent = {word for word, count in totals.items() if count >= min_count} | spared
    expected = []
    for lang, counts in sorted(by_lang.items()):
        wanted = counts_table({word: counts[word] for word in sorted(frequent & set(counts))})
        expected += [(lang, *row.values()) for row in most_frequent(wanted, limit).to_pylist()]
    chosen = kept.filter(pc.invert(kept["spared"])).drop_columns("spared")
    assert [tuple(row.values()) for row in chosen.to_pylist()] == expected
    # No letter is lost, and a word spared in one language is spared in every language.
    assert forms(kept["word"].to_pylist()) == forms(totals)
    rest = kept.filter(kept["spared"])
    assert (
        not forms(set(rest["word"].to_pylist())) <= forms(word for _, word, _ in expected)
        or not rest.num_rows
    )
    for word in set(rest["word"].to_pylist()):
        assert {lang for lang in by_lang if word in by_lang[lang]} == {
            row["lang"] for row in rest.to_pylist() if row["word"] == word
        }
    assert account == WordBucketCounts(
        distinct=len(totals),
        frequent=len(frequent),
        left_out=sum(len(frequent & set(counts)) for counts in by_lang.values()) - len(expected),
        words_by_language={lang: by_lang[lang].total() for lang in sorted(by_lang)},
    )


def test_words_that_were_left_out_still_count_in_a_languages_share() -> None:
    tables = {"en": counts_table({"a": 700, "b": 31}), "sv": counts_table({"a": 1})}
    smoothed = smooth_tables(tables, {"en": 4 * 731, "sv": 1}, 0.5)
    # sv, with one word in 2,925, gets the square root of 2,924 times as much as en, which is 54.07.
    assert smoothed.to_pydict() == {"word": ["a", "b"], "count": [700 + 54, 31]}


def test_languages_that_stripped_accents_damage_are_named() -> None:
    """Case pipeline-008."""
    words = {
        "hi": {"नदी": 9, "OK": 1},
        "ja": {"川": 5, "の": 4},
        "en": {"river": 9, "นา": 0},
        "th": {"กำ": 1},
    }
    # Each word has a separate table, as if each were in another bucket.
    tables = [
        (lang, counts_table({word: count}))
        for lang, counts in words.items()
        for word, count in counts.items()
    ]
    assert languages_losing_marks(tables) == ["hi", "ja", "th"]
    assert accents_of(False, None, trained=True) == "strip_letters"
    assert accents_of(False, None, trained=False) == "strip"
    assert accents_of(True, None, trained=True) == "keep"
    assert accents_of(True, "strip", trained=True) == "strip"


def test_a_language_without_words_has_no_factor() -> None:
    assert smoothing_factors({"en": 5, "xx": 0}, 0.7) == {"en": 1}


@pytest.mark.parametrize("cased", [True, False])
def test_transformers_loads_what_is_written(tmp_path: Path, cased: bool) -> None:
    sentences = list(sample_sentences()[::20])
    pieces = train_wordpiece(count_words(sentences, cased), 8_000, 9)
    write_tokenizer(str(tmp_path), pieces, cased)
    vocabulary = load_vocabulary(str(tmp_path))
    assert (vocabulary.pieces, vocabulary.cased) == (pieces, cased)
    ids, offsets = WordPieceTokenizer(vocabulary).encode_batch(sentences)
    for loaded in (AutoTokenizer.from_pretrained(tmp_path), BertTokenizerFast.from_pretrained(tmp_path)):
        assert len(loaded) == 8_000
        assert (loaded.pad_token_id, loaded.unk_token_id, loaded.mask_token_id) == (0, 1, 4)
        for number, sentence in enumerate(sentences[:1500]):
            if "[" in sentence or max(map(len, sentence.split())) > 100:
                continue
            assert loaded(sentence)["input_ids"] == [
                2,
                *ids[offsets[number] : offsets[number + 1]].tolist(),
                3,
            ]
    pair = AutoTokenizer.from_pretrained(tmp_path)("a", "b")
    assert pair["token_type_ids"] == [0, 0, 0, 1, 1]


def test_a_decomposed_accent_is_composed_by_the_written_file_too(tmp_path: Path) -> None:
    write_tokenizer(str(tmp_path), [*PIECES, "café"], True)
    assert AutoTokenizer.from_pretrained(tmp_path).tokenize("cafe\u0301") == ["café"]


def test_accents_are_a_matter_of_their_own(tmp_path: Path) -> None:
    """Case pipeline-008: lowercasing must not remove Hindi's vowel signs."""
    pieces = train_wordpiece(count_words(["नदियाँ नदियाँ CAFÉ café"] * 2, False, "strip_letters"), 30, 0)
    write_tokenizer(str(tmp_path), pieces, False, "strip_letters")
    vocabulary = load_vocabulary(str(tmp_path))
    assert vocabulary.accents == "strip_letters"
    ours = WordPieceTokenizer(vocabulary).tokenize("नदियाँ Café")
    assert "".join(piece.removeprefix("##") for piece in ours) == "नदियाँcafe"
    assert AutoTokenizer.from_pretrained(tmp_path).tokenize("नदियाँ Café") == ours


def test_two_writes_give_the_same_bytes(tmp_path: Path, counts: Any) -> None:
    pieces = train_wordpiece(counts, 6_000)
    for name in ("a", "b"):
        write_tokenizer(str(tmp_path / name), pieces, True)
    for file in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n\nriver\n", r"vocab\.txt:7: empty line"),
        (
            b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nthe\n",
            r"vocab\.txt:7: duplicate 'the', first in",
        ),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\n", r"vocab\.txt: has no \[MASK\]"),
        (b"[PAD]\n[UNK]\n\xff\n", r"vocab\.txt:3: not UTF-8"),
        (b"", r"vocab\.txt:1: empty line"),
    ],
)
def test_vocabulary_errors_are_described(tmp_path: Path, raw: Any, message: str) -> None:
    (tmp_path / "vocab.txt").write_bytes(raw)
    with pytest.raises(CorpusError, match=message):
        load_vocabulary(str(tmp_path / "vocab.txt"), True)


def test_a_missing_vocabulary_and_an_unknown_case_are_reported(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"vocab.txt: no such vocabulary file"):
        load_vocabulary(str(tmp_path), True)
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES))
    with pytest.raises(CorpusError, match="unknown whether it is cased"):
        load_vocabulary(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(CorpusError, match=r"tokenizer_config.json: has no do_lower_case"):
        load_vocabulary(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    assert load_vocabulary(str(tmp_path)).cased


def test_windows_line_ends_are_read(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes("\r\n".join(PIECES).encode())
    assert load_vocabulary(str(tmp_path), True).pieces == PIECES
