"""The packed path on a CUDA device: the variable-length kernel against the padded one, and the steps."""

from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from tests.trainer.models import STYLES, VOCAB, small_config, small_model
from tests.trainer.packing import pack, random_rows
from trainer.distributed.gradients import data_parallel
from trainer.model.attention import choose_kernel, fused_obstacle
from trainer.model.kernel_check import fused_failure
from trainer.model.objectives import PretrainingLoss, batch_totals
from trainer.model.pretraining import BertPretraining
from trainer.optim.optimizers import Kind, build_optimizer, set_learning_rate, skip_step

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

GPU = torch.device("cuda")
if torch.cuda.is_available():
    from trainer.kernels import activations, cross_entropy, cublaslt, norms, products, sublayers
    from trainer.kernels.attention import (
        Attended,
        AttentionSpec,
        Queries,
        QueryKeyValue,
        Sequences,
        attention_backward,
        attention_forward,
    )
    from trainer.kernels.dropout import Dropout
    from trainer.kernels.table_gradient import table_gradient
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


def test_gradients_of_used_rows_are_exact_sums() -> None:
    torch.manual_seed(0)
    tokens, masked, first = 131072, 19000, 1024
    fillers = torch.cat([torch.zeros(900), torch.full((300,), tokens - 1)])
    index = torch.cat([torch.randperm(tokens)[:masked], torch.arange(first) * 128, fillers.long()]).to(GPU)
    rows = torch.randn(len(index), 768, device=GPU).bfloat16()
    rows[masked + first :] = 0  # fillers
    expected = torch.zeros(tokens, 768, device=GPU, dtype=torch.float64).index_add(0, index, rows.double())
    used = Queries.of(index, torch.tensor([0, tokens], device=GPU))
    ascending = torch.empty_like(rows)
    ascending[used.places] = rows
    for _ in range(3):
        assert sublayers.put_rows(ascending, used, tokens).equal(expected.bfloat16())


@pytest.mark.parametrize("longest", [100, 300])
@pytest.mark.parametrize("size", [16, 32, 64, 128])
def test_attention_gradients_are_finite_however_low_all_logits_are(longest: int, size: int) -> None:
    lengths = [longest, longest - 37, 1]
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).to(GPU)
    positions = torch.cat([torch.arange(length) for length in lengths]).to(GPU)
    sequences, spec, width = Sequences(bounds, longest, positions), AttentionSpec(2), 2 * size
    qkv = torch.zeros(sum(lengths), 3 * width)
    qkv[:, :width], qkv[:, width : 2 * width] = 20.0, -20.0
    qkv = (qkv + 0.01 * torch.randn(qkv.shape)).bfloat16().to(GPU)
    inputs, into = QueryKeyValue.of_product(qkv), QueryKeyValue.of_product(torch.empty_like(qkv))
    out, logsum = attention_forward(inputs, sequences, spec)
    dout = torch.randn(out.shape, device=GPU).bfloat16()
    attention_backward(dout, Attended(*inputs, out, logsum), into, sequences, spec, bias=True)
    assert out.isfinite().all()
    assert all(part.isfinite().all() for part in into)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("length", [64, 256])
def test_the_trial_of_fused_layers_finds_nothing_wrong(style: str, length: int) -> None:
    config = small_config(style, hidden_size=128, intermediate_size=256)
    assert fused_failure(config, [length], GPU) is None


def test_the_trial_of_fused_layers_names_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config("bert", hidden_size=128, intermediate_size=256)
    monkeypatch.setattr("trainer.kernels.sublayers.linear", lambda x, w, b: torch.zeros_like(x @ w.t()))
    assert "differ from plain layers" in (fused_failure(config, [64], GPU) or "")


