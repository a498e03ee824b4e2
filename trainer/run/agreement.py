"""What the ranks agree on before every step, in one small all-reduce."""

from dataclasses import astuple, dataclass

from trainer.distributed.ranks import Ranks


@dataclass(frozen=True)
class Agreement:
    """The facts of one rank before a step, or their sum over all ranks.

    Every field is an integer, so one all-reduce of a tensor on the host sums them all.
    """

    masked_tokens: int = 0
    """Masked tokens of the global batch."""
    pairs: int = 0
    """Labeled sentence pairs of the global batch."""
    objective_targets: int = 0
    """Targets of the global batch for the objective that the config adds."""
    stop: int = 0
    """Ranks with a request to stop after this step."""
    save: int = 0
    """1 when, by time, rank 0 is due to save a checkpoint after this step."""
    failed: int = 0
    """Ranks that have failed."""
    committed_step: int = 0
    """The step of a committed checkpoint that rank 0 announces, or 0 for none."""
    too_many_skips: int = 0
    """Ranks that have counted too many skipped steps in a row."""

    def sum_over(self, ranks: Ranks) -> "Agreement":
        """The sums over all ranks, on every rank. All ranks must call it together."""
        return Agreement(*ranks.sum_on_host(astuple(self)))
