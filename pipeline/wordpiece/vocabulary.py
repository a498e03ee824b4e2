"""The WordPiece vocabulary: word counts, smoothing by language, and its files."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import WordPiece

from cluster import storage
from pipeline.text import scripts
from pipeline.wordpiece.character_table import Accents, default_accents, normalizer_for
from pipeline.wordpiece.word_counts import WORD_COUNTS, merge_word_counts
from schemas.errors import CorpusError
from schemas.json_text import parse_json
from schemas.redaction import has_query, public_uri
from schemas.vocabulary import CLS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK

VOCABULARY_NAME = "vocab.txt"
TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"


@dataclass(frozen=True)
class Vocabulary:
    """The subwords in the order of their ids, and how to fold text before splitting it."""

    pieces: list[str]
    cased: bool
    # None means BERT's rule for this value of cased.
    accents: Accents | None = None
    # SHA-256 of vocab.txt.
    sha256: str = ""
    index: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", {piece: number for number, piece in enumerate(self.pieces)})

    @property
    def special_ids(self) -> set[int]:
        """The ids of the five special tokens."""
        return {self.index[token] for token in SPECIAL_TOKENS}

    @property
    def unknown_id(self) -> int:
        """The id of [UNK]."""
        return self.index[UNK]


# ---------------------------------------------------------------- smoothing


def smoothing_factors(totals: Mapping[str, int], exponent: float) -> dict[str, Decimal]:
    """The factor for each language's counts that turns its share p into p^exponent (mBERT).

    The smallest factor is 1, so that rounding loses no count. The arithmetic is decimal, because the last bit
    of a float power differs between machines.
    """
    grand = sum(totals.values())
    with localcontext() as context:
        context.prec = 40
        power = Decimal(str(exponent)) - 1
        raw = {lang: (Decimal(total) / grand) ** power for lang, total in sorted(totals.items()) if total}
        least = min(raw.values(), default=Decimal(1))
        return {lang: value / least for lang, value in raw.items()}


def scaled_count(count: int, factor: Decimal) -> int:
    """``count * factor``, rounded half to even."""
    return int((count * factor).to_integral_value(ROUND_HALF_EVEN))


def smooth_tables(tables: Mapping[str, pa.Table], totals: Mapping[str, int], exponent: float) -> pa.Table:
    """One table of word counts, sorted by word. Weights the share p of each language as p^exponent.

    ``totals`` are all words of each language, including those left out of the tables. With exponent 1, or
    with one language, the counts are exact sums.
    """
    factors = smoothing_factors(totals, exponent)
    parts = []
    for lang in sorted(factors.keys() & tables.keys()):
        counts = tables[lang]["count"].to_numpy()
        distinct, which = np.unique(counts, return_inverse=True)
        scaled = np.array([scaled_count(count, factors[lang]) for count in distinct.tolist()], np.int64)
        parts.append(pa.table([tables[lang]["word"], pa.array(scaled[which])], schema=WORD_COUNTS))
    return merge_word_counts(parts)


def languages_losing_marks(tables: Iterable[tuple[str, pa.Table]]) -> list[str]:
    """Languages with at least 10% of their words in scripts that lose vowel signs with their accents.

    A language may have several ``tables`` of word counts.
    """
    affected, total = Counter[str](), Counter[str]()
    for lang, table in tables:
        firsts = pc.utf8_slice_codeunits(table["word"], 0, 1)
        losing = pc.filter(table["count"], pc.is_in(firsts, value_set=_vowel_sign_characters()))
        affected[lang] += pc.sum(losing).as_py() or 0
        total[lang] += pc.sum(table["count"]).as_py() or 0
    return [lang for lang in sorted(total) if 10 * affected[lang] >= max(total[lang], 1)]


@cache
def _vowel_sign_characters() -> pa.Array:
    return pa.array([chr(code) for code in range(0x3100) if scripts.has_vowel_signs(chr(code))], pa.string())


# ---------------------------------------------------------------- files


def vocabulary_bytes(pieces: list[str]) -> bytes:
    """The content of vocab.txt, with one subword per line."""
    return "".join(piece + "\n" for piece in pieces).encode()


def accents_of(cased: bool, accents: Accents | None, trained: bool) -> Accents:
    """How to treat accents, with the default for a config that does not set it.

    The default for a trained vocabulary keeps the vowel signs of all scripts. For a given vocabulary, the
    default is BERT's rule.
    """
    if accents is not None:
        return accents
    return "strip_letters" if trained and not cased else default_accents(cased)


def write_tokenizer(
    dir_uri: str, pieces: list[str], cased: bool, accents: Accents | None = None, max_length: int = 512
) -> Vocabulary:
    """Writes vocab.txt, tokenizer.json and tokenizer_config.json, which transformers loads.

    The bytes depend only on the arguments. Raises CorpusError if the subwords are not a vocabulary.
    """
    raw = vocabulary_bytes(pieces)
    vocabulary = parse_vocabulary(raw, storage.join(dir_uri, VOCABULARY_NAME), cased, accents)
    storage.put_bytes(storage.join(dir_uri, TOKENIZER_NAME), tokenizer_json(vocabulary))
    config = json.dumps(tokenizer_config(vocabulary, max_length), indent=1, sort_keys=True) + "\n"
    storage.put_bytes(storage.join(dir_uri, TOKENIZER_CONFIG_NAME), config.encode())
    storage.put_bytes(storage.join(dir_uri, VOCABULARY_NAME), raw)
    return vocabulary


def tokenizer_json(vocabulary: Vocabulary) -> bytes:
    """The vocabulary and its rules as a `tokenizers` file."""
    accents = vocabulary.accents or default_accents(vocabulary.cased)
    tokenizer = Tokenizer(WordPiece(dict(vocabulary.index), unk_token=UNK))
    tokenizer.normalizer = normalizer_for(vocabulary.cased, accents)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
        special_tokens=[(token, vocabulary.index[token]) for token in (CLS, SEP)],
    )
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    # Re-serialize, so that the order of a map inside the library does not matter.
    return (json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, indent=1) + "\n").encode()


def tokenizer_config(vocabulary: Vocabulary, max_length: int) -> dict[str, Any]:
    """The fields of tokenizer_config.json, which transformers needs besides tokenizer.json."""
    accents = vocabulary.accents or default_accents(vocabulary.cased)
    return {
        "accents": accents,
        "cls_token": CLS,
        "do_lower_case": not vocabulary.cased,
        "mask_token": MASK,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "model_max_length": max_length,
        "pad_token": PAD,
        "sep_token": SEP,
        "strip_accents": {"keep": False, "strip": True, "strip_letters": False}[accents],
        "tokenize_chinese_chars": True,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": UNK,
    }


def load_vocabulary(uri: str, cased: bool | None = None, accents: Accents | None = None) -> Vocabulary:
    """The vocabulary in ``uri``, a vocab.txt or its folder.

    With ``cased`` None, the tokenizer_config.json next to it decides. Raises CorpusError that names file and
    line if the file is missing or not a vocabulary, or if it is unknown whether it is cased.
    """
    if not public_uri(uri).endswith(".txt"):
        uri = storage.join(uri, VOCABULARY_NAME)
    try:
        raw = storage.read_bytes(uri)
    except FileNotFoundError as error:
        raise CorpusError(f"{uri}: no such vocabulary file") from error
    if cased is None:
        cased, accents = _folding_beside(uri, accents)
    return parse_vocabulary(raw, uri, cased, accents)


def _folding_beside(uri: str, accents: Accents | None) -> tuple[bool, Accents | None]:
    if has_query(uri):
        raise CorpusError(f"{uri}: unknown whether it is cased: set `cased`, or give a folder")
    config_uri = uri[: uri.rfind("/") + 1] + TOKENIZER_CONFIG_NAME
    try:
        config = parse_json(storage.read_bytes(config_uri))
        lower = config["do_lower_case"]
    except FileNotFoundError as error:
        raise CorpusError(f"{uri}: unknown whether it is cased: there is no {config_uri}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CorpusError(f"{config_uri}: has no do_lower_case") from error
    if accents is None and "accents" in config:
        accents = config["accents"]
    elif accents is None and isinstance(config.get("strip_accents"), bool):
        accents = "strip" if config["strip_accents"] else "keep"
    return not lower, accents


def parse_vocabulary(raw: bytes, origin: str, cased: bool, accents: Accents | None = None) -> Vocabulary:
    """The vocabulary in the bytes of a vocab.txt. Raises CorpusError that names ``origin`` and line."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise CorpusError(f"{origin}:{line}: not UTF-8") from error
    pieces = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    seen: dict[str, int] = {}
    for number, piece in enumerate(pieces, start=1):
        if not piece:
            raise CorpusError(f"{origin}:{number}: empty line")
        if piece in seen:
            raise CorpusError(f"{origin}:{number}: duplicate {piece!r}, first in line {seen[piece]}")
        seen[piece] = number
    absent = [token for token in SPECIAL_TOKENS if token not in seen]
    if absent:
        raise CorpusError(f"{origin}: has no {absent[0]}")
    return Vocabulary(pieces, cased, accents, hashlib.sha256(raw).hexdigest())
