"""Uses Hugging Face tokenizers (tokenizer.json: WordPiece, BPE or Unigram) instead of a trained vocabulary.

Their files stay unchanged. In addition a build writes pieces.txt with the vocabulary in WordPiece's notation:
a piece inside a word begins with ``##``, and the special tokens have BERT's names. Masking, checks and
readers of a corpus need only this file.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from cluster import storage
from pipeline.wordpiece.basic_tokenization import as_array
from pipeline.wordpiece.character_table import Accents
from pipeline.wordpiece.tokenization import WordPieceTokenizer
from pipeline.wordpiece.vocabulary import (
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_NAME,
    Vocabulary,
    load_vocabulary,
    parse_vocabulary,
    vocabulary_bytes,
)
from schemas.arrays import I32, I64
from schemas.errors import CorpusError
from schemas.json_text import parse_json
from schemas.redaction import public_uri
from schemas.vocabulary import CONTINUATION, SPECIAL_TOKENS

PIECES_NAME = "pieces.txt"
# Files that transformers stores next to a tokenizer.json.
_BESIDE = (
    "special_tokens_map.json", TOKENIZER_CONFIG_NAME, "added_tokens.json", "vocab.txt", "vocab.json",
    "merges.txt", "sentencepiece.bpe.model", "spiece.model", "spm.model",
)  # fmt: skip
# Our special token -> its field in tokenizer_config.json, and its usual names.
_ROLES = {
    "[PAD]": ("pad_token", "[PAD]", "<pad>"),
    "[UNK]": ("unk_token", "[UNK]", "<unk>"),
    "[CLS]": ("cls_token", "[CLS]", "<s>"),
    "[SEP]": ("sep_token", "[SEP]", "</s>"),
    "[MASK]": ("mask_token", "[MASK]", "<mask>"),
}
_SPACE = "\u2581"  # SentencePiece's mark of a space
_BYTE_SPACE = "\u0120"  # the same in byte-level BPE
_UNUSED = "[unused{}]"


class Encoder(Protocol):
    """The part of a tokenizer that a build needs."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The pieces in WordPiece's notation."""

    def encode_batch(self, sentences: pa.Array | pa.ChunkedArray | Iterable[str]) -> tuple[I32, I64]:
        """The concatenated ids of n sentences, and their n + 1 offsets. See WordPieceTokenizer."""


@dataclass(frozen=True)
class HubTokenizer:
    """A tokenizer.json and the files next to it."""

    files: Mapping[str, bytes]
    """Name -> content, which the build copies."""
    vocabulary: Vocabulary
    tokenizer: Tokenizer
    leading_space: bool
    """Whether a sentence needs a leading space, so that the first word gets the mark of a word."""
    blocked: I64
    """Ids of special tokens, which text must not produce."""

    def encode_batch(self, sentences: pa.Array | pa.ChunkedArray | Iterable[str]) -> tuple[I32, I64]:
        """See Encoder. Special tokens in a text are plain text. If they are pieces, they become [UNK]."""
        space = " " if self.leading_space else ""
        texts = [f"{space}{text}" if text else "" for text in as_array(sentences).to_pylist()]
        encoded = [one.ids for one in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(ids) for ids in encoded], out=offsets[1:])
        ids = np.fromiter(chain.from_iterable(encoded), np.int32, count=int(offsets[-1]))
        ids[np.isin(ids, self.blocked)] = self.vocabulary.unknown_id
        return ids, offsets


def is_hub_tokenizer(uri: str) -> bool:
    """Whether ``uri`` names a tokenizer.json instead of a vocab.txt."""
    return public_uri(uri).endswith(".json")


def open_encoder(uri: str, cased: bool, accents: Accents | None) -> Encoder:
    """The tokenizer of a build, from the file that its manifest names. Raises CorpusError."""
    if uri.endswith(f"/{PIECES_NAME}"):
        return load_hub_tokenizer(uri.removesuffix(PIECES_NAME) + TOKENIZER_NAME)
    return WordPieceTokenizer(load_vocabulary(uri, cased, accents))