def test_chosen_algorithms_give_the_products_of_torch() -> None:
    torch.manual_seed(0)
    tokens, n, k = 512, 256, 128
    x, dy, weight = (torch.randn(*s, device=GPU).bfloat16() for s in ((tokens, k), (tokens, n), (n, k)))
    bias, total = torch.randn(n, device=GPU).bfloat16(), torch.randn(tokens, k, device=GPU).bfloat16()

    def computed() -> list[torch.Tensor]:
        return [
            products.linear(x, weight, bias), products.linear(x, weight, None),
            *products.linear_gelu(x, weight, bias), products.input_gradient(dy, weight),
            products.add_input_gradient(total.clone(), dy, weight), products.weight_gradient(dy, x),
        ]  # fmt: skip

    kinds: tuple[products.Kind, ...] = ("gelu", "input", "input add", "weight")
    wanted = [products.Product("forward", n, k, bias) for bias in (True, False)]
    wanted += [products.Product(kind, n, k, kind == "gelu") for kind in kinds]
    device = x.device
    expected = computed()
    # Every product but that of weight gradients has an algorithm for the weight or for its transposed copy.
    transposed = [product._replace(transposed=True) for product in wanted if product.kind != "weight"]
    library = cublaslt.cublaslt(device)
    every = {
        one.key: cublaslt.algorithm_to_text(library.candidates(one.problem(tokens))[0]) for one in transposed
    }
    try:
        choice = products.choose_algorithms(wanted, tokens, device)
        assert {key.removesuffix(" transposed") for key in choice} == {product.key for product in wanted}
        assert len(choice) == len(wanted)
        for algorithms in (choice, every):
            products.use_algorithms(device, algorithms)
            for found, other in zip(computed(), expected, strict=True):
                assert found.dtype == other.dtype
                torch.testing.assert_close(found, other, rtol=2e-2, atol=2e-1)
            assert all(a.equal(b) for a, b in zip(computed(), computed(), strict=True))
    finally:
        products.use_algorithms(device, {})


