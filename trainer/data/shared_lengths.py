"""The lengths of a step's rows: rank 0 reads them and broadcasts them.

Every rank needs the lengths of all rows of a global batch to compute its own share. If each rank read the
``length`` columns, 256 ranks would make 256 times the requests for the same few kilobytes.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import numpy as np
import torch.distributed as dist

from schemas import errors
from schemas.arrays import I64
from schemas.errors import BertmillError


class SharedLengths:
    """Broadcasts lengths over its own process group, in one thread, in the order of the calls.

    All ranks must make the same calls in the same order, as ranks that train the same steps do.
    """

    def __init__(self, rank: int, group: dist.ProcessGroup) -> None:
        self._first, self._group = rank == 0, group
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lengths")

    def broadcast(self, read: Callable[[], I64], pool: Executor) -> Future[I64]:
        """The result of ``read`` on rank 0, where it runs in ``pool``. Other ranks do not call it.

        The future raises the error of ``read`` on every rank, and RuntimeError when a rank has died.
        """
        reading = pool.submit(read) if self._first else None
        return self._thread.submit(self._broadcast, reading)

    def _broadcast(self, reading: Future[I64] | None) -> I64:
        error: BertmillError | None = None
        box: list[I64 | tuple[str, str] | None] = [None]
        if reading is not None:
            try:
                # Lengths fit into 2 bytes, and are sent in every step.
                box = [reading.result().astype(np.uint16)]
            except BertmillError as caught:
                error, box = caught, [(type(caught).__name__, str(caught))]
        dist.broadcast_object_list(box, src=0, group=self._group)
        if error is not None:
            raise error
        received = box[0]
        if isinstance(received, np.ndarray):
            return received.astype(np.int64)
        kind, text = received or ("BertmillError", "rank 0 sent no lengths")
        raise getattr(errors, kind, BertmillError)(f"rank 0: {text}")

    def close(self) -> None:
        """Waits for all broadcasts, because the others would wait for a rank that leaves early."""
        self._thread.shutdown(wait=True)
