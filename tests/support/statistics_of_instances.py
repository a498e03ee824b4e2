"""Histograms of instances, and a test whether two of them come from one distribution."""

import itertools
import math
import random
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.instances.bucket import BucketDocuments
from pipeline.instances.make_instances import InstanceSettings
from schemas.masking.targets import MaskingRule, MaskingVocabulary, offsets_of
from tests.support.reference_instances import Document, Instance, Rules, golden_vocabulary

Ints = npt.NDArray[np.integer]

# Below this probability, two histograms count as histograms of different distributions.
SIGNIFICANCE = 1e-4


def homogeneity(ours: Counter[Hashable], theirs: Counter[Hashable], least: int = 20) -> float:
    """Probability of such a difference if both have one distribution: Pearson's chi-square test.

    Rare values are joined until every cell expects ``least``. Wilson and Hilferty's normal
    approximation of the chi-square distribution is used.
    """
    totals = ours + theirs
    cells: list[tuple[int, int]] = []
    rest = (0, 0)
    for value, count in sorted(totals.items(), key=lambda item: (-item[1], str(item[0]))):
        pair = (ours[value], theirs[value])
        share = min(sum(ours.values()), sum(theirs.values())) / sum(totals.values())
        if count * share >= least:
            cells.append(pair)
        else:
            rest = (rest[0] + pair[0], rest[1] + pair[1])
    if sum(rest) > 0:
        cells.append(rest)
    if len(cells) < 2:
        return 1.0
    table = np.array(cells, np.float64)
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / table.sum()
    statistic = float(((table - expected) ** 2 / expected).sum())
    freedom = len(cells) - 1
    spread = 2 / (9 * freedom)
    normal = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(normal / math.sqrt(2))


