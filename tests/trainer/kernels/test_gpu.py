"""Models on a CUDA device: fused layers and the variable-length kernel against plain and padded ones."""

from typing import Any

import pytest
import torch

from tests.trainer.models import STYLES, VOCAB, small_config
from tests.trainer.packing import pack, random_rows
from trainer.model.attention import choose_kernel, fused_obstacle
from trainer.model.kernel_check import fused_failure
from trainer.model.objectives import PretrainingLoss, batch_totals
from trainer.model.pretraining import BertPretraining

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

GPU = torch.device("cuda")
ROWS = random_rows(40, VOCAB, lengths=(1, 32), masked=(0, 5))


def pair_of_models(style: str) -> tuple[BertPretraining, BertPretraining]:
    """The same weights with either kernel, for bf16."""
    models = []
    for attention in ("varlen", "padded"):
        torch.manual_seed(0)
        model = BertPretraining(small_config(style, attention=attention)).to(GPU).eval()
        assert model.use_kernel(GPU, torch.bfloat16).name == attention
        models.append(model)
    return models[0], models[1]


@pytest.mark.parametrize("style", STYLES)
def test_varlen_equals_padded_in_bfloat16(style: str) -> None:  # trainer-028
    batch = pack(ROWS).to(GPU)
    with torch.autocast("cuda", torch.bfloat16):
        packed, padded = (model.encode(batch) for model in pair_of_models(style))
    torch.testing.assert_close(packed, padded, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("style", STYLES)
def test_instances_do_not_see_each_other_in_the_varlen_kernel(style: str) -> None:
    model, _ = pair_of_models(style)
    changed = random_rows(1, VOCAB, lengths=(len(ROWS[0].ids), len(ROWS[0].ids)), seed=9)
    with torch.autocast("cuda", torch.bfloat16):
        before = model.encode(pack(ROWS).to(GPU))
        after = model.encode(pack([*changed, *ROWS[1:]]).to(GPU))
    assert before[len(ROWS[0].ids) :].equal(after[len(ROWS[0].ids) :])


@pytest.mark.parametrize("style", STYLES)
def test_gradients_of_both_kernels_agree(style: str) -> None:
    batch = pack(ROWS).to(GPU)
    found = []
    for model in pair_of_models(style):
        with torch.autocast("cuda", torch.bfloat16):
            loss, _ = PretrainingLoss(model, 3)(batch, batch_totals([batch]))
        loss.backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert torch.nn.functional.cosine_similarity(found[0], found[1], dim=0) > 0.99
    torch.testing.assert_close(found[0].norm(), found[1].norm(), rtol=2e-2, atol=0)


# The style of tests.trainer.models, and fields beside it.
FUSED_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {"initializer_range": 0.1}),
    "bert-tanh": ("bert", {"initializer_range": 0.1, "activation": "gelu_tanh"}),
    "albert": ("albert", {"initializer_range": 0.1}),
    "modern": ("modern", {}),
    "modern-pairs": ("modern-pairs", {}),
    "pre-norm": ("bert", {"norm": "pre", "activation": "gelu_tanh"}),
    "rotary-post-norm": ("rotary-post-norm", {"initializer_range": 0.1}),
    "left-to-right": ("left-to-right", {"initializer_range": 0.1}),
}


def fused_and_plain(name: str = "bert", **fields: Any) -> tuple[BertPretraining, BertPretraining]:
    """The same weights with fused layers and without, for bf16."""
    style, own = FUSED_MODELS[name]
    models = []
    for fused in (True, False):
        torch.manual_seed(0)
        figures = {"hidden_size": 128, "heads": 2, "intermediate_size": 256, **own, **fields}
        config = small_config(style, **figures)
        model = BertPretraining(config).to(GPU).eval()
        kernel = model.use_kernel(GPU, torch.bfloat16)
        assert fused_obstacle(config, kernel, torch.bfloat16) is None
        model.encoder.fused = fused
        models.append(model)
    return models[0], models[1]


