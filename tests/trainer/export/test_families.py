"""Every family of transformers, in and out: equal outputs, or a refusal that names the field."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

from schemas.errors import BertmillError, CheckpointError, ConfigError
from tests.trainer.export.hub_models import FAMILIES, outputs, random_ids, random_model, save, segments_of
from tests.trainer.models import VOCAB, small_model
from tests.trainer.tokenizers_for_tests import write_tokenizer
from trainer.export.directory import ModelCard, export_model, import_model
from trainer.export.families import Family
from trainer.model.pretraining import BertPretraining

# Of logits of about 10.
TOLERANCE = 1e-5


def our_outputs(model: BertPretraining, ids: torch.Tensor, segments: torch.Tensor) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        hidden = model.eval().encode_padded(ids, segments, torch.ones_like(ids))[0]
        found = {"hidden": hidden}
        if "token_head" not in model.untrained:
            logits = model.token_head(hidden, model.word_weight)
            found["mlm"] = logits[:, : model.config.vocab_size]
        if model.pooler is not None and model.pair_head is not None:
            found["pair"] = model.pair_head(torch.tanh(model.pooler(hidden[0])))
    return found


def assert_equal(theirs: Any, ours: BertPretraining) -> None:
    ids, segments = random_ids(), segments_of(theirs)
    expected = outputs(theirs, ids, segments)
    found = our_outputs(ours, ids, segments)
    for name, value in expected.items():
        scale = max(1.0, float(value.abs().max()))
        torch.testing.assert_close(found[name] / scale, value / scale, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_of_transformers_computes_the_same_here(family: str, tied: bool, tmp_path: Path) -> None:
    theirs = random_model(family, tie_word_embeddings=tied)
    ours = import_model(save(theirs, tmp_path))
    assert ours.config.tie_decoder == tied
    assert ours.untrained == ()
    assert_equal(theirs, ours)


@pytest.mark.parametrize(
    ("family", "architecture"),
    [(family, usual.partition("For")[0] + "Model") for family, (_, _, usual) in FAMILIES.items()]
    + [("electra", "ElectraForPreTraining"), ("distilbert", "DistilBertForSequenceClassification")],
)
def test_an_encoder_alone_is_imported_in_shards(family: str, architecture: str, tmp_path: Path) -> None:
    theirs = random_model(family, architecture)
    theirs.save_pretrained(tmp_path, max_shard_size="10KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    ours = import_model(str(tmp_path))
    assert "token_head" in ours.untrained
    base = getattr(theirs, theirs.base_model_prefix, theirs)
    assert_equal(base, ours)


# Values that every field of a config is changed to, one at a time, by the type of its default.
def _changes(name: str, value: Any) -> list[Any]:
    special: dict[str, list[Any]] = {
        "hidden_act": ["gelu_new", "relu", "gelu_pytorch_tanh", "silu"],
        "activation": ["gelu_new", "relu"],
        "hidden_activation": ["silu", "gelu_new"],
        "classifier_activation": ["relu"],
        "layer_types": [
            ["full_attention"] * 4,
            ["full_attention", "sliding_attention"] * 2,
            ["sliding_attention"] * 4,
            ["full_attention", "full_attention", "sliding_attention", "full_attention"],
        ],
        "rope_parameters": [
            {
                kind: {"rope_type": "default", "rope_theta": theta}
                for kind, theta in (("full_attention", 500.0), ("sliding_attention", 77.0))
            },
            {
                kind: {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}
                for kind in ("full_attention", "sliding_attention")
            },
        ],
        "local_attention": [2, 7, 8],
        "classifier_pooling": ["mean"],
        "layer_norm_eps": [1e-3, 1e-6],
        "norm_eps": [1e-3],
        "num_hidden_groups": [2],
        "tie_word_embeddings": [False],
        "type_vocab_size": [1, 2, 3],
        "max_position_embeddings": [20, 40],
        "embedding_size": [8, 32],
        "initializer_range": [0.1],
    }
    if name in special:
        return special[name]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value * 2, value + 1]
    if isinstance(value, float):
        return [value + 0.25, value / 2 + 0.01]
    return []


_SKIPPED = {
    # Names of classes and outputs, and fields that only transformers' Python code reads.
    "architectures", "model_type", "transformers_version", "dtype", "_name_or_path", "return_dict",
    "output_hidden_states", "output_attentions", "id2label", "label2id", "problem_type",
}  # fmt: skip


def refusal_of(folder: Path) -> str | None:
    try:
        import_model(str(folder))
    except CheckpointError as error:
        return str(error)
    return None


@pytest.mark.parametrize("family", FAMILIES)
def test_each_field_of_a_config_is_used_neutral_or_refused(family: str, tmp_path: Path) -> None:
    """Changes every field, one at a time: the import equals transformers' model, or is refused."""
    kind, figures, _ = FAMILIES[family]
    fields = getattr(transformers, kind)(**figures).to_dict()
    equal, refused = [], []
    for name, value in fields.items():
        if name in _SKIPPED:
            continue
        for number, changed in enumerate(_changes(name, value)):
            try:
                theirs = random_model(family, **{name: changed})
                outputs(theirs, random_ids(), segments_of(theirs))
            except Exception:
                continue
            folder = tmp_path / f"{name}{number}"
            save(theirs, folder)
            refusal = refusal_of(folder)
            if refusal is None:
                assert_equal(theirs, import_model(str(folder)))
                equal.append(name)
            else:
                assert name in refusal, f"{name} = {changed}: {refusal}"
                refused.append(name)
    assert len(set(equal)) > 8
    assert refused or family == "distilbert"


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("bert", {"alibi": True}, "alibi: unknown field"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type: .*relative_key"),
        ("bert", {"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ("bert", {"hidden_size": "32"}, "hidden_size: .*, got '32'"),
        ("bert", {"num_attention_heads": 5}, "heads: 5 does not divide"),
        ("bert", {"auto_map": {"AutoModel": "own.Model"}}, "auto_map"),
        ("bert", {"is_decoder": True}, "is_decoder"),
        ("roberta", {"hidden_act": "gelu_new"}, "hidden_act"),
        ("roberta", {"max_position_embeddings": 3}, "max_positions"),
        ("distilbert", {"hidden_size": 32}, "hidden_size: unknown field"),
        ("albert", {"inner_group_num": 2}, "inner_group_num"),
        ("modernbert", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
        ("modernbert", {"global_rope_theta": 99.0}, "global_rope_theta is 99.0"),
        ("modernbert", {"norm_bias": True}, "norm_bias"),
    ],
)
def test_a_config_that_says_something_else_is_refused(
    family: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save(random_model(family), tmp_path)
    edit(tmp_path, change)
    with pytest.raises(CheckpointError, match=rf"config.json: .*{message}"):
        import_model(str(tmp_path))


def edit(folder: Path, change: dict[str, Any]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


EXPORTS: list[tuple[str, Family, dict[str, Any]]] = [
    ("bert", "bert", {}),
    ("bert", "bert", {"tie_decoder": False}),
    ("roberta", "bert", {}),
    ("roberta", "roberta", {}),
    ("roberta", "roberta", {"tie_decoder": False}),
    ("roberta", "xlm-roberta", {"segments": 2}),
    ("roberta", "distilbert", {}),
    ("albert", "albert", {}),
    ("albert", "albert", {"tie_decoder": False}),
    ("roberta", "electra", {}),
    ("roberta", "electra", {"embedding_size": 16}),
    ("modern", "modernbert", {}),
    ("modern", "modernbert", {"local_window": 0, "tie_decoder": False}),
]


@pytest.mark.parametrize(("style", "family", "fields"), EXPORTS)
def test_an_export_computes_the_same_there_and_comes_back(
    style: str, family: Family, fields: dict[str, Any], tmp_path: Path
) -> None:
    model = small_model(style, **fields)
    tokenizer = write_tokenizer(tmp_path / "tokenizer", VOCAB)
    folder = tmp_path / "model"
    export_model(model, str(folder), str(tokenizer), ModelCard("m"), family)
    (architecture,) = json.loads((folder / "config.json").read_text())["architectures"]
    theirs, info = getattr(transformers, architecture).from_pretrained(folder, output_loading_info=True)
    assert {name: list(keys) for name, keys in info.items() if keys} == {}
    assert architecture in (folder / "README.md").read_text()
    assert_equal(theirs.eval(), model)
    again = import_model(str(folder))
    assert again.config == model.config
    assert_equal(theirs, again)
    # The tokenizer gives the ids of the model, and no input that the model does not take.
    inputs = transformers.AutoTokenizer.from_pretrained(folder)("the cat", "on mat", return_tensors="pt")
    assert theirs(**inputs).keys()


@pytest.mark.parametrize(
    ("style", "family", "field"),
    [
        ("albert", "bert", "share_layers"),
        ("modern", "roberta", "norm"),
        ("bert", "distilbert", "segments"),
        ("bert", "albert", "share_layers"),
        ("bert", "modernbert", "norm"),
    ],
)
def test_an_export_as_another_family_names_the_field(
    style: str, family: Family, field: str, tmp_path: Path
) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer", VOCAB)
    with pytest.raises(ConfigError, match=rf"model.{field}: must be"):
        export_model(small_model(style), str(tmp_path / "m"), str(tokenizer), ModelCard("m"), family)


@pytest.mark.parametrize(
    ("style", "change"),
    [
        ("bert", {"hidden_act": "gelu_new"}),
        ("bert", {"num_attention_heads": 4}),
        ("bert", {"layer_norm_eps": 1e-6}),
        ("bert", {"type_vocab_size": 3}),
        ("modern", {"layer_types": ["full_attention"] * 3, "global_attn_every_n_layers": 1}),
        ("modern", {"local_attention": 8}),
    ],
)
def test_our_own_key_must_agree_with_the_fields_beside_it(
    style: str, change: dict[str, Any], tmp_path: Path
) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer", VOCAB)
    export_model(small_model(style), str(tmp_path / "m"), str(tokenizer), ModelCard("m"))
    edit(tmp_path / "m", change)
    with pytest.raises(
        CheckpointError, match=r"config.json: bertmill\.\w+ is .*, but the other fields imply"
    ):
        import_model(str(tmp_path / "m"))


def test_an_export_saved_again_by_transformers_is_imported(tmp_path: Path) -> None:
    model = small_model("bert")
    export_model(model, str(tmp_path / "m"), str(write_tokenizer(tmp_path / "t", VOCAB)), ModelCard("m"))
    for architecture in ("BertForMaskedLM", "BertModel"):
        theirs = getattr(transformers, architecture).from_pretrained(tmp_path / "m").eval()
        theirs.save_pretrained(tmp_path / architecture)
        assert_equal(theirs, import_model(str(tmp_path / architecture)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cls.predictions.decoder.weight": torch.ones(61, 32)}, "decoder.weight' differs from the word emb"),
        ({"cls.predictions.decoder.bias": torch.ones(61)}, "differ, but tie_word_embeddings is true"),
        ({"bert.pooler.dense.bias": torch.full((32,), torch.nan)}, "values that are not finite"),
        ({"bert.pooler.dense.bias": torch.ones(32, dtype=torch.int8)}, "only floating-point weights"),
    ],
)
def test_tensors_that_contradict_each_other_are_refused(
    change: dict[str, torch.Tensor], message: str, tmp_path: Path
) -> None:
    save(random_model("bert"), tmp_path)
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({**safetensors.torch.load_file(path), **change}, path)
    with pytest.raises(CheckpointError, match=message):
        import_model(str(tmp_path))


def test_an_index_that_does_not_fit_its_shards_is_refused(tmp_path: Path) -> None:
    random_model("bert").save_pretrained(tmp_path, max_shard_size="10KB")
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    del index["weight_map"]["cls.predictions.bias"]
    path.write_text(json.dumps(index))
    with pytest.raises(BertmillError, match=r"'cls\.predictions\.bias' is in only one of"):
        import_model(str(tmp_path))
    path.write_text(json.dumps({"weight_map": {"a": "../model.safetensors"}}))
    with pytest.raises(BertmillError, match="is not the name of a shard"):
        import_model(str(tmp_path))
