"""The lengths of a step's rows, read by rank 0 alone and told to the others.

Every rank needs the length of every row of a global batch to know its own share. If each of them read the
``length`` columns, 256 ranks would make 256 times the requests, for the same few kilobytes.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch.distributed as dist

from schemas import errors
from schemas.errors import BertmillError

I64 = npt.NDArray[np.int64]


class SharedLengths:
    """Tells lengths over a process group of its own, in one thread, in the order of the calls.

    All ranks must make the same calls in the same order, as those do that train the same steps.
    """

    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self._first, self._group = rank == 0, group
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lengths")

    def ask(self, read: Callable[[], I64], pool: Executor) -> Future[I64]:
        """The result of rank 0's ``read``, which runs in ``pool`` and is called on no other rank.

        The future raises what ``read`` raised, on every rank; RuntimeError when a rank is gone.
        """
        reading = pool.submit(read) if self._first else None
        return self._thread.submit(self._tell, reading)

    def _tell(self, reading: Future[I64] | None) -> I64:
        error: BertmillError | None = None
        box: list[I64 | tuple[str, str] | None] = [None]
        if reading is not None:
            try:
                # Lengths fit into 2 bytes, and travel in each step.
                box = [reading.result().astype(np.uint16)]
            except BertmillError as caught:
                error, box = caught, [(type(caught).__name__, str(caught))]
        dist.broadcast_object_list(box, src=0, group=self._group)
        if error is not None:
            raise error
        found = box[0]
        if isinstance(found, np.ndarray):
            return found.astype(np.int64)
        kind, text = found or ("BertmillError", "rank 0 sent no lengths")
        raise getattr(errors, kind, BertmillError)(f"rank 0: {text}")

    def close(self) -> None:
        """Returns when all that was asked for is told: who left early would keep the other ranks waiting."""
        self._thread.shutdown(wait=True)
