"""Single kernels and products on a CUDA device, against torch."""

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

GPU = torch.device("cuda")
if torch.cuda.is_available():
    from trainer.kernels import activations, cross_entropy, cublaslt, matmuls, norms, sublayers
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
    from trainer.kernels.embedding_gradient import embedding_gradient


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


def test_chosen_algorithms_give_the_products_of_torch() -> None:
    torch.manual_seed(0)
    tokens, n, k = 512, 256, 128
    x, dy, weight = (torch.randn(*s, device=GPU).bfloat16() for s in ((tokens, k), (tokens, n), (n, k)))
    bias, total = torch.randn(n, device=GPU).bfloat16(), torch.randn(tokens, k, device=GPU).bfloat16()

    def computed() -> list[torch.Tensor]:
        return [
            matmuls.linear(x, weight, bias), matmuls.linear(x, weight, None),
            *matmuls.linear_gelu(x, weight, bias), matmuls.input_gradient(dy, weight),
            matmuls.add_input_gradient(total.clone(), dy, weight), matmuls.weight_gradient(dy, x),
        ]  # fmt: skip

    kinds: tuple[matmuls.Kind, ...] = ("gelu", "input", "input add", "weight")
    wanted = [matmuls.Matmul("forward", n, k, bias) for bias in (True, False)]
    wanted += [matmuls.Matmul(kind, n, k, kind == "gelu") for kind in kinds]
    device = x.device
    expected = computed()
    # Every product but that of weight gradients has an algorithm for the weight or for its transposed copy.
    transposed = [product._replace(transposed=True) for product in wanted if product.kind != "weight"]
    library = cublaslt.cublaslt(device)
    every = {
        one.key: cublaslt.algorithm_to_text(library.candidates(one.problem(tokens))[0]) for one in transposed
    }
    try:
        choice = matmuls.choose_algorithms(wanted, tokens, device)
        assert {key.removesuffix(" transposed") for key in choice} == {product.key for product in wanted}
        assert len(choice) == len(wanted)
        for algorithms in (choice, every):
            matmuls.use_algorithms(device, algorithms)
            for found, other in zip(computed(), expected, strict=True):
                assert found.dtype == other.dtype
                torch.testing.assert_close(found, other, rtol=2e-2, atol=2e-1)
            assert all(a.equal(b) for a, b in zip(computed(), computed(), strict=True))
    finally:
        matmuls.use_algorithms(device, {})


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
    found = [embedding_gradient(rows, ids, 30528) for _ in range(3)]
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
    out, before = matmuls.linear_gelu(x, w, b)
    torch.testing.assert_close(before, torch.addmm(b, x, w.t()), rtol=2e-2, atol=1e-1)
    expected = torch.nn.functional.gelu(before, approximate="tanh")
    torch.testing.assert_close(out, expected, rtol=2e-2, atol=2e-2)


def test_the_product_with_the_derivative_of_gelu_equals_two_passes() -> None:
    torch.manual_seed(0)
    tokens, n, k = 512, 128, 256
    dy, weight, before = (torch.randn(*s, device=GPU).bfloat16() for s in ((tokens, n), (n, k), (tokens, k)))
    device = dy.device
    assert matmuls.gelu_input_gradient(dy, weight, before) is None
    expected, _ = activations.gelu_backward(matmuls.input_gradient(dy, weight), before, tanh=True)
    try:
        choice = matmuls.choose_algorithms([matmuls.Matmul("input gelu", n, k)], tokens, device)
        matmuls.use_algorithms(device, choice)
        found = [matmuls.gelu_input_gradient(dy, weight, before) for _ in range(2)]
        assert found[0] is not None
        assert found[1] is not None
        torch.testing.assert_close(found[0], expected, rtol=2e-2, atol=1e-1)
        assert found[0].equal(found[1])
    finally:
        matmuls.use_algorithms(device, {})


@pytest.mark.parametrize("tanh", [True, False])
def test_gradient_of_gelu_and_its_sums(tanh: bool) -> None:
    torch.manual_seed(0)
    before, dy = (torch.randn(301, 320, device=GPU).bfloat16() for _ in range(2))
    kind = "tanh" if tanh else "none"
    expected = torch.ops.aten.gelu_backward(dy.float(), before.float(), approximate=kind)
    found, sums = activations.gelu_backward(dy.clone(), before, tanh=tanh)
    torch.testing.assert_close(found.float(), expected, rtol=2e-2, atol=1e-2)
    torch.testing.assert_close(sums, expected.sum(0), rtol=1e-4, atol=1e-3)
