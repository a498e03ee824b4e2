"""Compares shingles, signatures, bands and verified pairs of near duplicates with exact similarity."""

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.dedup.minhash import PERMUTATIONS, band_hashes, jaccard, rows_per_band, signatures
from pipeline.dedup.near import SKETCH_SHINGLES, candidate_pairs, similarity, sketches
from pipeline.dedup.shingles import hashed_words, shingles
from tests.pipeline.bert_reference import sample_sentences
from tests.pipeline.dedup.near_in_memory import near_removals

WORDS = [f"word{number}" for number in range(5000)]


def runs(texts: list[str]) -> Any:
    """The shingles of texts, as in `near`."""
    return shingles(hashed_words(pa.array(texts, pa.string()), np.arange(len(texts) + 1)))


def runs_by_hand(text: str) -> set[tuple[str, ...]]:
    words = text.lower().split()
    return {tuple(words[at : at + 5]) for at in range(max(len(words) - 4, 1))} if words else set()


def losers(documents: Any, threshold: float = 0.8) -> dict[str, str]:
    keys = list(documents)
    found = near_removals(
        keys, pa.array(documents.values(), pa.string()), np.arange(len(keys) + 1), threshold
    )
    return dict(zip(found["key"].to_pylist(), found["kept_key"].to_pylist(), strict=True))


def edited(text: str, share: float, chance: random.Random) -> str:
    return " ".join(chance.choice(WORDS) if chance.random() < share else word for word in text.split())


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.sampled_from("a bb ccc Dé é".split()), max_size=14).map(" ".join), max_size=6))
def test_shingles_are_the_runs_of_five_words(texts: list[str]) -> None:
    hashes, offsets = runs(texts)
    assert len(offsets) == len(texts) + 1
    sets = [set(hashes[begin:end].tolist()) for begin, end in pairwise(offsets.tolist())]
    expected = [runs_by_hand(text.replace("é", "e")) for text in texts]
    assert list(map(len, sets)) == list(map(len, expected))
    for one in range(len(texts)):
        for other in range(one):
            assert len(sets[one] & sets[other]) == len(expected[one] & expected[other])


def test_case_punctuation_and_sentence_ends_do_not_count() -> None:
    one, _ = runs(["The river, under the old bridge. It FLOWS."])
    other, _ = runs(["the river under the old bridge it flows"])
    assert one.tolist() == other.tolist()
    split, _ = shingles(
        hashed_words(pa.array(["The river, under the", "old bridge.", "It FLOWS."]), np.array([0, 3]))
    )
    assert split.tolist() == one.tolist()


def test_signs_of_scripts_without_spaces_are_words() -> None:
    assert len(runs(["石の橋が川に"])[0]) == 2
    assert len(runs(["กำลังดี"])[0]) == 3
    assert len(runs(["한국어 위키백과"])[0]) == 1


def sets_of_known_similarity(chance: random.Random) -> Iterator[Any]:
    for similar in np.linspace(0.05, 0.95, 40):
        both = int(600 * similar)
        chosen = chance.sample(range(1 << 60), 1200 - both)
        shared, rest = chosen[:both], chosen[both:]
        half = len(rest) // 2
        yield [np.array(sorted(shared + part), np.uint64) for part in (rest[:half], rest[half:])]


def test_signatures_estimate_as_well_as_datasketch() -> None:
    from datasketch import MinHash  # here, because it loads scipy in each process that collects this test

    ours, theirs = [], []
    for pair in sets_of_known_similarity(random.Random(4)):
        truth = jaccard(*pair)
        one, other = signatures(
            np.concatenate(pair), np.array([0, len(pair[0]), len(pair[0]) + len(pair[1])])
        )
        ours.append((one == other).mean() - truth)
        sketches = [MinHash(PERMUTATIONS, seed=1) for _ in pair]
        for sketch, values in zip(sketches, pair, strict=True):
            sketch.update_batch([value.tobytes() for value in values])
        theirs.append(sketches[0].jaccard(sketches[1]) - truth)
    assert abs(np.mean(ours)) < 0.03
    assert np.std(ours) < 1.4 * np.std(theirs)
    assert np.abs(ours).max() < 0.18


def test_signatures_do_not_depend_on_the_batch() -> None:
    hashes, offsets = runs(
        [edited(" ".join(WORDS[:300]), 0.3, random.Random(n)) for n in range(30)] + ["", "a b"]
    )
    whole = signatures(hashes, offsets)
    for number, (begin, end) in enumerate(pairwise(offsets.tolist())):
        alone = signatures(hashes[begin:end], np.array([0, end - begin]))
        assert alone[0].tolist() == whole[number].tolist()


