"""The size of a checkpoint: whether it is sharded, and whether it fits on the disk."""

import shutil
import tempfile
from pathlib import Path

from cluster import storage
from cluster.storage import local_files
from schemas.errors import CheckpointError
from trainer.startup.setup import Network

_WHOLE_BYTES = 1_000_000_000
"""Largest checkpoint of several ranks that one rank writes."""

_WHOLE_RANKS = 16
"""Number of ranks from which on each rank writes a part, for any size."""

_SPARE = 1.05
"""Names, headers and the manifest on top of the tensors."""


def state_bytes(network: Network) -> int:
    """About the bytes of a checkpoint: weights, buffers, two moments for each of them, and the average."""
    weights: int = sum(tensor.nbytes for tensor in network.model.state_dict().values())
    moments: int = 2 * sum(parameter.nbytes for parameter in network.parameters)
    average = network.average.state_dict() if network.average else {}
    return weights + moments + sum(tensor.nbytes for tensor in average.values())


def is_sharded(checkpoint_format: str, size: int, world_size: int) -> bool:
    """Whether each rank saves a part of a checkpoint of ``size`` bytes (``checkpoints.format``).

    >>> is_sharded("auto", 1_300_000_000, 2), is_sharded("auto", 1_300_000_000, 1)
    (True, False)
    """
    if checkpoint_format == "auto":
        return world_size > 1 and (size > _WHOLE_BYTES or world_size >= _WHOLE_RANKS)
    return checkpoint_format == "sharded"


def check_room(run_uri: str, size: int, checkpoint_format: str, world_size: int) -> None:
    """Raises CheckpointError when a checkpoint of ``size`` bytes does not fit.

    On remote storage, only the local folder in which this rank writes its files first can be examined.
    """
    local = storage.scheme(run_uri) == "file"
    folder = local_files.path_of(run_uri) if local else Path(tempfile.gettempdir())
    while not folder.exists():
        folder = folder.parent
    if not local and is_sharded(checkpoint_format, size, world_size):
        size //= world_size
    needed, free = int(size * _SPARE), shutil.disk_usage(folder).free
    if free < needed:
        advice = "" if local else "; it is the local folder for temporary files, set TMPDIR to a larger one"
        raise CheckpointError(
            f"{folder}: a checkpoint needs {needed / 2**20:,.0f} MiB, but {free / 2**20:,.0f} MiB are free"
            f"{advice}"
        )
