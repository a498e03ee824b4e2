"""The plan of a run as a pure function: step -> phase, and global batch as a range of sample numbers.

Each sequence length has its own stream of samples, numbered from 0. A later phase of the same length
continues where the earlier one stopped. The plan does not depend on the number of ranks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from schemas.arrays import I64
from schemas.errors import ConfigError
from trainer.data.order import SampleOrder
from trainer.data.schedules import StepMasks, longest_at, masks_at
from trainer.recipe_config import BatchWarmup, LanguageSampling, MaskRule, Phase


@dataclass(frozen=True)
class StepPlan:
    """The plan of one step: it trains ``rows`` of the samples of its length, from ``first_sample`` on."""

    step: int
    phase: int
    step_in_phase: int
    max_seq_length: int
    micro_batch_tokens: int
    first_sample: int
    rows: int
    samples: int
    """Samples from which ``rows`` are chosen. Equal to ``rows`` without a language choice."""
    longest: int
    """Longer rows are cut to this length."""
    masks: StepMasks
    rotary_base: float | None = None
    """RoPE base of global layers, or None for that of the model's config."""


@dataclass(frozen=True)
class PhasePlan:
    """A phase and its range of steps and samples. ``first_sample`` counts in its length's stream."""

    phase: Phase
    first_step: int
    steps: int
    first_sample: int
    samples: int
    ramp: I64
    """Rows of the global batch in each step of the batch size warm-up."""


class TrainingPlan:
    """All phases of a run laid out in steps."""

    def __init__(
        self,
        phases: Sequence[Phase],
        orders: Mapping[int, SampleOrder],
        *,
        mask_rule: MaskRule | None = None,
        languages: LanguageSampling | None = None,
    ) -> None:
        """``orders`` has the sample order of every length. Raises ConfigError for an unknown length."""
        self._mask_rule, self._pool = mask_rule, 1 if languages is None else languages.pool
        self.phases: list[PhasePlan] = []
        self.orders = dict(orders)
        step = 0
        position = dict.fromkeys(orders, 0)
        for number, phase in enumerate(phases):
            if phase.max_seq_length not in orders:
                lengths = ", ".join(map(str, sorted(orders))) or "none"
                raise ConfigError(
                    f"phases.{number}.max_seq_length: the corpus has no sequences of length"
                    f" {phase.max_seq_length}; its lengths are {lengths}"
                )
            plan = _lay_out(
                phase, step, position[phase.max_seq_length], orders[phase.max_seq_length], self._pool
            )
            self.phases.append(plan)
            step += plan.steps
            position[phase.max_seq_length] += plan.samples
        self.total_steps = step
        self._skips: list[tuple[int, int, int]] = []
        """First step, sequence length, and number of its samples to leave out."""

    def leave_out(self, skips: Iterable[tuple[int, int]]) -> None:
        """Leaves out data: for each (step, batches), the samples of ``batches`` steps from ``step`` on.

        These are samples of the length of ``step``. Later steps of this length train what comes after them.
        """
        self._skips = []
        for step, batches in sorted(skips):
            if step >= self.total_steps:
                continue
            length = self.at(step).max_seq_length
            planned = [self.at(number) for number in range(step, min(step + batches, self.total_steps))]
            samples = sum(plan.samples for plan in planned if plan.max_seq_length == length)
            self._skips.append((step, length, samples))

    def at(self, step: int) -> StepPlan:
        """The plan of ``step``, which must be below total_steps."""
        if not 0 <= step < self.total_steps:
            raise IndexError(f"step {step} of {self.total_steps}")
        number = max(i for i, plan in enumerate(self.phases) if plan.first_step <= step)
        plan = self.phases[number]
        inside = step - plan.first_step
        length = plan.phase.max_seq_length
        left_out = sum(n for start, of, n in self._skips if start <= step and of == length)
        first = self._pool * _samples_before(plan.phase.global_batch, plan.ramp, inside)
        last = min(self._pool * _samples_before(plan.phase.global_batch, plan.ramp, inside + 1), plan.samples)
        own = plan.phase.mask_rule is not None
        return StepPlan(
            step=step,
            phase=number,
            step_in_phase=inside,
            max_seq_length=length,
            micro_batch_tokens=plan.phase.micro_batch_tokens,
            first_sample=plan.first_sample + first + left_out,
            rows=-(-(last - first) // self._pool),
            samples=last - first,
            rotary_base=plan.phase.rotary_base,
            longest=longest_at(plan.phase.length_warmup, length, inside),
            masks=masks_at(plan.phase.mask_rule, inside, plan.steps)
            if own
            else masks_at(self._mask_rule, step, self.total_steps),
        )


def batch_ramp(warmup: BatchWarmup | None, global_batch: int) -> I64:
    """Rows of the global batch in each step of the batch size warm-up, in equal stairs: int64 [steps]."""
    if warmup is None:
        return np.zeros(0, dtype=np.int64)
    stair = np.arange(warmup.steps, dtype=np.int64) * warmup.stairs // warmup.steps
    return warmup.start + (global_batch - warmup.start) * stair // warmup.stairs


def _lay_out(phase: Phase, first_step: int, first_sample: int, order: SampleOrder, pool: int) -> PhasePlan:
    ramp = batch_ramp(phase.batch_warmup, phase.global_batch)
    if phase.steps is not None:
        samples = pool * _samples_before(phase.global_batch, ramp, phase.steps)
        return PhasePlan(phase, first_step, phase.steps, first_sample, samples, ramp)
    # As many samples as this number of passes, even if the phase starts inside a pass.
    epoch = order.epoch_of(first_sample)
    samples = order.epoch_start(epoch + (phase.epochs or 1)) - order.epoch_start(epoch)
    steps = _steps_for(phase.global_batch, ramp, -(-samples // pool))
    return PhasePlan(phase, first_step, steps, first_sample, samples, ramp)


def _samples_before(global_batch: int, ramp: I64, steps: int) -> int:
    inside = min(steps, ramp.size)
    return int(ramp[:inside].sum()) + (steps - inside) * global_batch


def _steps_for(global_batch: int, ramp: I64, samples: int) -> int:
    """The fewest steps that hold ``samples``. The last one may be short."""
    ends = np.cumsum(ramp)
    if ramp.size and samples <= int(ends[-1]):
        return int(np.searchsorted(ends, samples)) + 1
    rest = samples - (int(ends[-1]) if ramp.size else 0)
    return int(ramp.size) + -(-rest // global_batch)