@dataclass
class Histograms:
    """The compared properties of instances."""

    by_name: dict[str, Counter[Hashable]] = field(default_factory=dict)

    def count(self, name: str, values: Iterable[Hashable] | Counter[Any]) -> None:
        """Adds values, or the counts of values."""
        self.by_name.setdefault(name, Counter()).update(values)

    def _count_one(self, name: str, value: Hashable) -> None:
        counter = self.by_name.get(name)
        if counter is None:
            counter = self.by_name[name] = Counter()
        counter[value] += 1

    def add(self, instance: Instance, rng: random.Random) -> None:
        """Counts one position of each instance, because positions of one instance depend on each other."""
        length, a_length = len(instance.tokens), instance.segment_ids.count(0)
        self._count_one("label", instance.label)
        self._count_one("length", length // 4)
        self._count_one("segment a", (instance.label, a_length // 4))
        self._count_one("targets", len(instance.positions))
        self._count_one("first of a", instance.tokens[1][:2])
        pick = rng.randrange(len(instance.positions))
        self._count_one("position", instance.positions[pick] * 32 // length)
        self._count_one("kind", instance.kinds[pick])
        runs = runs_of(instance.positions)
        self._count_one("run", rng.choice(runs))
        self._count_one("runs", len(runs))

    def add_table(self, table: pa.Table, rng: np.random.Generator) -> None:
        """Adds the counts of `add` for all rows of a shard together."""
        length = table["length"].to_numpy()
        a_length = table["segment_a_length"].to_numpy()
        label = table["next_sentence_label"].to_numpy().astype(np.int64)
        ids = np.asarray(table["input_ids"].combine_chunks().flatten())
        starts = np.cumsum(length) - length
        positions, labels = (
            np.asarray(table[name].combine_chunks().flatten()) for name in ("masked_positions", "masked_ids")
        )
        targets = np.asarray(table["masked_positions"].combine_chunks().value_lengths())
        self._count_codes("label", label)
        self._count_codes("length", length // 4)
        self._count_codes("targets", targets)
        pairs = np.unique(label * 1000 + a_length // 4, return_counts=True)
        for code, count in zip(*(values.tolist() for values in pairs), strict=True):
            self.count("segment a", Counter({divmod(code, 1000): count}))
        vocabulary = golden_vocabulary()
        found, counts = np.unique(ids[starts + 1], return_counts=True)
        for index, count in zip(found.tolist(), counts.tolist(), strict=True):
            self.count("first of a", Counter({vocabulary[index][:2]: count}))
        first = np.cumsum(targets) - targets
        pick = first + (rng.random(targets.size) * targets).astype(np.int64)
        self._count_codes("position", positions[pick] * 32 // length)
        shown = ids[starts + positions[pick]]
        kinds = np.where(shown == vocabulary.index("[MASK]"), 0, np.where(shown == labels[pick], 1, 2))
        for kind, count in zip(("mask", "keep", "random"), np.bincount(kinds, minlength=3), strict=True):
            self.count("kind", Counter({kind: int(count)}))
        self._count_runs(positions, first, rng)

    def _count_runs(self, positions: Ints, first: Ints, rng: np.random.Generator) -> None:
        """Counts runs of neighboring targets: their number in a row, and the length of one of them."""
        begins = np.ones(positions.size, bool)
        begins[1:] = positions[1:] != positions[:-1] + 1
        begins[first] = True
        places = np.flatnonzero(begins)
        sizes = np.diff(places, append=positions.size)
        number = np.add.reduceat(begins.astype(np.int64), first)
        chosen = np.cumsum(number) - number + (rng.random(number.size) * number).astype(np.int64)
        self._count_codes("run", sizes[chosen])
        self._count_codes("runs", number)

    def _count_codes(self, name: str, values: Ints) -> None:
        found, counts = np.unique(values, return_counts=True)
        self.count(name, Counter(dict(zip(found.tolist(), counts.tolist(), strict=True))))

    def merge(self, other: "Histograms") -> None:
        for name, counts in other.by_name.items():
            self.count(name, counts)

    def compare(self, other: "Histograms") -> dict[str, float]:
        return {name: homogeneity(counts, other.by_name[name]) for name, counts in self.by_name.items()}


def runs_of(positions: list[int]) -> list[int]:
    runs = [1]
    for before, after in itertools.pairwise(positions):
        if after == before + 1:
            runs[-1] += 1
        else:
            runs.append(1)
    return runs


def bucket_of(corpus: list[Document], vocabulary: list[str]) -> BucketDocuments:
    number = {piece: index for index, piece in enumerate(vocabulary)}
    sentences = [sentence for document in corpus for sentence in document]
    return BucketDocuments(
        token_ids=np.array([number[piece] for sentence in sentences for piece in sentence], np.int32),
        sentence_offsets=offsets_of(np.array([len(sentence) for sentence in sentences])),
        document_offsets=offsets_of(np.array([len(document) for document in corpus])),
        languages=["en"] * len(corpus),
        keys=[f"golden/{index}" for index in range(len(corpus))],
        copies=np.zeros(len(corpus), np.int64),
    )


def settings_of(rules: Rules, unit: str, vocabulary: list[str], **changes: Any) -> InstanceSettings:
    return InstanceSettings(
        vocabulary=MaskingVocabulary.from_pieces(vocabulary),
        cls_id=vocabulary.index("[CLS]"),
        sep_id=vocabulary.index("[SEP]"),
        unknown_id=vocabulary.index("[UNK]"),
        max_seq_length=rules.max_seq_length,
        short_seq_prob=rules.short_seq_prob,
        masking=MaskingRule(unit=unit, max_predictions=rules.max_predictions),  # type: ignore[arg-type]
        **changes,
    )


def instances_of(table: pa.Table) -> Iterable[Instance]:
    """The rows of a shard in the form of the reference."""
    vocabulary = golden_vocabulary()
    for row in table.to_pylist():
        shown = [row["input_ids"][position] for position in row["masked_positions"]]
        labels = row["masked_ids"]
        yield Instance(
            tokens=[vocabulary[index] for index in row["input_ids"]],
            segment_ids=[0] * row["segment_a_length"] + [1] * (row["length"] - row["segment_a_length"]),
            label=row["next_sentence_label"],
            positions=row["masked_positions"],
            labels=[vocabulary[index] for index in labels],
            kinds=[_kind(vocabulary[a], vocabulary[b]) for a, b in zip(shown, labels, strict=True)],
        )


def _kind(shown: str, label: str) -> str:
    if shown == "[MASK]":
        return "mask"
    return "keep" if shown == label else "random"
