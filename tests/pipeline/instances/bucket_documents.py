"""Creates buckets for tests in which the id of every token is unique and shows its origin."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.instances.bucket import BucketDocuments
from pipeline.instances.make_instances import InstanceSettings
from schemas.masking.targets import MaskingRule, MaskingVocabulary, offsets_of
from schemas.vocabulary import SPECIAL_TOKENS

PAD, UNK, CLS, SEP, MASK = range(5)
FIRST = len(SPECIAL_TOKENS)


@dataclass(frozen=True)
class Made:
    """A document with sentences of the given sizes."""

    sizes: Sequence[int]
    lang: str = "en"
    key: str | None = None
    copy: int = 0


@dataclass(frozen=True)
class Traceable:
    """A bucket, and for every id (minus FIRST) its document, sentence and whether it continues a word."""

    bucket: BucketDocuments
    document: np.ndarray
    sentence: np.ndarray
    continuation: np.ndarray
    keys: tuple[str, ...]
    langs: tuple[str, ...]

    def settings(self, rule: MaskingRule | None = None, **changes: Any) -> InstanceSettings:
        size = FIRST + self.document.size
        special = np.arange(size) < FIRST
        continuation = np.concatenate([np.zeros(FIRST, np.bool_), self.continuation])
        vocabulary = MaskingVocabulary(special, continuation, np.arange(FIRST, size, dtype=np.int32), MASK)
        fields: dict[str, Any] = {
            "max_seq_length": 32,
            "masking": rule or MaskingRule(unit="token", max_predictions=5),
        }
        return InstanceSettings(vocabulary, CLS, SEP, UNK, **{**fields, **changes})

    def reordered(self, order: Sequence[int]) -> BucketDocuments:
        """The same documents in another order."""
        old = self.bucket
        sizes = [
            np.diff(old.sentence_offsets[old.document_offsets[d] : old.document_offsets[d + 1] + 1])
            for d in order
        ]
        bounds = old.sentence_offsets[old.document_offsets]
        return BucketDocuments(
            token_ids=np.concatenate([old.token_ids[bounds[d] : bounds[d + 1]] for d in order]),
            sentence_offsets=offsets_of(np.concatenate(sizes)),
            document_offsets=offsets_of(np.array([each.size for each in sizes])),
            languages=[old.languages[d] for d in order],
            keys=[old.keys[d] for d in order],
            copies=old.copies[list(order)],
        )


def traceable(documents: Sequence[Made], joined: float = 0.3) -> Traceable:
    """Documents with unique ids. A share ``joined`` of the pieces inside sentences continues a word."""
    sizes = np.array([size for made in documents for size in made.sizes], np.int64)
    counts = np.array([len(made.sizes) for made in documents], np.int64)
    sentence_document = np.repeat(np.arange(len(documents)), counts)
    total = int(sizes.sum())
    keys = tuple(made.key or f"document/{number}" for number, made in enumerate(documents))
    bucket = BucketDocuments(
        token_ids=np.arange(FIRST, FIRST + total, dtype=np.int32),
        sentence_offsets=offsets_of(sizes),
        document_offsets=offsets_of(counts),
        languages=[made.lang for made in documents],
        keys=list(keys),
        copies=np.array([made.copy for made in documents], np.int64),
    )
    continuation = np.random.default_rng(total).random(total) < joined
    continuation[bucket.sentence_offsets[:-1][sizes > 0]] = False
    return Traceable(
        bucket=bucket,
        document=np.repeat(sentence_document, sizes),
        sentence=np.repeat(np.arange(sizes.size), sizes),
        continuation=continuation,
        keys=keys,
        langs=tuple(made.lang for made in documents),
    )
