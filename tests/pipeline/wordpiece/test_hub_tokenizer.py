"""Tests Hugging Face tokenizers: their ids, their words in WordPiece's notation, and errors."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from pipeline.wordpiece.hub_tokenizer import HubTokenizer, load_hub_tokenizer
from schemas.errors import CorpusError
from schemas.masking.targets import MaskingVocabulary
from tests.support.hub_tokenizers import SPECIAL, TEXTS, byte_bpe, unigram, wordpiece, write_tokenizer

MAKERS: dict[str, Callable[[], Tokenizer]] = {"bpe": byte_bpe, "unigram": unigram, "wordpiece": wordpiece}


@pytest.fixture(scope="module", params=MAKERS)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HubTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    return load_hub_tokenizer(write_tokenizer(folder, MAKERS[request.param]()))


@given(texts=st.lists(st.text(max_size=30) | st.sampled_from([*TEXTS, "<s> a <mask>", "[CLS] b </s>"])))
def test_ids_are_those_of_the_library_without_special_tokens(loaded: HubTokenizer, texts: list[str]) -> None:
    ids, offsets = loaded.encode_batch(texts)
    assert offsets.tolist()[0] == 0
    assert ids.dtype == np.int32
    vocabulary = loaded.vocabulary
    for number, text in enumerate(texts):
        own = ids[offsets[number] : offsets[number + 1]].tolist()
        spaced = f" {text}" if loaded.leading_space and text else text
        library = loaded.tokenizer.encode(spaced, add_special_tokens=False).ids
        blocked = set(loaded.blocked.tolist())
        assert own == [vocabulary.unknown_id if number in blocked else number for number in library]
        assert not set(own) & blocked


def test_pieces_say_where_words_continue(loaded: HubTokenizer) -> None:
    """The pieces of a word, and only these, spell the text between two spaces."""
    continuation = MaskingVocabulary.from_pieces(loaded.vocabulary.pieces).continuation
    text = TEXTS[0]
    words: list[list[int]] = []
    for number in loaded.encode_batch([text])[0].tolist():
        if continuation[number]:
            words[-1].append(number)
        else:
            words.append([number])
    spelled = ["".join(loaded.vocabulary.pieces[number].removeprefix("##") for number in w) for w in words]
    if "##s" in loaded.tokenizer.get_vocab():
        text = text.replace(".", " .")  # WordPiece separates punctuation from words
    assert [word.lstrip("\u2581\u0120") for word in spelled] == text.split(" ")
    assert max(map(len, words)) > 1


def test_the_notation_has_every_id_once_and_readable_text(loaded: HubTokenizer) -> None:
    pieces = loaded.vocabulary.pieces
    assert len(set(pieces)) == len(pieces) == max(loaded.tokenizer.get_vocab().values()) + 1
    names = {"[CLS]": "<s>", "[SEP]": "</s>", "[PAD]": "<pad>", "[UNK]": "<unk>", "[MASK]": "<mask>"}
    for ours, theirs in names.items():
        assert pieces.index(ours) == loaded.tokenizer.token_to_id(theirs)
    assert "cat" in pieces
    assert loaded.files["pieces.txt"].decode().split("\n")[:-1] == pieces


def test_added_special_tokens_are_neither_targets_nor_replacements(tmp_path: Path) -> None:
    made = unigram()
    made.add_special_tokens(["<extra>"])
    made.add_tokens([AddedToken("kept")])
    loaded = load_hub_tokenizer(write_tokenizer(tmp_path, made))
    extra = made.get_vocab()["<extra>"]
    assert loaded.vocabulary.pieces[extra] == f"[unused{extra}]"
    assert extra not in MaskingVocabulary.from_pieces(loaded.vocabulary.pieces).replacements
    assert extra not in loaded.encode_batch(["a <extra> kept"])[0]


def test_files_beside_it_are_kept_and_settings_made_where_there_are_none(tmp_path: Path) -> None:
    uri = write_tokenizer(tmp_path / "a", byte_bpe())
    (tmp_path / "a" / "merges.txt").write_text("#version")
    loaded = load_hub_tokenizer(uri)
    for name in ("tokenizer.json", "tokenizer_config.json", "merges.txt"):
        assert loaded.files[name] == (tmp_path / "a" / name).read_bytes()
    (tmp_path / "a" / "tokenizer_config.json").unlink()
    made = json.loads(load_hub_tokenizer(uri).files["tokenizer_config.json"])
    assert (made["mask_token"], made["cls_token"]) == ("<mask>", "<s>")


def bare(model: models.Model, trainer: trainers.Trainer) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def test_what_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"tokenizer.json: no such tokenizer file$"):
        load_hub_tokenizer(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CorpusError, match=r"tokenizer.json: not a tokenizer: "):
        load_hub_tokenizer(str(tmp_path / "tokenizer.json"))
    unmarked = bare(models.BPE(unk_token="<unk>"), trainers.BpeTrainer(vocab_size=90, special_tokens=SPECIAL))
    with pytest.raises(CorpusError, match="its pieces do not mark where words begin"):
        load_hub_tokenizer(write_tokenizer(tmp_path, unmarked))
    suffixed = bare(
        models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"),
        trainers.BpeTrainer(vocab_size=90, special_tokens=SPECIAL, end_of_word_suffix="</w>"),
    )
    with pytest.raises(CorpusError, match="marks where words end"):
        load_hub_tokenizer(write_tokenizer(tmp_path, suffixed))
    uri = write_tokenizer(tmp_path, unigram())
    (tmp_path / "tokenizer_config.json").write_text('{"mask_token": "<nothing>"}')
    with pytest.raises(CorpusError, match="has no <nothing>; name its mask_token"):
        load_hub_tokenizer(uri)


def test_a_normalizer_says_whether_case_is_kept(tmp_path: Path) -> None:
    made = unigram()
    assert load_hub_tokenizer(write_tokenizer(tmp_path, made)).vocabulary.cased
    made.normalizer = normalizers.Lowercase()
    assert not load_hub_tokenizer(write_tokenizer(tmp_path, made)).vocabulary.cased
