"""Plans the slots of a build. A slot is one bucket of one pass on one side of the held-out split.

One task makes the shards of a slot and commits them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.config import BuildConfig
from pipeline.instances.sampling import SamplingPlan, plan_sampling


@dataclass(frozen=True)
class SplitCounts:
    """Documents of one language and their UTF-8 bytes, on each side of the held-out split."""

    train_documents: int = 0
    train_bytes: int = 0
    validation_documents: int = 0
    validation_bytes: int = 0


@dataclass(frozen=True)
class SlotPlan:
    """The slots of a build: first those of the training passes, then those of the held-out side."""

    train: SamplingPlan
    validation: SamplingPlan
    passes: int

    @property
    def count(self) -> int:
        """Number of slots."""
        return self.passes * self.train.buckets + self.validation.buckets

    def split_pass_bucket(self, slot: int) -> tuple[str, int, int]:
        """Side of the split, pass and bucket of a slot."""
        pass_number, bucket = divmod(slot, self.train.buckets)
        if pass_number < self.passes:
            return "train", pass_number, bucket
        return "validation", 0, slot - self.passes * self.train.buckets

    def name(self, slot: int) -> str:
        """The unit id of a slot, which also names its shards."""
        split, pass_number, bucket = self.split_pass_bucket(slot)
        return f"{side_name(split, pass_number)}-{bucket:05d}"


def side_name(split: str, pass_number: int) -> str:
    """The prefix of the names of all slots of one pass on one side of the split.

    >>> side_name("train", 3), side_name("validation", 0)
    ('train-p03', 'validation')
    """
    return f"train-p{pass_number:02d}" if split == "train" else split


def plan_slots(config: BuildConfig, counts: Mapping[str, SplitCounts]) -> SlotPlan:
    """The slots for the documents and bytes of each language.

    Neither smoothing nor passes repeat a held-out document.
    """
    settings = config.instances
    train = plan_sampling(
        {lang: of_lang.train_documents for lang, of_lang in counts.items()},
        {lang: of_lang.train_bytes for lang, of_lang in counts.items()},
        settings.smoothing,
        settings.bucket_bytes,
        config.seed,
    )
    validation = plan_sampling(
        {lang: of_lang.validation_documents for lang, of_lang in counts.items()},
        {lang: of_lang.validation_bytes for lang, of_lang in counts.items()},
        1.0,
        settings.bucket_bytes,
        config.seed,
    )
    return SlotPlan(train, validation, settings.passes)
