"""A tokenizer folder like that of a corpus build, for a vocabulary of any size, alone and with a corpus."""

import hashlib
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from schemas.vocabulary import SPECIAL_TOKENS
from tests.support.manifests import sealed
from tests.trainer.synthetic import write_corpus

WORDS = ["the", "cat", "sat", "on", "mat", "##s", "a", "dog", "ran", "."]


def write_tokenizer(folder: Path, size: int) -> Path:
    pieces = [*SPECIAL_TOKENS, *WORDS]
    pieces += [f"w{number}" for number in range(size - len(pieces))]
    tokenizer = Tokenizer(WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in pieces))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "do_lower_case": True,
        **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_corpus_with_tokenizer(folder: Path, size: int, **fields: Any) -> Path:
    """`write_corpus` with a tokenizer folder beside it, whose vocabulary the manifest names by its hash."""
    path = write_corpus(folder, vocab_size=size, **fields)
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    vocabulary = write_tokenizer(folder / "tokenizer", size) / "vocab.txt"
    manifest["vocabulary"]["sha256"] = hashlib.sha256(vocabulary.read_bytes()).hexdigest()
    path.write_bytes(sealed(manifest))
    return path
