"""Counts the words of the basic tokenizer and chooses the frequent ones."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.wordpiece.basic_tokenization import as_array, chunks, split_words
from pipeline.wordpiece.character_table import Accents, character_table, default_accents
from pipeline.wordpiece.letter_forms import letter_carriers, letters_of
from pipeline.wordpiece.tie_breaking import order_by_hash
from schemas.arrays import I64, Flags
from schemas.scripts import without_spaces_pattern

_WORDS_AT_ONCE = 100_000

WORD_COUNTS = pa.schema(
    [pa.field("word", pa.string(), nullable=False), pa.field("count", pa.int64(), nullable=False)]
)


def word_counts(
    sentences: pa.Array | pa.ChunkedArray | Iterable[str], *, cased: bool, accents: Accents | None = None
) -> pa.Table:
    """WORD_COUNTS of the words of the basic tokenizer, sorted by word."""
    return merge_word_counts(partial_word_counts(sentences, cased=cased, accents=accents))


def partial_word_counts(
    sentences: pa.Array | pa.ChunkedArray | Iterable[str], *, cased: bool, accents: Accents | None = None
) -> Iterator[pa.Table]:
    """WORD_COUNTS of some sentences at a time. A word may occur in several tables."""
    table = character_table(cased, accents or default_accents(cased))
    for part in chunks(as_array(sentences)):
        words = split_words(part, table)
        counts = np.bincount(words.indices, minlength=len(words.dictionary))
        yield pa.table([words.dictionary, counts], schema=WORD_COUNTS)
        chars = pc.value_counts(pa.array(words.chars))
        letters = pa.array([chr(code) for code in chars.field("values").to_pylist()], pa.string())
        yield pa.table([letters, chars.field("counts")], schema=WORD_COUNTS)


def merge_word_counts(tables: Iterable[pa.Table]) -> pa.Table:
    """The sums of several tables of word counts, sorted by word and exact up to 2^63."""
    return sum_word_counts(tables).sort_by("word").combine_chunks()


def sum_word_counts(tables: Iterable[pa.Table]) -> pa.Table:
    """`merge_word_counts` without sorting."""
    merged = pa.concat_tables([WORD_COUNTS.empty_table(), *(table.cast(WORD_COUNTS) for table in tables)])
    summed = merged.group_by("word").aggregate([("count", "sum")])
    return pa.table([summed["word"], summed["count_sum"]], schema=WORD_COUNTS).combine_chunks()


def count_words(
    sentences: pa.Array | pa.ChunkedArray | Iterable[str], cased: bool, accents: Accents | None = None
) -> dict[str, int]:
    """`word_counts` as a dictionary."""
    return counts_dict(word_counts(sentences, cased=cased, accents=accents))


def counts_dict(table: pa.Table) -> dict[str, int]:
    """A table of word counts as a dictionary."""
    return dict(zip(table["word"].to_pylist(), table["count"].to_pylist(), strict=True))


def counts_table(counts: Mapping[str, int]) -> pa.Table:
    """A dictionary of word counts as WORD_COUNTS in the same order, in batches for bounded memory."""
    items = iter(counts.items())
    parts = []
    while part := tuple(islice(items, _WORDS_AT_ONCE)):
        words, numbers = zip(*part, strict=True)
        parts.append(
            pa.record_batch([pa.array(words, pa.string()), pa.array(numbers, pa.int64())], schema=WORD_COUNTS)
        )
    return pa.Table.from_batches(parts, schema=WORD_COUNTS)


def frequent_words(table: pa.Table, min_count: int) -> pa.Table:
    """The words that occur at least ``min_count`` times, and rarer words that must stay.

    The latter are single characters, for the alphabet, words of scripts without spaces, which are whole
    phrases and rarely repeat, and one word for each letter that would otherwise be lost.
    """
    stays = _frequent(table["word"].combine_chunks(), table["count"].to_numpy(), min_count)
    stays[letter_carriers(table, letters_of([table.filter(pa.array(stays))]))] = True
    return table.filter(pa.array(stays))


def _frequent(words: pa.Array, counts: I64, min_count: int) -> Flags:
    stays = counts >= min_count
    rare = np.flatnonzero(~stays)
    names = words.take(pa.array(rare))
    spared = pc.or_(
        pc.equal(pc.utf8_length(names), 1), pc.match_substring_regex(names, without_spaces_pattern())
    )
    stays[rare] = np.asarray(spared, dtype=bool)
    return stays


@dataclass(frozen=True)
class WordBucketCounts:
    """The counts of one bucket of words."""

    distinct: int
    """Distinct words."""
    frequent: int
    """Distinct words that occur often enough."""
    left_out: int
    """Rows beyond the limit of their language."""
    words_by_language: dict[str, int]
    """Language -> words, repetitions included."""


def frequent_by_language(table: pa.Table, min_count: int, limit: int) -> tuple[pa.Table, WordBucketCounts]:
    """Sums counts by language and word, and keeps the words that are frequent in all languages together.

    The columns are lang, word and count. The result is sorted by language and word, with at most ``limit``
    rows for each language. After them come words with letters that no kept word of the bucket has, from which
    the training chooses. The column ``spared`` marks them. Words and languages are numbers until the end.
    """
    words, langs = (table[name].combine_chunks().dictionary_encode() for name in ("word", "lang"))
    counts = table["count"].to_numpy()
    totals, of_language = np.zeros(len(words.dictionary), np.int64), np.zeros(len(langs.dictionary), np.int64)
    np.add.at(totals, words.indices.to_numpy(), counts)
    np.add.at(of_language, langs.indices.to_numpy(), counts)
    frequent = np.flatnonzero(_frequent(words.dictionary, totals, min_count))
    frequent_rows = _rows_of(words, langs, counts, frequent)
    owners = frequent_rows["lang"].combine_chunks().dictionary_encode().indices.to_numpy()
    bounds = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(owners)]
    parts = [most_frequent(frequent_rows[begin:end], limit) for begin, end in pairwise(bounds)]
    kept = pa.concat_tables([frequent_rows[:0], *parts])
    carriers = letter_carriers(pa.table([words.dictionary, totals], ["word", "count"]), letters_of([kept]))
    spared = _rows_of(words, langs, counts, carriers)
    flags = pa.array(np.arange(kept.num_rows + spared.num_rows) >= kept.num_rows)
    counted = WordBucketCounts(
        distinct=len(words.dictionary),
        frequent=len(frequent),
        left_out=frequent_rows.num_rows - kept.num_rows,
        words_by_language=dict(sorted(zip(langs.dictionary.to_pylist(), of_language.tolist(), strict=True))),
    )
    return pa.concat_tables([kept, spared]).append_column("spared", flags), counted


def _rows_of(words: pa.DictionaryArray, langs: pa.DictionaryArray, counts: I64, chosen: I64) -> pa.Table:
    """The summed rows of the chosen words, sorted by language and word."""
    word, lang = words.indices.to_numpy(), langs.indices.to_numpy()
    names, word_rank = _ranked(words.dictionary, chosen)
    langs_ranked, lang_rank = _ranked(langs.dictionary, np.arange(len(langs.dictionary)))
    place = lang_rank[lang] * len(names) + word_rank[word]
    place, summed = _sums_by_place(place[word_rank[word] >= 0], counts[word_rank[word] >= 0])
    owner, name = np.divmod(place, max(len(names), 1))
    return pa.table([langs_ranked.take(owner), names.take(name), summed], ["lang", "word", "count"])


def _ranked(names: pa.Array, chosen: I64) -> tuple[pa.Array, I64]:
    """The chosen names in order, and the index of each name in that order, or -1 for the others."""
    order = pc.sort_indices(names.take(pa.array(chosen))).to_numpy()
    rank = np.full(len(names), -1, np.int64)
    rank[chosen[order]] = np.arange(len(order))
    return names.take(pa.array(chosen[order])), rank


def _sums_by_place(place: I64, counts: I64) -> tuple[I64, I64]:
    """The distinct positions, ascending, and the sum of the counts at each."""
    order = np.argsort(place, kind="stable")
    place = place[order]
    begins = np.flatnonzero(np.diff(place, prepend=-1))
    return place[begins], np.add.reduceat(counts[order], begins) if len(begins) else counts[:0]


def most_frequent(table: pa.Table, limit: int, max_letters: int | None = None) -> pa.Table:
    """The ``limit`` most frequent words with at most ``max_letters`` letters in total, in the table's order.

    A hash breaks ties, because alphabetical order would drop the last scripts of Unicode first.
    """
    counts = table["count"].to_numpy()
    lengths = np.ones(len(counts), np.int64) if max_letters is None else _lengths(table["word"])
    most = limit if max_letters is None else max_letters
    if len(counts) <= limit and lengths.sum() <= most:
        return table
    order = np.argsort(-counts, kind="stable")
    fits = min(limit, int(np.searchsorted(np.cumsum(lengths[order]), most, side="right")))
    # Words with a higher count than the first word that does not fit stay, and some words with its count.
    least = counts[order[fits]]
    stays = counts > least
    ties = np.flatnonzero(counts == least)
    ties = ties[order_by_hash(table.select(["word"]).take(pa.array(ties)))]
    room = int(np.searchsorted(np.cumsum(lengths[ties]), most - lengths[stays].sum(), side="right"))
    stays[ties[: min(limit - int(stays.sum()), room)]] = True
    return table.filter(pa.array(stays))


def _lengths(words: pa.ChunkedArray) -> I64:
    lengths: I64 = pc.utf8_length(words).to_numpy().astype(np.int64)
    return lengths