def load_hub_tokenizer(uri: str) -> HubTokenizer:
    """The tokenizer in the file ``uri``. The tokenizer_config.json next to it names its special tokens.

    Raises CorpusError if the file is missing or not a tokenizer, if a special token is missing, or if it does
    not mark where words begin.
    """
    try:
        raw = storage.read_bytes(uri)
    except FileNotFoundError as error:
        raise CorpusError(f"{uri}: no such tokenizer file") from error
    try:
        tokenizer, content = Tokenizer.from_str(raw.decode()), parse_json(raw)
    except Exception as error:  # tokenizers raises nothing more specific
        raise CorpusError(f"{uri}: not a tokenizer: {' '.join(str(error).split())[:200]}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    folder = uri[: uri.rfind("/") + 1]
    files = {name: storage.read_bytes(folder + name) for name in _BESIDE if storage.exists(folder + name)}
    roles = _special_tokens(tokenizer, _settings(files, folder), uri)
    added = tokenizer.get_added_tokens_decoder()
    special = {token.content: number for number, token in added.items() if token.special}
    pieces = _pieces(tokenizer, _marks(content, tokenizer, uri), roles, special)
    vocabulary = parse_vocabulary(vocabulary_bytes(pieces), uri, cased=_is_cased(tokenizer))
    files.setdefault(TOKENIZER_CONFIG_NAME, _config(roles))
    ids = vocabulary.special_ids | set(special.values())
    return HubTokenizer(
        files={TOKENIZER_NAME: raw, **files, PIECES_NAME: vocabulary_bytes(pieces)},
        vocabulary=vocabulary,
        tokenizer=tokenizer,
        leading_space=_needs_space(tokenizer, content),
        blocked=np.array(sorted(ids - {vocabulary.unknown_id}), np.int64),
    )


def write_hub_tokenizer(folder: str, tokenizer: HubTokenizer) -> str:
    """Writes all files of the tokenizer. Returns the URI of its pieces.txt."""
    for name, content in tokenizer.files.items():
        storage.put_bytes(storage.join(folder, name), content)
    return storage.join(folder, PIECES_NAME)


def _settings(files: Mapping[str, bytes], folder: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", TOKENIZER_CONFIG_NAME):
        if name in files:
            try:
                settings |= parse_json(files[name])
            except (ValueError, TypeError) as error:
                raise CorpusError(f"{folder}{name}: not a JSON object") from error
    return settings


def _special_tokens(tokenizer: Tokenizer, settings: Mapping[str, Any], uri: str) -> dict[str, str]:
    """Our special tokens -> the tokenizer's."""
    tokens = {}
    for ours, (field, *names) in _ROLES.items():
        given = settings.get(field)
        given = given.get("content") if isinstance(given, dict) else given
        candidates = [given] if isinstance(given, str) else names
        token = next((name for name in candidates if tokenizer.token_to_id(name) is not None), None)
        if token is None:
            listed = " or ".join(candidates)
            raise CorpusError(
                f"{uri}: has no {listed}; name its {field} in {TOKENIZER_CONFIG_NAME} next to it"
            )
        tokens[ours] = token
    if len(set(tokens.values())) < len(tokens):
        raise CorpusError(f"{uri}: one token has two of the roles {', '.join(_ROLES)}")
    return tokens


@dataclass(frozen=True)
class _Marks:
    """How a vocabulary marks words: with ``##`` on pieces that continue one, or with the space before it."""

    continuation: str | None
    space: str | None
    byte_level: bool = False

    def continues(self, piece: str) -> bool:
        if self.continuation is not None:
            return piece.startswith(self.continuation)
        return self.space is not None and not piece.startswith(self.space)

    def text(self, piece: str) -> str:
        """The piece without its mark. Bytes of byte-level BPE become text if they are whole characters."""
        mark = self.continuation if self.continues(piece) else self.space
        bare = piece.removeprefix(mark) if mark else piece
        if not bare:
            return piece
        if not self.byte_level:
            return bare
        try:
            return bytes(_BYTE_OF[char] for char in bare).decode()
        except (KeyError, UnicodeDecodeError):
            return bare


def _byte_alphabet() -> dict[str, int]:
    """The characters that represent bytes in byte-level BPE (openai/gpt-2, encoder.py, bytes_to_unicode)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _marks(content: Mapping[str, Any], tokenizer: Tokenizer, uri: str) -> _Marks:
    model = content["model"]
    if model.get("end_of_word_suffix"):
        raise CorpusError(
            f"{uri}: marks where words end ({model['end_of_word_suffix']!r}), not where they begin"
        )
    if model.get("continuing_subword_prefix"):
        return _Marks(model["continuing_subword_prefix"], None)
    if "ByteLevel" in json.dumps(content.get("pre_tokenizer")):
        return _Marks(None, _BYTE_SPACE, byte_level=True)
    if any(piece.startswith(_SPACE) for piece in tokenizer.get_vocab()):
        return _Marks(None, _SPACE)
    raise CorpusError(f"{uri}: its pieces do not mark where words begin (with ##, {_SPACE} or {_BYTE_SPACE})")


def _pieces(
    tokenizer: Tokenizer, marks: _Marks, roles: Mapping[str, str], special: Mapping[str, int]
) -> list[str]:
    """The vocabulary in WordPiece's notation, by id.

    Ids without a piece, and special tokens without a role in BERT, are [unusedN].
    """
    index = tokenizer.get_vocab()
    names = {number: piece for piece, number in index.items()}
    ours = {index[token]: name for name, token in roles.items()}
    pieces: list[str] = []
    used = set(SPECIAL_TOKENS)
    for number in range(max(names) + 1):
        piece = names.get(number)
        if number in ours:
            pieces.append(ours[number])
            continue
        if piece is None or piece in special:
            name = _UNUSED.format(number)
        else:
            prefix = CONTINUATION if marks.continues(piece) else ""
            text = marks.text(piece)
            misread = not prefix and text.startswith(CONTINUATION)
            odd = "\n" in text or "\r" in text or misread or f"{prefix}{text}" in used
            # The text of another piece, or text that a reader would misinterpret.
            name = f"{prefix}<{number}>" if odd else f"{prefix}{text}"
        while name in used:  # a piece may look like the substitute of another one
            name = name.replace("[unused", "[unused0") if "[unused" in name else f"{name}_"
        used.add(name)
        pieces.append(name)
    return pieces


def _is_cased(tokenizer: Tokenizer) -> bool:
    normalizer = tokenizer.normalizer
    return normalizer is None or "A" in normalizer.normalize_str("A")


def _needs_space(tokenizer: Tokenizer, content: Mapping[str, Any]) -> bool:
    """Whether the first word of a text lacks the mark that it has after a space."""
    if content["model"].get("continuing_subword_prefix"):
        return False
    marks = (_SPACE, _BYTE_SPACE)
    plain = tokenizer.encode("a", add_special_tokens=False).tokens
    spaced = tokenizer.encode(" a", add_special_tokens=False).tokens
    return not plain[:1][0].startswith(marks) and spaced[:1][0].startswith(marks)


def _config(roles: Mapping[str, str]) -> bytes:
    """A tokenizer_config.json for a tokenizer.json without one."""
    fields = {_ROLES[ours][0]: token for ours, token in roles.items()}
    fields["tokenizer_class"] = "PreTrainedTokenizerFast"
    return (json.dumps(fields, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
