"""Tests properties that hold for the rows of any bucket."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import Instances, SequenceLength
from pipeline.instances.bucket import TOKENIZED, BucketDocuments
from pipeline.instances.counts import add_counts, pair_warnings
from pipeline.instances.make_instances import InstanceSettings, make_instances
from schemas.columns.shards import SHARD
from schemas.errors import ConfigError, CorpusError
from schemas.instance_counts import InstanceCounts
from schemas.masking.targets import MaskingRule
from tests.pipeline.instances.bucket_documents import CLS, FIRST, MASK, SEP, UNK, Made, Traceable, traceable

DOCUMENTS = st.lists(
    st.builds(
        Made,
        sizes=st.lists(st.integers(0, 90), max_size=8),
        lang=st.sampled_from(["en", "de", "mt"]),
    ),
    min_size=1,
    max_size=8,
)
SETTINGS = st.fixed_dictionaries(
    {
        "max_seq_length": st.sampled_from([8, 16, 32, 61]),
        "objective": st.sampled_from(["nsp", "sop", "none"]),
        "packing": st.sampled_from(["full_sentences", "doc_sentences"]),
        "short_seq_prob": st.sampled_from([0.0, 0.1, 1.0]),
        "rule": st.builds(
            MaskingRule,
            unit=st.sampled_from(["token", "whole_word", "span", "ngram"]),
            max_predictions=st.integers(1, 12),
        ),
    }
)


def originals(row: dict[str, Any]) -> list[int]:
    """The row's ids with the labels written back."""
    ids = list(row["input_ids"])
    for position, label in zip(row["masked_positions"], row["masked_ids"], strict=True):
        ids[position] = label
    return ids