def test_bands_find_pairs_at_the_threshold() -> None:
    assert rows_per_band(0.8) == 8
    rows = rows_per_band(0.8)
    met = 0
    for seed in range(40):
        chance = random.Random(seed)
        shared = chance.sample(range(1 << 60), 850)
        parts = [np.array(sorted(shared + chance.sample(range(1 << 60), 75)), np.uint64) for _ in range(2)]
        one, other = band_hashes(signatures(np.concatenate(parts), np.array([0, 925, 1850])), rows)
        met += bool((one == other).any())
    assert met >= 38


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), max_size=80), st.randoms())
def test_candidates_do_not_depend_on_the_order_of_rows(rows: Any, chance: random.Random) -> None:
    rows = sorted({node: (band, node * 7919 % 101, node) for band, node in rows}.values())

    def find() -> pa.Table:
        columns = np.array(rows, np.uint64).reshape(-1, 3).T
        return candidate_pairs(pa.table(list(columns), names=["band", "rank", "node"]))

    expected = find()
    chance.shuffle(rows)
    assert find().equals(expected)
    for left, right in zip(*expected.to_pydict().values(), strict=True):
        assert left < right


def test_a_sketch_of_a_long_document_still_tells_the_similarity() -> None:
    chance = random.Random(9)
    shared = chance.sample(range(1 << 60), 27_000)
    parts = [np.array(sorted(shared + chance.sample(range(1 << 60), 3_000)), np.uint64) for _ in range(2)]
    cut = sketches(np.concatenate(parts), np.array([0, 30_000, 60_000]))
    assert list(map(len, cut)) == [SKETCH_SHINGLES] * 2
    assert similarity(*cut) == pytest.approx(jaccard(*parts), abs=0.03)
    short = parts[0][:50]
    assert similarity(cut[0], short) == pytest.approx(jaccard(cut[0][cut[0] <= cut[0][-1]], short), abs=1e-12)


def corpus() -> dict[str, str]:
    """Real paragraphs, and copies of some with edits at known rates."""
    lines = [line for line in sample_sentences() if len(line.split()) > 60][:300]
    chance = random.Random(11)
    documents = {f"plain/{number:04}": line for number, line in enumerate(lines)}
    documents |= {f"edited/{n:04}": edited(line, chance.choice([0.0, 0.005, 0.01, 0.02, 0.05, 0.2]), chance)
                  for n, line in enumerate(lines[:150])}  # fmt: skip
    return documents


def test_recall_and_precision_against_all_pairs() -> None:
    documents = corpus()
    found = losers(documents)
    keys = list(documents)
    hashes, offsets = runs(list(documents.values()))
    sets = [np.unique(hashes[begin:end]) for begin, end in pairwise(offsets.tolist())]
    similar = {}
    for one in range(len(keys)):
        for other in range(one):
            value = jaccard(sets[one], sets[other])
            if value >= 0.8:
                similar[keys[one], keys[other]] = value
    cluster = {key: found.get(key, key) for key in keys}
    high = [pair for pair, value in similar.items() if value >= 0.85]
    assert len(high) > 60
    assert sum(cluster[one] == cluster[other] for one, other in high) >= 0.95 * len(high)
    with_fellow = {key for pair in similar for key in pair}
    assert sum(key in with_fellow for key in found) >= 0.99 * len(found)


def test_the_smallest_key_stays_in_any_order() -> None:
    documents = corpus()
    expected = losers(documents)
    assert expected
    assert all(kept < gone for gone, kept in expected.items())
    keys = list(documents)
    for seed in range(3):
        random.Random(seed).shuffle(keys)
        assert losers({key: documents[key] for key in keys}) == expected


def test_templated_stubs_fall_together_without_comparing_all_pairs() -> None:
    """Case pipeline-007."""
    text = " ".join(WORDS[:100])
    chance = random.Random(3)
    stubs = {f"ceb/{number:05}": edited(text, 0.005, chance) for number in range(1000)}
    stubs |= {f"plain/{n:04}": " ".join(chance.choices(WORDS, k=80)) for n in range(50)}
    found = losers(stubs)
    assert len(found) > 950
    assert not any(key.startswith("plain") for key in found)


def test_documents_without_words_are_not_duplicates() -> None:
    assert losers({"a": "", "b": "...", "c": "", "d": "x", "e": "x"}) == {"e": "d"}
