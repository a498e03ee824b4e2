"""BPE and SentencePiece tokenizers of models from elsewhere are used and saved as they are."""

from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer

from schemas.errors import InputError
from tests.support.hub_tokenizers import NAMES, TEXTS, byte_bpe, unigram
from tests.trainer.export.hub_models import random_model, save
from tests.trainer.finetuning.test_run import config, sentences
from trainer.export.tokenizer_folder import load_tokenizer, special_ids
from trainer.finetuning.run import finetune


def write_model(folder: Path, family: str, tokenizer: Tokenizer) -> str:
    save(random_model(family, vocab_size=tokenizer.get_vocab_size() + 3), folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **NAMES).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(("family", "make"), [("roberta", byte_bpe), ("xlm-roberta", unigram)])
def test_a_model_with_its_own_tokenizer_is_fine_tuned_and_saved(
    family: str, make: Any, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "m", family, make())
    assert special_ids(folder, 500) == {"[PAD]": 1, "[UNK]": 3, "[CLS]": 0, "[SEP]": 2, "[MASK]": 4}
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = load_tokenizer(folder)
    for text in TEXTS:
        assert ours.encode(text).ids == theirs(text).input_ids
        assert ours.encode(text, "the cat").ids == theirs(text, "the cat").input_ids
    files = sentences(tmp_path, lambda row: "yes" if "cat" in row[3:] else "no")
    fields: dict[str, Any] = {"epochs": 1, "save_model": True, "max_seq_length": 20}
    finetune(config(folder, tmp_path, "classification", files, **fields))
    saved = tmp_path / "out" / "model"
    assert (saved / "tokenizer.json").read_bytes() == (Path(folder) / "tokenizer.json").read_bytes()
    again = transformers.AutoTokenizer.from_pretrained(saved)
    for text in TEXTS:
        assert again(text).input_ids == theirs(text).input_ids
    classify = transformers.pipeline("text-classification", model=str(saved))
    (answer,) = classify([{"text": "dog mat ran", "text_pair": "w3 cat w4"}])
    assert answer["label"] in ("yes", "no")


def test_a_vocabulary_without_tokenizer_json_is_converted(tmp_path: Path) -> None:
    made = byte_bpe()
    made.model.save(str(tmp_path))
    settings = '{"tokenizer_class": "RobertaTokenizer", "model_max_length": 24}'
    (tmp_path / "tokenizer_config.json").write_text(settings)
    ours = load_tokenizer(str(tmp_path))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert ours.encode(text).ids == theirs(text).input_ids == made.encode(text).ids
    with pytest.raises(InputError, match=r"tokenizer.json: no such file; a tokenizer folder needs it"):
        load_tokenizer(str(tmp_path / "empty"))
