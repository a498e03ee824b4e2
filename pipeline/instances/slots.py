"""The slots of a build: a slot is a bucket of one pass on one side of the held-out split.

It is what one task makes shards of, and what is committed by itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.config import BuildConfig
from pipeline.instances.sampling import SamplingPlan, plan_sampling


@dataclass(frozen=True)
class SlotPlan:
    """The slots of a build: those of the training passes first, then those of the held-out side."""

    train: SamplingPlan
    validation: SamplingPlan
    passes: int

    @property
    def count(self) -> int:
        """All slots."""
        return self.passes * self.train.buckets + self.validation.buckets

    def split_pass_bucket(self, slot: int) -> tuple[str, int, int]:
        """What a slot holds."""
        pass_number, bucket = divmod(slot, self.train.buckets)
        if pass_number < self.passes:
            return "train", pass_number, bucket
        return "validation", 0, slot - self.passes * self.train.buckets

    def name(self, slot: int) -> str:
        """The unit id of a slot, which also names its shards."""
        split, pass_number, bucket = self.split_pass_bucket(slot)
        middle = f"p{pass_number:02d}-" if split == "train" else ""
        return f"{split}-{middle}{bucket:05d}"


def plan_slots(config: BuildConfig, counts: Mapping[str, Mapping[str, int]]) -> SlotPlan:
    """Buckets from the sizes of each language: its documents and bytes on each side of the split.

    The held-out side is neither smoothed nor repeated by pass.
    """
    settings = config.instances

    def plan(side: str, exponent: float) -> SamplingPlan:
        documents = {lang: of_lang[f"{side}_documents"] for lang, of_lang in counts.items()}
        sizes = {lang: of_lang[f"{side}_bytes"] for lang, of_lang in counts.items()}
        return plan_sampling(documents, sizes, exponent, settings.bucket_bytes, config.seed)

    return SlotPlan(plan("train", settings.smoothing), plan("validation", 1.0), settings.passes)
