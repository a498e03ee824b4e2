"""Masks are filled as transformers does it, with every kind of tokenizer."""

from collections.abc import Callable
from pathlib import Path

import pytest
import transformers
from tokenizers import AddedToken, Tokenizer

from bertmill.fill_masks import fill_masks
from schemas.errors import InputError
from tests.support.hub_tokenizers import byte_bpe, unigram, wordpiece, write_tokenizer
from tests.trainer.export.hub_models import random_model, save
from trainer.export.directory import ModelCard, export_model, import_model


def model_with(tokenizer: Tokenizer, folder: Path, family: str) -> str:
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    size = tokenizer.get_vocab_size()
    save(random_model(family, vocab_size=size), folder)
    write_tokenizer(folder, tokenizer)
    return str(folder)


@pytest.mark.parametrize(
    ("make", "family"),
    [(byte_bpe, "roberta"), (unigram, "xlm-roberta"), (wordpiece, "distilbert"), (byte_bpe, "modernbert")],
)
def test_masks_are_filled_as_transformers_does(
    make: Callable[[], Tokenizer], family: str, tmp_path: Path
) -> None:
    uri = model_with(make(), tmp_path, family)
    text = "the cat <mask> on a mat"
    expected = transformers.pipeline("fill-mask", model=uri, tokenizer=uri)(text, top_k=4)
    (found,) = fill_masks(uri, [text], top=4)[0]
    assert [round(value, 4) for _, value in found] == [round(row["score"], 4) for row in expected]
    # For a byte that is not a character, or white space, the answer has the piece itself.
    for (word, _), row in zip(found, expected, strict=True):
        shown = row["token_str"].strip().removeprefix("##")
        assert word == shown or not shown or "\ufffd" in shown
    assert fill_masks(uri, [text.replace("<mask>", "[MASK]")], top=4) == [[found]]
    with pytest.raises(InputError, match=r"'the cat': contains no \[MASK\] or <mask>"):
        fill_masks(uri, ["the cat"])


def test_a_folder_without_settings_has_a_mask_token(tmp_path: Path) -> None:
    uri = model_with(byte_bpe(), tmp_path, "roberta")
    expected = fill_masks(uri, ["the <mask>"])
    (tmp_path / "tokenizer_config.json").unlink()
    assert fill_masks(uri, ["the [MASK]"]) == expected


def test_the_model_card_shows_the_mask_token_of_its_tokenizer(tmp_path: Path) -> None:
    uri = model_with(byte_bpe(), tmp_path / "their", "roberta")
    export_model(import_model(uri), str(tmp_path / "ours"), uri, ModelCard("mine"))
    assert '("This is a <mask>.")' in (tmp_path / "ours/README.md").read_text()