@pytest.mark.parametrize("width", [96, 768, 1024])
@pytest.mark.parametrize("p", [0.0, 0.25])
def test_add_norm_and_its_gradients(width: int, p: float) -> None:
    torch.manual_seed(0)
    x, z, dy = (torch.randn(301, width, device=GPU).bfloat16() for _ in range(3))
    gain, bias = torch.rand(width, device=GPU) + 0.5, torch.randn(width, device=GPU)
    drop = Dropout(p, 77)
    # With 1 in z, 0 in x and no weights, dropped values are below the mean.
    ones, zeros = torch.ones_like(gain), torch.zeros_like(gain)
    plain = norms.Norm(ones, zeros, 1e-12)
    shown = norms.add_norm(torch.zeros_like(x), torch.ones_like(z), plain, drop).y > 0
    kept = shown.float() / (1 - p) if p else torch.ones_like(x, dtype=torch.float32)
    if p:
        assert abs(shown.float().mean() - (1 - p)) < 0.01
    wide = [one.detach().float().requires_grad_() for one in (x, z)]
    weights = [one.detach().clone().requires_grad_() for one in (gain, bias)]
    total = wide[0] + wide[1] * kept
    expected = torch.nn.functional.layer_norm(total, (width,), weights[0], weights[1], 1e-12)
    expected.backward(dy.float())
    norm = norms.Norm(gain, bias, 1e-12)
    normed = norms.add_norm(x, z, norm, drop)
    found = norms.add_norm_backward(dy, x, z, norm, normed, drop)
    grads = [one.grad for one in (*wide, *weights)]
    assert grads[1] is not None
    for ours, theirs in zip((normed.y, *found), (expected, *grads, grads[1].sum(0)), strict=True):
        assert ours is not None
        torch.testing.assert_close(ours.float(), theirs, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("tokens", [100, 4097, 131072])
def test_gradient_of_a_table_is_equal_to_the_bit(tokens: int) -> None:
    torch.manual_seed(0)
    rows, ids = torch.randn(tokens, 768, device=GPU), torch.randint(0, 30528, (tokens,), device=GPU)
    ids[::7] = 4  # as [MASK], more often than any other
    found = [table_gradient(rows, ids, 30528) for _ in range(3)]
    assert found[0].equal(found[1])
    assert found[0].equal(found[2])
    expected = torch.zeros(30528, 768, device=GPU, dtype=torch.float64).index_add(0, ids, rows.double())
    torch.testing.assert_close(found[0], expected.float(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("columns", [1024, 30528, 119552])
def test_cross_entropy_in_bfloat16(columns: int) -> None:
    torch.manual_seed(0)
    logits = (torch.randn(777, columns, device=GPU) * 3).bfloat16()
    targets = torch.randint(0, columns, (777,), device=GPU)
    targets[::5] = -1
    wide = logits.float().requires_grad_()
    expected = torch.nn.functional.cross_entropy(wide, targets, ignore_index=-1, reduction="none")
    expected.sum().backward()
    assert wide.grad is not None
    log_sums, losses, predicted = cross_entropy.loss_statistics(logits, targets)
    torch.testing.assert_close(losses, expected.detach(), rtol=1e-4, atol=1e-4)
    rows = torch.arange(777, device=GPU)
    assert logits[rows, predicted].equal(logits.max(1).values)  # several may be as large
    found = [cross_entropy.loss_gradient(logits.clone(), log_sums, targets, 0.0) for _ in range(2)]
    torch.testing.assert_close(found[0][0].float(), wide.grad, rtol=1e-2, atol=1e-5)
    torch.testing.assert_close(found[0][1], wide.grad.sum(0), rtol=1e-3, atol=1e-4)
    assert all(one.equal(other) for one, other in zip(*found, strict=True))


def test_products_with_gelu() -> None:
    torch.manual_seed(0)
    x, w, b = (torch.randn(*s, device=GPU).bfloat16() for s in ((384, 128), (256, 128), (256,)))
    out, before = products.linear_gelu(x, w, b)
    torch.testing.assert_close(before, torch.addmm(b, x, w.t()), rtol=2e-2, atol=1e-1)
    expected = torch.nn.functional.gelu(before, approximate="tanh")
    torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2)


def test_the_product_with_the_derivative_of_gelu_equals_two_passes() -> None:
    torch.manual_seed(0)
    tokens, n, k = 512, 128, 256
    dy, weight, before = (torch.randn(*s, device=GPU).bfloat16() for s in ((tokens, n), (n, k), (tokens, k)))
    device = dy.device
    assert products.gelu_input_gradient(dy, weight, before) is None
    expected, _ = activations.gelu_backward(products.input_gradient(dy, weight), before, tanh=True)
    try:
        choice = products.choose_algorithms([products.Product("input gelu", n, k)], tokens, device)
        products.use_algorithms(device, choice)
        found = [products.gelu_input_gradient(dy, weight, before) for _ in range(2)]
        assert found[0] is not None
        assert found[1] is not None
        torch.testing.assert_close(found[0], expected, rtol=2e-2, atol=1e-1)
        assert found[0].equal(found[1])
    finally:
        products.use_algorithms(device, {})


@pytest.mark.parametrize("tanh", [True, False])
def test_gradient_of_gelu_and_its_sums(tanh: bool) -> None:
    torch.manual_seed(0)
    before, dy = (torch.randn(301, 320, device=GPU).bfloat16() for _ in range(2))
    kind = "tanh" if tanh else "none"
    expected = torch.ops.aten.gelu_backward(dy.float(), before.float(), approximate=kind)
    found, sums = activations.gelu_backward(dy.clone(), before, tanh=tanh)
    torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=1e-2)
    torch.testing.assert_close(sums, expected.sum(0), rtol=1e-4, atol=1e-3)


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


def updated(kind: Kind, device: str, *, captured: bool = False) -> list[torch.Tensor]:
    """Parameters after ten steps with gradients drawn on the CPU and one skipped step."""
    model = small_model().to(device)
    optimizer: Any = build_optimizer(model, kind, learning_rate=0.01)
    flag = torch.zeros((), device=device)
    skip_step(optimizer, flag)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    graph = None
    generator = torch.Generator().manual_seed(0)
    for step in range(10):
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.copy_(torch.randn(parameter.shape, generator=generator))
        set_learning_rate(optimizer, 0.01 / (step + 1))
        flag.fill_(step == 4)
        optimizer.found_inf.copy_(flag)
        if not captured or step < 1:
            optimizer.step()
        elif graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                optimizer.step()
            graph.replay()
        else:
            graph.replay()
    return [parameter.detach().cpu() for parameter in model.parameters()]


@pytest.mark.parametrize("kind", get_args(Kind))
def test_steps_on_the_gpu_are_those_of_the_cpu(kind: Kind) -> None:
    tolerance = 2e-2 if kind == "muon" else 1e-5  # its products are bf16 on a GPU
    for gpu, cpu in zip(updated(kind, "cuda"), updated(kind, "cpu"), strict=True):
        torch.testing.assert_close(gpu, cpu, rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_a_captured_step_is_a_step(kind: Kind) -> None:  # trainer-054
    for captured, plain in zip(updated(kind, "cuda", captured=True), updated(kind, "cuda"), strict=True):
        torch.testing.assert_close(captured, plain, rtol=0, atol=1e-6)


def test_gradients_in_bf16_go_through_nccl(tmp_path: Path) -> None:
    torch.distributed.init_process_group("nccl", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        module = torch.nn.Sequential(
            torch.nn.Linear(640, 1001), torch.nn.GELU(), torch.nn.Linear(1001, 3)
        ).to(GPU)
        wrapped, rows = data_parallel(module, "bf16"), torch.randn(64, 640, device=GPU)
        for _ in range(3):  # the buffers of a step are those of the step before
            module.zero_grad(set_to_none=True)
            wrapped(rows).square().sum().backward()
            found = [p.grad.clone() for p in module.parameters() if p.grad is not None]
            expected = torch.autograd.grad(module(rows).square().sum(), list(module.parameters()))
            assert len(found) == len(expected)
            for ours, theirs in zip(found, expected, strict=True):
                assert ours.equal(ours.bfloat16().float())
                torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-3)
    finally:
        torch.distributed.destroy_process_group()
