"""The errors that a user can cause or encounter. Each is printed as one line without a traceback."""

from collections.abc import Mapping
from typing import Any

from schemas.redaction import redact


class BertmillError(Exception):
    """Base of all expected failures.

    The message states what is wrong, where (file or field), and what to do. It hides passwords and signatures
    in URLs.
    """

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(redact(value) if isinstance(value, str) else value for value in arguments))


class ConfigError(BertmillError):
    """A config that is missing, unreadable, misspelled or out of range."""


class InputError(BertmillError):
    """A source file that is missing, truncated, unreadable or in another format."""


class StorageError(BertmillError):
    """A storage call that failed after its retries or that the credentials do not permit."""


class DamagedParquetError(StorageError):
    """A file with the marks of Parquet around a footer that cannot be read."""


class StorageFullError(StorageError):
    """A disk or bucket that is full or has used up its quota."""


class CorpusError(BertmillError):
    """A corpus (manifest, shard, vocabulary, marker) that contradicts itself or its reader."""


class ShuffleLostError(BertmillError):
    """Shuffle files that another process removed when it finished the stage. A retry resumes."""


class CheckpointError(BertmillError):
    """A checkpoint that is incomplete, corrupt, claimed by a newer attempt, or does not fit the model."""


class PluginError(BertmillError):
    """An exception in the code of a plug-in, or an invalid result."""


class ClusterError(BertmillError):
    """A Ray cluster that does not answer, refuses the token, or fails a submitted job."""


def reason_of(problem: Mapping[str, Any]) -> str:
    """The reason in one of the errors that pydantic lists, without its label for a ValueError.

    >>> reason_of({"type": "value_error", "msg": "Value error, [UNK] is missing"})
    '[UNK] is missing'
    """
    return str(problem["msg"]).removeprefix("Value error, ")
