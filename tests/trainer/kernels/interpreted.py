"""Compares the Triton kernels in Triton's interpreter with torch in fp32 (see test_interpreter.py)."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.trainer.models import VOCAB, small_config
from tests.trainer.packing import pack, random_rows
from trainer.kernels import activations, attention, cross_entropy, norms
from trainer.kernels.attention import (
    Attended,
    AttentionSpec,
    Queries,
    QueryKeyValue,
    Sequences,
    attention_backward,
    attention_forward,
    rotary_cache,
)
from trainer.kernels.dropout import Dropout
from trainer.kernels.embedding_gradient import embedding_gradient
from trainer.model.attention import (
    AttentionWindow,
    Kernel,
    PaddedLayout,
    fused_obstacle,
    rotary_table,
    rotate,
)
from trainer.model.objectives import PretrainingLoss, batch_totals
from trainer.model.pretraining import BertPretraining

HEADS = 2


def sequences_of(lengths: list[int], longest: int) -> Sequences:
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return Sequences(bounds, longest, torch.cat([torch.arange(length) for length in lengths]))


def reference(qkv: Tensor, sequences: Sequences, window: tuple[int, int], base: float | None) -> Tensor:
    """Attention in fp32 by the padded layout."""
    tokens = qkv.shape[0]
    query, key, value = qkv.view(tokens, 3, HEADS, -1).unbind(1)
    if base is not None:
        table = rotary_table(sequences.positions, query.shape[-1], base)
        query, key = rotate(query, table), rotate(key, table)
    layout = PaddedLayout.of_packed(sequences.cu_seqlens, sequences.max_seqlen, tokens)
    return layout.attend(query, key, value, AttentionWindow(*window), 0.0).reshape(tokens, -1)


@pytest.mark.parametrize("window", [(-1, -1), (5, 5), (-1, 0)])
@pytest.mark.parametrize("base", [None, 100.0])
@pytest.mark.parametrize(("longest", "size"), [(20, 32), (130, 32), (20, 64)])
def test_attention_and_its_gradients(
    window: tuple[int, int], base: float | None, longest: int, size: int
) -> None:
    torch.manual_seed(0)
    sequences = sequences_of([longest, 1, 0, 11], longest)
    tokens, width = len(sequences.positions), HEADS * size
    # In fp32: the interpreter has no products of bf16.
    qkv = torch.randn(tokens, 3 * width, requires_grad=True)
    dout = torch.randn(tokens, width)
    expected = reference(qkv, sequences, window, base)
    expected.backward(dout)
    assert qkv.grad is not None
    table = None if base is None else rotary_cache(size, base, longest, qkv.device)
    spec = AttentionSpec(HEADS, window, table)
    product, gradient = qkv.detach().clone(), torch.empty_like(qkv)
    inputs, into = QueryKeyValue.of_product(product), QueryKeyValue.of_product(gradient)
    out, logsum = attention_forward(inputs, sequences, spec)
    torch.testing.assert_close(out, expected.detach(), rtol=1e-4, atol=1e-4)
    attended = Attended(*inputs, out, logsum)
    sums = attention_backward(dout, attended, into, sequences, spec, bias=True)
    torch.testing.assert_close(gradient, qkv.grad, rtol=1e-4, atol=1e-4)
    assert sums is not None
    torch.testing.assert_close(sums, qkv.grad.sum(0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("window", [(-1, -1), (5, 5), (-1, 0)])
@pytest.mark.parametrize("base", [None, 100.0])
@pytest.mark.parametrize("longest", [20, 130])
def test_attention_of_some_tokens_and_its_gradients(
    window: tuple[int, int], base: float | None, longest: int
) -> None:
    torch.manual_seed(0)
    size = 32
    sequences = sequences_of([longest, 1, 0, 11, 9], longest)
    count, width = len(sequences.positions), HEADS * size
    # In no order, some twice, none of the last sequence, and more than tokens in the first one.
    drawn = torch.randperm(count - 9)[: count // 2]
    tokens = torch.cat([drawn, torch.zeros(longest, dtype=torch.int64), torch.arange(3)])
    qkv = torch.randn(count, 3 * width, requires_grad=True)
    dout = torch.randn(len(tokens), width)
    queries = Queries.of(tokens, sequences.cu_seqlens)
    assert queries.tokens[queries.places].equal(tokens)
    tokens = queries.tokens
    expected = reference(qkv, sequences, window, base).index_select(0, tokens)
    expected.backward(dout)
    assert qkv.grad is not None
    table = None if base is None else rotary_cache(size, base, longest, qkv.device)
    spec = AttentionSpec(HEADS, window, table)
    product = qkv.detach().clone()
    inputs = QueryKeyValue(product[tokens, :width], product[:, width:].clone())
    into = QueryKeyValue(*(torch.full_like(tensor, torch.nan) for tensor in inputs))
    out, logsum = attention_forward(inputs, sequences, spec, queries)
    torch.testing.assert_close(out, expected.detach(), rtol=1e-4, atol=1e-4)
    attended = Attended(*inputs, out, logsum)
    sums = attention_backward(dout, attended, into, sequences, spec, queries, bias=True)
    d_query = torch.zeros(count, width).index_add(0, tokens, into.query)
    torch.testing.assert_close(d_query, qkv.grad[:, :width], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(into.kv, qkv.grad[:, width:], rtol=1e-4, atol=1e-4)
    assert sums is not None
    torch.testing.assert_close(sums, qkv.grad.sum(0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("longest", [20, 150])
def test_gradients_are_finite_however_low_all_logits_are(longest: int) -> None:
    sequences = sequences_of([longest - 7], longest)
    qkv = torch.zeros(longest - 7, 3 * HEADS * 32)
    qkv[:, : HEADS * 32], qkv[:, HEADS * 32 : 2 * HEADS * 32] = 10.0, -10.0  # logits of -566
    product = qkv + 0.01 * torch.randn(qkv.shape)
    spec = AttentionSpec(HEADS)
    inputs, into = QueryKeyValue.of_product(product), QueryKeyValue.of_product(torch.empty_like(product))
    out, logsum = attention_forward(inputs, sequences, spec)
    dout = torch.randn(out.shape)
    attention_backward(dout, Attended(*inputs, out, logsum), into, sequences, spec, bias=False)
    assert out.isfinite().all()
    assert all(part.isfinite().all() for part in into)


@pytest.mark.parametrize("p", [0.0, 0.25])
@pytest.mark.parametrize("bias", [True, False])
def test_residual_norm_and_its_gradients(bias: bool, p: float) -> None:
    torch.manual_seed(0)
    width = 96
    x, branch, dy, dtotal = (torch.randn(37, width).bfloat16() for _ in range(4))
    norm = norms.Norm(torch.rand(width) + 0.5, torch.randn(width) if bias else None, 1e-5)
    dropout = Dropout(p, 77)
    zeros = torch.zeros_like(x)
    shown, _ = norms.residual_norm(zeros, zeros + 1, norm, dropout)
    kept = shown.float()
    assert (kept > 0).float().mean() > 0.6
    wide, wide_branch = x.float().requires_grad_(), branch.float().requires_grad_()
    gain = norm.gain.clone().requires_grad_()
    total = wide + wide_branch * kept
    expected = F.layer_norm(total, (width,), gain, norm.bias, 1e-5)
    torch.autograd.backward([expected, total], [dy.float(), dtotal.float()])
    found_total, normed = norms.residual_norm(x, branch, norm, dropout)
    torch.testing.assert_close(found_total.float(), total, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(normed.y.float(), expected, rtol=2e-2, atol=3e-2)
    found = norms.residual_norm_backward(dy, dtotal, found_total, norm, normed, dropout)
    torch.testing.assert_close(found.x.float(), wide.grad, rtol=2e-2, atol=3e-2)
    torch.testing.assert_close(found.branch.float(), wide_branch.grad, rtol=2e-2, atol=3e-2)
    torch.testing.assert_close(found.gain, gain.grad, rtol=2e-2, atol=1e-1)
    assert (found.bias is None) is not bias
    if found.bias is not None and found.branch_bias is not None:
        torch.testing.assert_close(found.bias, dy.float().sum(0), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(found.branch_bias, found.branch.float().sum(0), rtol=2e-2, atol=1e-1)


def kept_by(seed: int) -> Tensor:
    """Where dropout of 0.25 keeps values, as 0 and 1 [96 * 512]."""
    zeros = torch.zeros(96, 512).bfloat16()
    norm = norms.Norm(torch.ones(512), None, 1e-5)
    total, _ = norms.residual_norm(zeros, zeros + 1, norm, Dropout(0.25, seed))
    return (total.flatten() > 0).float()


def test_dropout_keeps_its_share_and_seeds_do_not_repeat_each_other() -> None:
    masks = [kept_by(seed) for seed in (77, 78, 77 + 512)]
    for mask in masks:
        assert abs(float(mask.mean()) - 0.75) < 0.01
        assert abs(float(torch.corrcoef(torch.stack([mask[1:], mask[:-1]]))[0, 1])) < 0.02
    for other, shift in ((1, 0), (1, 1), (2, 0), (2, 512)):
        pair = torch.stack([masks[0][shift:], masks[other][: len(masks[0]) - shift]])
        assert abs(float(torch.corrcoef(pair)[0, 1])) < 0.02


@pytest.mark.parametrize("tokens", [1, 128, 200, 700])
@pytest.mark.parametrize("words", [1, 3, 400])
def test_gradient_of_a_table(tokens: int, words: int) -> None:
    torch.manual_seed(0)
    rows, ids = torch.randn(tokens, 40), torch.randint(0, words, (tokens,))
    expected = torch.zeros(words + 5, 40).index_add(0, ids, rows)
    torch.testing.assert_close(embedding_gradient(rows, ids, words + 5), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("z_loss", [0.0, 0.1])
@pytest.mark.parametrize(("rows", "columns"), [(1, 64), (11, 9000), (40, 700)])
def test_cross_entropy_and_its_gradient(rows: int, columns: int, z_loss: float) -> None:
    torch.manual_seed(0)
    logits = (torch.randn(rows, columns) * 3).requires_grad_()
    targets = torch.randint(0, columns - 3, (rows,))
    targets[3::4] = -1
    padded = torch.cat([logits[:, :-3], torch.full((rows, 3), -1e4)], dim=1)  # as padding of a vocabulary
    losses = F.cross_entropy(padded, targets, ignore_index=-1, reduction="none")
    real_sums = padded.logsumexp(1) * (targets != -1)
    (losses.sum() + z_loss * (real_sums**2).sum()).backward()
    assert logits.grad is not None
    given = padded.detach().clone()
    log_sums, found, predicted = cross_entropy.loss_statistics(given, targets)
    torch.testing.assert_close(found, losses.detach(), rtol=1e-5, atol=1e-5)
    assert predicted.equal(given.argmax(1))
    gradient, sums = cross_entropy.loss_gradient(given, log_sums, targets, z_loss)
    torch.testing.assert_close(gradient, logits.grad, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(sums, logits.grad.sum(0), rtol=1e-4, atol=1e-5)


def test_geglu_and_its_gradient() -> None:
    torch.manual_seed(0)
    inner, dout = torch.randn(37, 2 * 72).bfloat16(), torch.randn(37, 72).bfloat16()
    wide = inner.float().requires_grad_()
    value, gate = wide.chunk(2, dim=-1)
    expected = F.gelu(value) * gate
    expected.backward(dout.float())
    torch.testing.assert_close(activations.geglu(inner).float(), expected, rtol=2e-2, atol=1e-2)
    found = activations.geglu_backward(dout, inner).float()
    torch.testing.assert_close(found, wide.grad, rtol=2e-2, atol=1e-2)


MODELS: dict[str, dict[str, Any]] = {
    "bert": {"initializer_range": 0.1},
    "albert": {"embedding_size": 32, "initializer_range": 0.1},
    "modern": {},
    "modern-pairs": {},
    "pre-norm": {"norm": "pre", "hidden_dropout": 0.0, "activation": "gelu_tanh"},
    "rotary-post-norm": {"initializer_range": 0.1},
    "left-to-right": {"initializer_range": 0.1},
}


@pytest.mark.parametrize(
    ("name", "short"), [*((name, attention.SHORT) for name in MODELS), pytest.param("modern", 8, id="tiles")]
)
def test_fused_models_equal_plain_ones(name: str, short: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "SHORT", short)
    style = "bert" if name == "pre-norm" else name
    # Of two layers, "modern" has one global layer and one with a window.
    fields: dict[str, Any] = {"layers": 2 if name == "modern" else 1, "max_positions": 20, **MODELS[name]}
    batch = pack(random_rows(3, VOCAB, lengths=(7, 20), masked=(1, 5)))
    losses, gradients = [], []
    for fused in (True, False):
        torch.manual_seed(0)
        config = small_config(style, **fields)
        model = BertPretraining(config).eval()
        assert fused_obstacle(config, Kernel("varlen", ""), torch.bfloat16) is None
        model.encoder.fused = fused
        model.encoder.keeps_copies = name not in ("pre-norm", "rotary-post-norm")
        model.kernel = "varlen" if fused else "padded"
        loss, _ = PretrainingLoss(model, 3)(batch, batch_totals([batch]))
        states = model.hidden_states(batch)
        loss.backward()
        losses.append(loss.detach())
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
        assert len(states) == config.layers + 1
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=0)
    assert gradients[0].keys() == gradients[1].keys()
    largest = max(float(gradient.norm()) for gradient in gradients[1].values())
    for parameter, fused_gradient in gradients[0].items():
        plain = gradients[1][parameter]
        assert fused_gradient.dtype == torch.float32
        distance = (fused_gradient - plain).norm() / (plain.norm() + 1e-3 * largest)
        # A constant does not change a softmax, so the gradient of the keys' bias consists of rounding errors.
        assert distance < 1e-3 or parameter.endswith("qkv.bias"), (parameter, float(distance))


@pytest.mark.parametrize("name", ["bert", "pre-norm", "modern"])
def test_used_hidden_states_alone_equal_those_of_all_tokens(name: str) -> None:
    style = "bert" if name == "pre-norm" else name
    rows = random_rows(3, VOCAB, lengths=(7, 20), masked=(1, 5))
    rows[0].masked[0] = 7  # a first token that is masked too: two gradients for one token
    packed = pack(rows)
    batch = packed.padded_to(packed.tokens + 9, sequences=9, masked=20)
    found = []
    for used_only in (True, True, False):
        torch.manual_seed(0)
        fields: dict[str, Any] = {"layers": 1, "max_positions": 20, **MODELS[name], "hidden_dropout": 0.0}
        model = BertPretraining(small_config(style, **fields)).train()
        model.encoder.fused, model.kernel = True, "varlen"
        if used_only:
            masked, first = model.encode_used(batch)
        else:
            hidden = model.encode(batch)
            masked, first = hidden.index_select(0, batch.masked_index), model.first_tokens(hidden, batch)
        loss = PretrainingLoss(model, 3).of_output(
            model.heads_at(masked, first), batch, batch_totals([batch])
        )
        loss.loss.backward()
        gradients = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        found.append((loss.loss.detach(), loss.statistics, gradients))
    for first_run, second_run, expected in zip(*found, strict=True):
        assert first_run.equal(second_run)
        torch.testing.assert_close(first_run, expected, rtol=1e-4, atol=1e-6)


def test_dropout_of_used_hidden_states_depends_on_the_seed_alone() -> None:
    batch = pack(random_rows(3, VOCAB, lengths=(7, 20), masked=(1, 5)))
    model = BertPretraining(small_config("bert", layers=1, max_positions=20, hidden_dropout=0.3)).train()
    model.encoder.fused, model.kernel = True, "varlen"
    losses, gradients = [], []
    for seed, recomputed in ((1, 0), (1, 0), (1, 1), (2, 0)):
        model.zero_grad(set_to_none=True)
        model.encoder.recompute_layers = recomputed
        torch.manual_seed(seed)
        loss, _ = PretrainingLoss(model, 3)(batch, batch_totals([batch]))
        loss.backward()
        losses.append(float(loss.detach()))
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert losses[0] == losses[1] == losses[2] != losses[3]
    assert gradients[0].equal(gradients[1])
    assert gradients[0].equal(gradients[2])
