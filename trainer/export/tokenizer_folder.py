"""The tokenizer files of a model: what an export copies, and the ids of their special tokens."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from cluster import storage
from schemas.errors import CorpusError, InputError
from schemas.json_text import parse_json
from schemas.vocabulary import SPECIAL_TOKENS

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
PIECES = "pieces.txt"
"""The pieces of a corpus that was built with a tokenizer of Hugging Face, in WordPiece's notation."""
_VOCABULARIES = ("vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model", "spm.model")
# Copied as they are: WordPiece, BPE and SentencePiece vocabularies, and the settings of older versions.
VOCABULARY_FILES = (*_VOCABULARIES, "merges.txt", "special_tokens_map.json", "added_tokens.json")
_NAMES = {
    "[PAD]": "pad_token",
    "[UNK]": "unk_token",
    "[CLS]": "cls_token",
    "[SEP]": "sep_token",
    "[MASK]": "mask_token",
}


# As RoBERTa and SentencePiece spell them, for folders without settings.
_OTHERS = {"[PAD]": "<pad>", "[UNK]": "<unk>", "[CLS]": "<s>", "[SEP]": "</s>", "[MASK]": "<mask>"}


def load_tokenizer(folder: str) -> Tokenizer:
    """The tokenizer in ``folder``: its tokenizer.json, or what transformers makes of older files.

    Raises InputError when there is none, or when it is damaged.
    """
    uri = storage.join(folder, TOKENIZER)
    if not storage.exists(uri):
        return _converted(folder, uri)
    try:
        tokenizer: Tokenizer = Tokenizer.from_str(storage.read_bytes(uri).decode())
    except Exception as error:  # tokenizers raises nothing more specific
        raise InputError(f"{uri}: not a tokenizer: {' '.join(str(error).split())[:200]}") from error
    return tokenizer


def _converted(folder: str, uri: str) -> Tokenizer:
    """The tokenizer of the vocab.txt, vocab.json or SentencePiece model in a local folder."""
    if not any((Path(folder) / name).is_file() for name in _VOCABULARIES):
        raise InputError(
            f"{uri}: no such file; a tokenizer folder needs it; to use a run, export it first with `bertmill"
            " export`"
        )
    try:
        from transformers import AutoTokenizer

        converted: Tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True).backend_tokenizer
    except (ImportError, OSError, ValueError, AttributeError) as error:
        raise InputError(
            f"{uri}: no such file, and the other files could not be converted"
            f" ({' '.join(str(error).split())[:150]}); install bertmill[export], or save the tokenizer as"
            " tokenizer.json"
        ) from error
    return converted


def special_ids(folder: str, vocab_size: int) -> dict[str, int]:
    """[PAD], [UNK], [CLS], [SEP] and [MASK] -> the id of the corresponding token in ``folder``.

    Raises InputError when there is no tokenizer, CorpusError when a special token is not in the vocabulary,
    or when the vocabulary is larger than that of the model.
    """
    uri = storage.join(folder, TOKENIZER)
    tokenizer = load_tokenizer(folder)
    pieces = tokenizer.get_vocab()
    if max(pieces.values(), default=0) >= vocab_size:
        raise CorpusError(f"{uri}: {len(pieces)} entries, but the model's vocabulary has {vocab_size}")
    ids = {}
    for ours in SPECIAL_TOKENS:
        token = special_token(folder, ours, tokenizer)
        if token not in pieces:
            raise CorpusError(f"{uri}: does not contain {token}")
        ids[ours] = pieces[token]
    return ids


def special_token(folder: str, ours: str, tokenizer: Tokenizer) -> str:
    """The token that corresponds to ``ours``, such as [MASK], in the ``tokenizer`` of ``folder``.

    Its settings name it. Without them it is ``ours``, or what RoBERTa has, if that is in the vocabulary.
    """
    named = _content(_settings(folder).get(_NAMES[ours]))
    if named is not None:
        return named
    other = _OTHERS[ours]
    return other if tokenizer.token_to_id(ours) is None and tokenizer.token_to_id(other) is not None else ours


def tokenizer_files(folder: str, max_length: int, input_names: list[str]) -> dict[str, bytes]:
    """The files of ``folder`` as they are, except for the model's length and inputs in the settings.

    Settings that a corpus has taken over with a tokenizer of Hugging Face also stay as they are.
    """
    files = {}
    for name in (TOKENIZER, TOKENIZER_CONFIG, *VOCABULARY_FILES):
        uri = storage.join(folder, name)
        if storage.exists(uri):
            files[name] = storage.read_bytes(uri)
    if storage.exists(storage.join(folder, PIECES)):
        return files
    settings = _settings(folder)
    settings |= {"model_max_length": max_length, "model_input_names": input_names}
    return files | {TOKENIZER_CONFIG: json_bytes(settings)}


def input_names(*, segments: bool) -> list[str]:
    """The inputs that a tokenizer makes for a model with or without token types."""
    return ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"]


def json_bytes(data: Mapping[str, Any]) -> bytes:
    """JSON with sorted keys and a newline at the end."""
    return (json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _settings(folder: str) -> dict[str, Any]:
    """tokenizer_config.json over special_tokens_map.json, which older versions also wrote."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", TOKENIZER_CONFIG):
        uri = storage.join(folder, name)
        if not storage.exists(uri):
            continue
        try:
            data = parse_json(storage.read_bytes(uri))
        except ValueError as error:
            raise CorpusError(f"{uri}: not JSON: {error}") from error
        if not isinstance(data, dict):
            raise CorpusError(f"{uri}: must be a JSON object")
        settings |= data
    return settings


def _content(token: Any) -> str | None:
    """The text of a special token, which the settings give as a text or as an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
