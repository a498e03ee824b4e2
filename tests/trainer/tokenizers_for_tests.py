"""A tokenizer folder as a corpus build writes one, for a vocabulary of any size."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from schemas.vocabulary import SPECIAL_TOKENS

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
