"""Exports load in transformers with equal logits and nothing missing. Checkpoints come back as they were."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

from schemas.errors import CheckpointError, ConfigError, CorpusError
from tests.trainer.model.test_pretraining import padded
from tests.trainer.models import STYLES, VOCAB, small_config, small_model
from tests.trainer.packing import pack, random_rows
from tests.trainer.tokenizers_for_tests import write_tokenizer
from trainer.export.directory import ModelCard, export_model, import_model
from trainer.export.families import family_of
from trainer.model.pretraining import BertPretraining

EXPORTED = {
    "bert": "BertForPreTraining",
    "roberta": "BertForMaskedLM",
    "albert": "AlbertForPreTraining",
    "modern": "ModernBertForMaskedLM",
}
ROWS = random_rows(8, VOCAB, lengths=(4, 32))
CARD = ModelCard(name="someone/small", languages=("de", "en"), manifest_sha256="ab" * 32, step=1234)


def export(model: BertPretraining, folder: Path) -> Path:
    tokenizer = write_tokenizer(folder / "tokenizer", VOCAB)
    export_model(model, str(folder / "model"), str(tokenizer), CARD)
    return folder / "model"


def load(folder: Path, architecture: str) -> Any:
    model, info = getattr(transformers, architecture).from_pretrained(folder, output_loading_info=True)
    assert {name: list(keys) for name, keys in info.items() if keys} == {}
    return model.eval()


def their_logits(model: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    ids, segments, mask = padded(ROWS, width=36)
    inputs = {"input_ids": ids * mask, "attention_mask": mask}
    if model.config.model_type != "modernbert":
        inputs["token_type_ids"] = segments
    with torch.no_grad():
        output = model(**inputs)
    tokens = output.get("prediction_logits", output.get("logits"))
    pairs = output.get("seq_relationship_logits", output.get("sop_logits"))
    places = [tokens[number, place] for number, row in enumerate(ROWS) for place in sorted(row.masked)]
    return torch.stack(places), pairs


@pytest.mark.parametrize("style", EXPORTED)
def test_logits_equal_those_of_transformers(style: str, tmp_path: Path) -> None:  # trainer-049, trainer-050
    model = small_model(style)
    loaded = load(export(model, tmp_path), EXPORTED[style])
    ours = model(pack(ROWS))
    tokens, pairs = their_logits(loaded)
    assert tokens.shape[1] == VOCAB
    torch.testing.assert_close(ours.padded_token_logits[:, :VOCAB], tokens, rtol=0, atol=1e-4)
    if ours.pair_logits is not None:
        torch.testing.assert_close(ours.pair_logits, pairs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("style", EXPORTED)
def test_decoder_is_tied_after_loading(style: str, tmp_path: Path) -> None:  # trainer-049
    loaded = load(export(small_model(style), tmp_path), EXPORTED[style])
    embeddings, decoder = loaded.get_input_embeddings(), loaded.get_output_embeddings()
    assert decoder.weight.data_ptr() == embeddings.weight.data_ptr()


@pytest.mark.parametrize("style", EXPORTED)
def test_import_gives_the_exported_model(style: str, tmp_path: Path) -> None:
    model = small_model(style)
    again = import_model(str(export(model, tmp_path)))
    assert again.config == model.config
    theirs = again.state_dict()
    assert list(theirs) == list(model.state_dict())
    for name, value in model.state_dict().items():
        if name == "encoder.embeddings.word.weight":
            assert theirs[name][:VOCAB].equal(value[:VOCAB])
            assert theirs[name][VOCAB:].eq(0).all()
        else:
            assert theirs[name].equal(value), name


def test_a_kernel_asked_for_in_training_is_not_asked_for_after_it(tmp_path: Path) -> None:
    imported = import_model(str(export(small_model(attention="varlen"), tmp_path)))
    assert imported.config.attention == "auto"
    assert imported.use_kernel(torch.device("cpu"), torch.float32).name == "padded"


@pytest.mark.parametrize("style", ["bert", "modern"])
def test_fill_mask_pipeline_runs(style: str, tmp_path: Path) -> None:
    folder = export(small_model(style), tmp_path)
    fill = transformers.pipeline("fill-mask", model=str(folder))
    answers = fill("the cat [MASK] on the mats.")
    assert len(answers) == 5
    assert all(0 < answer["score"] <= 1 for answer in answers)


@pytest.mark.parametrize("architecture", ["BertForPreTraining", "BertForMaskedLM", "AlbertForPreTraining"])
def test_a_checkpoint_of_transformers_is_imported(architecture: str, tmp_path: Path) -> None:
    shape = {
        "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 96, "max_position_embeddings": 40, "initializer_range": 0.3,
    }  # fmt: skip
    kind = transformers.AlbertConfig if "Albert" in architecture else transformers.BertConfig
    extra = {"embedding_size": 16, "bos_token_id": 2} if "Albert" in architecture else {}
    theirs = getattr(transformers, architecture)(kind(**shape, **extra)).eval()
    theirs.save_pretrained(tmp_path)
    model = import_model(str(tmp_path)).eval()
    tokens, pairs = their_logits(theirs)
    ours = model(pack(ROWS))
    torch.testing.assert_close(ours.padded_token_logits[:, :VOCAB], tokens, rtol=0, atol=1e-4)
    assert (pairs is None) == (ours.pair_logits is None)
    if pairs is not None:
        torch.testing.assert_close(ours.pair_logits, pairs, rtol=0, atol=1e-4)


def test_a_modernbert_of_transformers_is_imported(tmp_path: Path) -> None:
    config = transformers.ModernBertConfig(
        vocab_size=VOCAB, hidden_size=64, num_hidden_layers=4, num_attention_heads=2, intermediate_size=80,
        max_position_embeddings=40, local_attention=8, pad_token_id=0, bos_token_id=2, eos_token_id=3,
        cls_token_id=2, sep_token_id=3, initializer_range=0.3,
    )  # fmt: skip
    theirs = transformers.ModernBertForMaskedLM(config).eval()
    theirs.save_pretrained(tmp_path)
    ours = import_model(str(tmp_path)).eval()
    assert [ours.config.is_local(layer) for layer in range(4)] == [False, True, True, False]
    logits = ours(pack(ROWS)).padded_token_logits[:, :VOCAB]
    torch.testing.assert_close(logits, their_logits(theirs)[0], rtol=0, atol=1e-4)


def test_old_spellings_of_the_norms_are_understood(tmp_path: Path) -> None:
    model = small_model()
    path = export(model, tmp_path) / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in tensors.items()
    }
    safetensors.torch.save_file(old | {"bert.embeddings.position_ids": torch.arange(40)}, path)
    again = import_model(str(path.parent))
    assert again(pack(ROWS)).padded_token_logits.equal(model(pack(ROWS)).padded_token_logits)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cls.predictions.bias": None}, "no tensor 'cls.predictions.bias', needed for token_head.bias"),
        (
            {"bert.pooler.dense.bias": torch.zeros(3)},
            r"tensor for pooler.bias has shape \[3\], but the config needs \[64\]",
        ),
        ({"bert.extra": torch.zeros(3)}, "tensor 'bert.extra' is not part of this model"),
    ],
)
def test_nothing_is_missing_or_ignored_unsaid(
    change: dict[str, torch.Tensor | None], message: str, tmp_path: Path
) -> None:
    path = export(small_model(), tmp_path) / "model.safetensors"
    tensors = safetensors.torch.load_file(path) | change
    safetensors.torch.save_file({name: value for name, value in tensors.items() if value is not None}, path)
    with pytest.raises(CheckpointError, match=message):
        import_model(str(path.parent))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"{", "config.json: not JSON"),
        ("config.json", b'{"model_type": "gpt2"}', "model_type 'gpt2'"),
        ("model.safetensors", b"\x00" * 20, r"model\.safetensors: "),
        ("model.safetensors", None, r"model\.safetensors: no such file"),
    ],
)
def test_damaged_directories_are_refused(
    name: str, content: bytes | None, message: str, tmp_path: Path
) -> None:
    folder = export(small_model(), tmp_path)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        import_model(str(folder))


def test_nothing_pickled_is_read(tmp_path: Path) -> None:  # trainer-053
    folder = export(small_model(), tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save({"bert.extra": torch.zeros(1)}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="no such file"):
        import_model(str(folder))


@pytest.mark.parametrize("style", sorted(STYLES.keys() - EXPORTED.keys() - {"modern-pairs"}))
def test_shapes_without_an_architecture_are_refused(style: str) -> None:
    with pytest.raises(ConfigError, match=r"^model"):
        family_of(small_config(style))


def test_a_tokenizer_of_another_size_is_refused(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path, VOCAB + 1)
    with pytest.raises(CorpusError, match="102 entries, but the model's vocabulary has 101"):
        export_model(small_model(), str(tmp_path / "out"), str(tokenizer), CARD)


def test_an_export_beside_the_files_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = export(small_model(), tmp_path)
    export(small_model(seed=1), tmp_path)  # the same files: replaced
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"holds model\.safetensors\.index\.json of another model"):
        export(small_model(), tmp_path)


def test_exports_of_one_model_are_equal_bytes(tmp_path: Path) -> None:
    first, second = export(small_model(), tmp_path / "a"), export(small_model(), tmp_path / "b")
    names = sorted(path.name for path in first.iterdir())
    assert names == [
        "README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
        "vocab.txt",
    ]  # fmt: skip
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_card_says_what_the_model_is(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    figures = {"de": {"sequences": 12345, "perplexity": 3.25}, "en": {"sequences": 7, "perplexity": 4.0}}
    card = ModelCard("a/b", ("de", "en"), "cd" * 32, 77, {"seed": 5}, figures)
    export_model(small_model(), str(folder), str(write_tokenizer(tmp_path / "t", VOCAB)), card)
    text = (folder / "README.md").read_text()
    for part in (
        "language:\n- de\n- en", "`BertForPreTraining`", "`" + "cd" * 32 + "`", "Optimizer steps: 77",
        "| de | 12,345 | 3.2500 |", "seed: 5",
    ):  # fmt: skip
        assert part in text
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == VOCAB
