"""The errors a user can cause or meet; every one is printed as a single line, without a traceback."""


class BertmillError(Exception):
    """Base of all expected failures. Its text names the file or field and what is wrong with it."""


class ConfigError(BertmillError):
    """A config file that is missing, unreadable, misspelt or out of range."""


class InputError(BertmillError):
    """A source file that is missing, truncated, of another format, or unreadable."""


class StorageError(BertmillError):
    """A storage call that failed after its retries, or that the credentials do not permit."""


class CorpusError(BertmillError):
    """A corpus (manifest, shard, vocabulary, marker) that contradicts itself or its reader."""


class CheckpointError(BertmillError):
    """A checkpoint that is incomplete, corrupt, fenced off, or does not fit the model."""


class ClusterError(BertmillError):
    """A Ray cluster that does not answer, refuses the token, or fails a submitted job."""