@pytest.mark.parametrize("name", FUSED_MODELS)
@pytest.mark.parametrize("longest", [32, 200])  # attention of whole rows, and of tiles
def test_fused_layers_equal_plain_ones(name: str, longest: int) -> None:
    rows = random_rows(40, VOCAB, lengths=(1, longest), masked=(0, 5))
    batch = pack(rows).to(GPU)
    losses, gradients = [], []
    for model in fused_and_plain(name, max_positions=longest):
        with torch.autocast("cuda", torch.bfloat16):
            loss, _ = PretrainingLoss(model, 3)(batch, batch_totals([batch]))
        loss.backward()
        losses.append(loss.detach())
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-2, atol=0)
    assert gradients[0].keys() == gradients[1].keys()
    largest = max(float(gradient.norm()) for gradient in gradients[1].values())
    for parameter, fused in gradients[0].items():
        plain = gradients[1][parameter]
        assert fused.dtype == torch.float32
        distance = (fused - plain).norm() / (plain.norm() + 1e-3 * largest)
        # A constant does not change a softmax, so the gradient of the keys' bias consists of rounding errors.
        assert distance < 6e-2 or parameter.endswith("qkv.bias"), (parameter, float(distance))


@pytest.mark.parametrize("name", FUSED_MODELS)
@pytest.mark.parametrize("longest", [32, 200])
def test_fused_steps_are_equal_to_the_bit(name: str, longest: int) -> None:
    batch = pack(random_rows(40, VOCAB, lengths=(1, longest), masked=(0, 5))).to(GPU)
    found = []
    for _ in range(2):
        model, _ = fused_and_plain(name, hidden_dropout=0.1, max_positions=longest)
        model.train()
        torch.manual_seed(5)
        with torch.autocast("cuda", torch.bfloat16):
            loss, _ = PretrainingLoss(model, 3)(batch, batch_totals([batch]))
        loss.backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert found[0].equal(found[1])


@pytest.mark.parametrize("name", FUSED_MODELS)
@pytest.mark.parametrize("longest", [32, 200])
def test_used_hidden_states_alone_equal_those_of_all_tokens(name: str, longest: int) -> None:
    packed = pack(random_rows(40, VOCAB, lengths=(1, longest), masked=(0, 5)))
    batch = packed.padded_to(packed.tokens + 3 * longest, sequences=60, masked=300).to(GPU)
    model, _ = fused_and_plain(name, max_positions=longest)
    found = []
    for used_only in (True, True, False):
        model.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            if used_only:
                masked, first = model.encode_used(batch)
            else:
                hidden = model.encode(batch)
                masked, first = hidden.index_select(0, batch.masked_index), model.first_tokens(hidden, batch)
            output = model.heads_at(masked, first)
            loss = PretrainingLoss(model, 3).of_output(output, batch, batch_totals([batch])).loss
        loss.backward()
        gradients = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        found.append((loss.detach(), gradients))
    assert found[0][0].equal(found[1][0])
    assert found[0][1].equal(found[1][1])
    torch.testing.assert_close(found[0][0], found[2][0], rtol=1e-3, atol=0)
    assert (found[0][1] - found[2][1]).norm() / found[2][1].norm() < 2e-2


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("length", [64, 256])
def test_the_trial_of_fused_layers_finds_nothing_wrong(style: str, length: int) -> None:
    config = small_config(style, hidden_size=128, intermediate_size=256)
    assert fused_failure(config, [length], GPU) is None


def test_the_trial_of_fused_layers_names_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config("bert", hidden_size=128, intermediate_size=256)
    monkeypatch.setattr("trainer.kernels.sublayers.linear", lambda x, w, b: torch.zeros_like(x @ w.t()))
    assert "differ from plain layers" in (fused_failure(config, [64], GPU) or "")


def test_fillers_of_a_fixed_shape_are_finite_and_count_for_nothing() -> None:
    model, _ = pair_of_models("bert")
    batch = pack(ROWS)
    fixed = batch.padded_to(tokens=batch.tokens + 100, sequences=60, masked=256)
    losses = []
    for one in (batch.to(GPU), fixed.to(GPU)):
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss, _ = PretrainingLoss(model, 3)(one, batch_totals([one]))
        loss.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
        losses.append(loss.detach())
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-2, atol=0)


def test_fp32_and_attention_dropout_take_the_padded_kernel() -> None:
    assert choose_kernel(small_config(), GPU, torch.float32).name == "padded"
    choice = choose_kernel(small_config(attention_dropout=0.1), GPU, torch.bfloat16)
    assert choice.name == "padded"
    assert "attention_dropout" in choice.reason