def segments(row: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Segments A and B of the row, without special tokens."""
    ids = originals(row)
    assert ids[0] == CLS
    assert ids[-1] == SEP
    a, b = ids[1 : row["segment_a_length"] - 1], ids[row["segment_a_length"] : -1]
    assert ids[row["segment_a_length"] - 1] == SEP
    return a, b


def total(counts: dict[str, InstanceCounts]) -> InstanceCounts:
    result = InstanceCounts()
    for each in counts.values():
        result.add(each)
    return result


@given(documents=DOCUMENTS, chosen=SETTINGS, seed=st.integers(0, 2**63 - 1))
@settings(max_examples=150, deadline=None)
def test_every_row_is_true_and_every_token_is_counted(
    documents: list[Made], chosen: dict[str, Any], seed: int
) -> None:
    source = traceable(documents)
    setup = source.settings(**chosen)
    made = make_instances(source.bucket, setup, seed, 0)
    assert made.table.schema == SHARD
    rows = made.table.to_pylist()
    seen: Counter[int] = Counter()
    for row in rows:
        check_masks(row, setup, source)
        if setup.objective == "none":
            check_packed(row, setup, source)
        else:
            check_pair(row, setup, source)
        seen.update(token for token in originals(row) if token >= FIRST)
    check_counts(rows, seen, total(made.counts), source)


def check_masks(row: dict[str, Any], setup: InstanceSettings, source: Traceable) -> None:
    ids, positions, labels = row["input_ids"], row["masked_positions"], row["masked_ids"]
    assert row["length"] == len(ids) <= setup.max_seq_length
    assert positions == sorted(set(positions))
    assert 1 <= len(positions) <= setup.masking.max_predictions
    assert all(label >= FIRST for label in labels)
    for position, token in enumerate(ids):
        if token == MASK:
            assert position in positions
    if setup.masking.unit != "token":
        masked = set(positions)
        whole = originals(row)
        words: list[list[int]] = []
        for position, token in enumerate(whole):
            if token < FIRST:
                continue
            if source.continuation[token - FIRST] and words and words[-1][-1] == position - 1:
                words[-1].append(position)
            else:
                words.append([position])
        parted = [word for word in words if 0 < len(masked & set(word)) < len(word)]
        assert not parted or (len(parted) == 1 and len(positions) == setup.masking.max_predictions)
    budget = min(setup.masking.max_predictions, max(1, round(len(ids) * setup.masking.probability)))
    if setup.masking.unit == "token":
        assert len(positions) == min(budget, sum(token >= FIRST for token in originals(row)))


def check_pair(row: dict[str, Any], setup: InstanceSettings, source: Traceable) -> None:
    a, b = segments(row)
    assert a
    assert b
    for part in (a, b):
        assert part == list(range(part[0], part[0] + len(part)))
    key_of = [source.keys[source.document[part[0] - FIRST]] for part in (a, b)]
    lang_of = [source.langs[source.document[part[0] - FIRST]] for part in (a, b)]
    assert len({source.document[token - FIRST] for token in a}) == 1
    assert lang_of == [row["lang"]] * 2
    assert key_of[0] == row["document_key"]
    if setup.objective == "sop":
        assert key_of[0] == key_of[1]
        assert (b[0] > a[-1]) == (row["next_sentence_label"] == 0)
    elif row["next_sentence_label"] == 1:
        assert key_of[0] != key_of[1]
    else:
        assert key_of[0] == key_of[1]
        assert b[0] > a[-1]


def check_packed(row: dict[str, Any], setup: InstanceSettings, source: Traceable) -> None:
    ids = originals(row)
    assert row["segment_a_length"] == row["length"]
    assert row["next_sentence_label"] == -1
    assert ids[0] == CLS
    assert ids[-1] == SEP
    text = ids[1:-1]
    assert text[0] >= FIRST
    assert text[-1] >= FIRST
    parts: list[list[int]] = [[]]
    for token in text:
        if token == SEP:
            parts.append([])
        else:
            parts[-1].append(token)
    for part in parts:
        assert part == list(range(part[0], part[0] + len(part)))
    documents = [source.document[part[0] - FIRST] for part in parts]
    assert len(set(documents)) == len(parts)
    assert {source.langs[number] for number in documents} == {row["lang"]}
    assert source.keys[documents[0]] == row["document_key"]
    if setup.packing == "doc_sentences":
        assert len(parts) == 1


def check_counts(
    rows: list[dict[str, Any]], seen: Counter[int], counts: InstanceCounts, source: Traceable
) -> None:
    counts.check("test")
    assert counts.documents == len(source.keys)
    assert counts.tokens_in == source.document.size
    assert counts.sequences == len(rows)
    assert counts.sequence_tokens == sum(row["length"] for row in rows)
    assert counts.tokens_unseen == source.document.size - len(seen)
    assert counts.tokens_used + counts.tokens_reused == sum(seen.values())
    assert counts.masked == sum(len(row["masked_ids"]) for row in rows)
    assert counts.labels == dict(Counter(str(row["next_sentence_label"]) for row in rows))
    assert sum(counts.lengths) == counts.sequences


@given(documents=DOCUMENTS, chosen=SETTINGS, data=st.data())
@settings(max_examples=40, deadline=None)
def test_the_rows_do_not_depend_on_the_order_of_arrival(
    documents: list[Made], chosen: dict[str, Any], data: st.DataObject
) -> None:
    """Case pipeline-032."""
    source = traceable(documents)
    setup = source.settings(**chosen)
    order = data.draw(st.permutations(range(len(documents))))
    expected = make_instances(source.bucket, setup, 7, 0)
    other = make_instances(source.reordered(order), setup, 7, 0)
    assert other.table.equals(expected.table)
    assert other.counts == expected.counts


def pairs_of(
    documents: list[Made], seed: int = 5, **chosen: Any
) -> tuple[list[dict[str, Any]], InstanceCounts]:
    source = traceable(documents)
    made = make_instances(source.bucket, source.settings(**chosen), seed, 0)
    return made.table.to_pylist(), total(made.counts)


def test_half_of_the_pairs_are_random_also_where_sentences_are_long() -> None:
    # Two sentences fill a row, and an odd number leaves one over. The original makes far more random pairs.
    documents = [Made([20] * 11) for _ in range(400)]
    _, counts = pairs_of(documents, max_seq_length=48)
    share = counts.labels["1"] / counts.sequences
    assert counts.sequences > 2000
    assert share == pytest.approx(0.5, abs=0.03)
    assert counts.events["repeated_a"] > 0


def test_a_language_with_one_document_gets_no_random_pair() -> None:
    documents = [Made([9] * 40, "mt"), *(Made([9] * 10) for _ in range(9))]
    rows, counts = pairs_of(documents)
    assert {row["next_sentence_label"] for row in rows if row["lang"] == "mt"} == {0}
    assert counts.events["no_random_partner"] > 0


def test_copies_of_one_document_are_never_paired() -> None:
    documents = [Made([9] * 30, key="a", copy=number) for number in range(6)]
    rows, counts = pairs_of(documents)
    assert {row["next_sentence_label"] for row in rows} == {0}
    assert counts.events["no_random_partner"] > 0


def test_copies_get_boundaries_of_their_own() -> None:
    documents = [Made([9] * 30, key="a", copy=number) for number in range(2)] + [Made([9] * 30)]
    source = traceable(documents)
    table = make_instances(source.bucket, source.settings(), 5, 0).table
    firsts: dict[int, set[int]] = {0: set(), 1: set()}
    for row in table.to_pylist():
        a, _ = segments(row)
        document = int(source.document[a[0] - FIRST])
        if document < 2:
            firsts[document].add(a[0] - FIRST - 270 * document)
    assert firsts[0] != firsts[1]


def test_one_sentence_documents_are_only_random_or_left_over() -> None:
    rows, counts = pairs_of([Made([12]) for _ in range(20)])
    assert {row["next_sentence_label"] for row in rows} == {1}
    assert counts.events["one_sentence_documents"] == 20
    rows, counts = pairs_of([Made([12])])
    assert rows == []
    assert counts.left_over["no_partner"] == 12
    rows, counts = pairs_of([Made([12]), Made([5, 6])], objective="sop")
    assert len(rows) == 1
    assert counts.left_over["one_sentence_document"] == 12


def test_a_book_with_a_blank_line_after_every_sentence_is_warned_of() -> None:
    """Case pipeline-016."""
    source = traceable([Made([12], "en") for _ in range(500)] + [Made([9] * 20, "fi") for _ in range(20)])
    counts = make_instances(source.bucket, source.settings(), 1, 0).counts
    assert (counts["en"].median_sentences, counts["fi"].median_sentences) == (1, 16)
    (line,) = pair_warnings(counts)
    assert line.startswith(
        "en: the median document has 1 sentence (500 of 500 documents), so 100% of the pairs"
    )
    assert InstanceCounts().median_sentences == 0


def test_documents_are_counted_by_powers_of_two() -> None:
    sizes = [1, 2, 3, 4, 7, 8, 15, 16, 0]
    source = traceable([Made([5] * size) for size in sizes])
    counts = make_instances(source.bucket, source.settings(), 1, 0).counts["en"]
    assert counts.document_sentences[:6] == [1, 2, 2, 2, 1, 0]


def test_over_long_sentences_are_cut_at_words_and_counted() -> None:
    source = traceable([Made([200, 10]), Made([7, 8])], joined=0.4)
    made = make_instances(source.bucket, source.settings(max_seq_length=34, objective="none"), 1, 0)
    counts = total(made.counts)
    assert (counts.sentences_cut, counts.tokens_cut, counts.tokens_unseen) == (1, 0, 0)
    assert counts.sentence_parts >= 200 // 32
    for row in made.table.to_pylist():
        first = originals(row)[1]
        assert not source.continuation[first - FIRST]
    _, counts = pairs_of([Made([200, 10]), Made([120])], max_seq_length=35)
    assert counts.sentences_cut == 2
    assert counts.sentence_parts >= 320 // 16
    assert counts.tokens_in == 330


def test_a_word_longer_than_the_row_is_cut_too() -> None:
    source = traceable([Made([100])], joined=1.0)
    made = make_instances(source.bucket, source.settings(max_seq_length=12, objective="none"), 1, 0)
    assert total(made.counts).tokens_used == 100


def test_tokens_are_cut_from_either_end_with_equal_chance() -> None:
    # With two sentences of 40 tokens in rows of 40, 20 coin tosses cut 20 tokens from each.
    source = traceable([Made([40, 40], "und") for _ in range(300)])
    table = make_instances(source.bucket, source.settings(max_seq_length=43, short_seq_prob=0.0), 1, 0).table
    front = [(part[0] - FIRST) % 40 for row in table.to_pylist() for part in segments(row)]
    assert all(row["length"] == 43 for row in table.to_pylist())
    assert np.mean(front) == pytest.approx(10, abs=0.4)
    assert np.var(front) == pytest.approx(5, abs=1)


def test_passes_and_lengths_give_other_rows() -> None:
    source = traceable([Made([9] * 30) for _ in range(5)])
    tables = [make_instances(source.bucket, source.settings(), 5, number).table for number in range(2)]
    assert not tables[0].equals(tables[1])
    assert not make_instances(source.bucket, source.settings(), 6, 0).table.equals(tables[0])


def test_rows_with_nothing_to_predict_are_left_over() -> None:
    bucket = BucketDocuments(
        token_ids=np.array([UNK] * 12 + [FIRST, FIRST + 1] * 6, np.int32),
        sentence_offsets=np.array([0, 6, 12, 18, 24]),
        document_offsets=np.array([0, 2, 4]),
        languages=["ii", "en"],
        keys=["a", "b"],
        copies=np.zeros(2, np.int64),
    )
    setup = traceable([Made([2])]).settings()
    made = make_instances(bucket, setup, 1, 0)
    assert made.counts["ii"].sequences == 0
    assert made.counts["ii"].left_over["nothing_to_predict"] == 12
    assert made.counts["ii"].tokens_unknown == made.counts["ii"].words_in == 12
    assert made.counts["en"].tokens_unknown == 0
    assert made.counts["en"].sequences == 1


def test_a_bucket_without_text_gives_a_table_without_rows() -> None:
    source = traceable([Made([]), Made([0, 0])])
    made = make_instances(source.bucket, source.settings(), 1, 0)
    assert made.table.num_rows == 0
    assert made.table.schema == SHARD
    assert made.counts["en"].empty_documents == 2


def test_the_same_copy_twice_is_an_error() -> None:
    source = traceable([Made([5], key="a"), Made([6], key="a")])
    with pytest.raises(CorpusError, match="a copy 0"):
        make_instances(source.bucket, source.settings(), 1, 0)


def test_a_length_that_holds_no_pair_is_an_error() -> None:
    with pytest.raises(ConfigError, match="max_seq_length"):
        traceable([Made([5])]).settings(max_seq_length=7)
    with pytest.raises(ConfigError, match="max_predictions"):
        traceable([Made([5])]).settings(rule=MaskingRule(max_predictions=0))


def test_documents_from_a_table_of_the_shuffle() -> None:
    columns = {
        "bucket": [3, 3, 3],
        "key": ["a", "b", "c"],
        "lang": ["en", "de", "en"],
        "copy": [0, 1, 0],
        "token_ids": [[5, 6, 7], [], [8]],
        "sentence_lengths": [[1, 2], [], [1]],
    }
    table = pa.table(columns, schema=TOKENIZED)
    bucket = BucketDocuments.from_table(pa.concat_tables([table.slice(0, 1), table.slice(1)]))
    assert bucket.token_ids.tolist() == [5, 6, 7, 8]
    assert bucket.sentence_offsets.tolist() == [0, 1, 3, 4]
    assert bucket.document_offsets.tolist() == [0, 2, 2, 3]
    assert list(bucket.languages) == ["en", "de", "en"]
    assert bucket.copies.tolist() == [0, 1, 0]
    wrong = pa.table({**columns, "sentence_lengths": [[1, 1], [], [1]]}, schema=TOKENIZED)
    with pytest.raises(CorpusError, match="do not add up"):
        BucketDocuments.from_table(wrong)


def test_settings_from_the_config() -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "a", "##b"]
    config = Instances(objective="sop", short_seq_prob=0.2)
    setup = InstanceSettings.from_config(config, SequenceLength(max_seq_length=64, max_predictions=9), pieces)
    assert (setup.cls_id, setup.sep_id, setup.unknown_id, setup.max_seq_length) == (CLS, SEP, UNK, 64)
    assert (setup.objective, setup.short_seq_prob, setup.masking.max_predictions) == ("sop", 0.2, 9)
    assert setup.vocabulary.replacements.tolist() == [6, 7]


def test_counts_of_buckets_add_up() -> None:
    documents = [Made([9] * 12, lang) for lang in ("en", "de", "en", "de", "en", "de")]
    source = traceable(documents)
    whole: dict[str, InstanceCounts] = {}
    made = make_instances(source.bucket, source.settings(), 1, 0).counts
    add_counts(whole, made)
    add_counts(whole, {name: replace(each) for name, each in made.items()})
    assert whole["en"].tokens_in == 2 * made["en"].tokens_in == 2 * 3 * 108
    assert whole["de"].labels == {name: 2 * count for name, count in made["de"].labels.items()}
    broken = InstanceCounts(tokens_in=5, tokens_used=4)
    with pytest.raises(CorpusError, match="5 tokens in, but 4"):
        broken.check("bucket 3")
