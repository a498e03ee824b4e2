"""A line in the report of ``bertmill doctor``, and the check of a storage folder."""

from dataclasses import dataclass

from cluster import storage
from cluster.storage import local_files
from schemas.errors import BertmillError


@dataclass(frozen=True)
class Finding:
    """One line of the report. ``level`` is ok, warn or fail."""

    level: str
    text: str


def try_storage(uri: str) -> Finding:
    """Checks that a folder can be written and that conditional puts work there. Removes its test files."""
    if storage.scheme(uri) == "file":
        folder = local_files.path_of(uri)
        while not folder.exists():
            folder = folder.parent
        tried = str(folder)
    else:
        tried = uri
    try:
        storage.check_writable(tried)
    except (BertmillError, OSError) as error:
        return Finding("fail", f"{uri}: {error}")
    return Finding("ok", f"{uri}: read, write and conditional write work")
