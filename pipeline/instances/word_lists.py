"""Reads the word list for scripts without spaces. A build copies it into the corpus for all readers."""

import hashlib
from functools import lru_cache

from cluster import storage
from pipeline.config import BuildConfig
from schemas.errors import ConfigError, CorpusError
from schemas.masking.word_list import WordList, parse_words

WORD_LIST_PATH = "tokenizer/words.txt"


def read_word_list(config: BuildConfig) -> bytes | None:
    """The bytes of the config's word list, or None when the config names no list.

    Raises ConfigError when the file is missing, not UTF-8, or empty.
    """
    source = config.instances.masking.words
    if source is None:
        return None
    try:
        raw = storage.read_bytes(source)
        words = parse_words(raw)
    except FileNotFoundError as error:
        raise ConfigError(f"instances.masking.words: {source}: no such file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"instances.masking.words: {source}: not UTF-8: {error.reason}") from error
    if not words:
        raise ConfigError(f"instances.masking.words: {source}: contains no words")
    return raw


def copy_word_list(config: BuildConfig) -> str | None:
    """Copies the config's word list below the output. Returns its SHA-256, or None without a list.

    Raises ConfigError as `read_word_list` does.
    """
    raw = read_word_list(config)
    if raw is None:
        return None
    storage.put_bytes(storage.join(config.output, WORD_LIST_PATH), raw)
    return hashlib.sha256(raw).hexdigest()


@lru_cache(maxsize=2)
def load_word_list(corpus: str, sha256: str, pieces: tuple[str, ...]) -> WordList:
    """The word list of the corpus. Raises CorpusError when it is missing or has another hash."""
    uri = storage.join(corpus, WORD_LIST_PATH)
    try:
        raw = storage.read_bytes(uri)
    except FileNotFoundError as error:
        raise CorpusError(f"{uri}: the word list is missing") from error
    if hashlib.sha256(raw).hexdigest() != sha256:
        raise CorpusError(f"{uri}: is not the word list in the manifest (sha256 differs)")
    return WordList.from_pieces(pieces, parse_words(raw))
