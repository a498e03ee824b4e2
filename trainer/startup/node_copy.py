"""The checkpoint to resume from, read from storage once by each machine.

If 512 ranks each downloaded 5 GB, a restart would move 2.6 TB. The lowest rank of a machine downloads and
verifies the files, and the other ranks of the machine load its copy.
"""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trainer.checkpoint.reading import LoadedCheckpoint, open_checkpoint
from trainer.distributed.ranks import Ranks
from trainer.startup.resume import Source


@contextmanager
def shared_checkpoint(source: Source, ranks: Ranks) -> Iterator[LoadedCheckpoint | None]:
    """Yields the verified checkpoint, whose files are on this machine, or None for a new run.

    All ranks must enter it at the same point, and leave it only when all of them have loaded the files, as
    ``ranks.together()`` inside does. Raises CheckpointError, StorageError on all ranks.
    """
    if source.uri is None:
        yield None
        return
    leader = leader_of(ranks.gather(machine()), ranks.rank)
    checkpoint: LoadedCheckpoint | None = None
    try:
        with ranks.together():
            checkpoint = source.verified or open_checkpoint(source.uri)
            if leader == ranks.rank and checkpoint.folder is None:
                checkpoint.verify()
        folder = ranks.gather(str(checkpoint.folder))[leader]
        with ranks.together():
            # A container may have the host's name but not its files.
            if leader != ranks.rank and Path(folder).is_dir():
                checkpoint.use_verified(Path(folder))
        yield checkpoint
    finally:
        if checkpoint is not None:
            checkpoint.close()


def machine() -> str:
    """A name that the processes of this machine share, and those of others do not."""
    return f"{socket.gethostname()}-{os.getuid()}"


def leader_of(machines: Sequence[str], rank: int) -> int:
    """The lowest rank on the machine of ``rank``. ``machines`` has the machine of each rank.

    >>> [leader_of(["a", "a", "b", "b"], rank) for rank in range(4)]
    [0, 0, 2, 2]
    """
    return machines.index(machines[rank])
