"""Computes BERT's words and ids with the `tokenizers` library itself, one sentence at a time."""

import bz2
import gzip
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordPiece

ROOT = Path(__file__).parents[2]


@cache
def bert_normalizer(cased: bool, strip_accents: bool) -> Any:
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=strip_accents, lowercase=not cased
    )


def bert_words(text: str, cased: bool, strip_accents: bool) -> list[str]:
    folded = bert_normalizer(cased, strip_accents).normalize_str(unicodedata.normalize("NFC", text))
    return [word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(folded)]


def bert_tokenizer(pieces: list[str], cased: bool) -> Tokenizer:
    """BertTokenizerFast's backend, without detection of special tokens in plain text."""
    tokenizer = Tokenizer(WordPiece({piece: n for n, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = bert_normalizer(cased, strip_accents=not cased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def bert_ids(tokenizer: Tokenizer, sentences: list[str]) -> list[list[int]]:
    composed = [unicodedata.normalize("NFC", sentence) for sentence in sentences]
    return [encoding.ids for encoding in tokenizer.encode_batch(composed)]


@cache
def sample_sentences() -> tuple[str, ...]:
    """Real lines in about a hundred languages, from the raw pages of the bundled dumps and from books."""
    lines: list[str] = []
    for path in sorted((ROOT / "sample").rglob("*")):
        if path.suffix == ".bz2":
            lines += bz2.decompress(path.read_bytes()).decode("utf-8", "replace").splitlines()
        elif path.suffix == ".gz":
            lines += gzip.decompress(path.read_bytes()).decode().splitlines()
    return tuple(line for line in lines if line.strip())
