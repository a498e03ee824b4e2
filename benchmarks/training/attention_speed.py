"""Attention of packed sequences, forward and backward, against the kernels of torch: JSON lines.

    python -m benchmarks.training.attention_speed --out attention_speed.jsonl

Each line has microseconds and TFLOP/s (4 and 10 operations a token, key and column), whether four
repetitions of the backward pass gave equal bits, and whether gradients at extreme logits are finite. ours
includes the sums for the bias of queries, keys and values. "used tokens" has queries of the first and of 15 %
of all tokens, as the last layer has in pretraining. cudnn and flash take packed sequences. padded is what
transformers does with drawn lengths: SDPA with a mask on padded rows.
"""

import argparse
import json
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from trainer.kernels.attention import (
    Attended,
    AttentionSpec,
    Queries,
    QueryKeyValue,
    Sequences,
    attention_backward,
    attention_forward,
)

Result = tuple[Tensor, Callable[[Tensor], tuple[Tensor, ...]]]


class Case(NamedTuple):
    """Packed sequences of these lengths."""

    name: str
    lengths: list[int]
    heads: int
    size: int = 64


def cases(tokens: int) -> list[Case]:
    """Equal lengths for base and large, and the drawn lengths of train_throughput."""
    random = torch.Generator().manual_seed(0)

    def drawn(low: int, high: int) -> list[int]:
        return torch.randint(low, high + 1, (2 * tokens // (low + high),), generator=random).tolist()

    equal = [Case(f"{length}", [length] * (tokens // length), 12) for length in (128, 256, 512, 1024)]
    large = [Case(f"{length}, large", [length] * (tokens // 2 // length), 16) for length in (128, 512)]
    return [
        *equal, *large, Case("12 to 512", drawn(12, 512), 12), Case("32 to 128", drawn(32, 128), 12),
        Case("12 to 496, large", drawn(12, 496)[: tokens // 508], 16),
    ]  # fmt: skip


def sequences_of(lengths: list[int]) -> Sequences:
    """Their bounds and positions, on the GPU."""
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).cuda()
    return Sequences(bounds, max(lengths), torch.cat([torch.arange(n) for n in lengths]).cuda())


def ours(qkv: Tensor, sequences: Sequences, heads: int) -> Result:
    """The trainer's kernels."""
    spec = AttentionSpec(heads)
    inputs = QueryKeyValue.of_product(qkv)
    out, logsum = attention_forward(inputs, sequences, spec)

    def backward(dout: Tensor) -> tuple[Tensor, ...]:
        found, attended = torch.empty_like(qkv), Attended(*inputs, out, logsum)
        into = QueryKeyValue.of_product(found)
        sums = attention_backward(dout, attended, into, sequences, spec, bias=True)
        assert sums is not None
        return found, sums

    return out, backward


@cache
def used_queries(sequences: Sequences) -> Queries:
    """Those of the first token of each sequence and of 15 % of all tokens."""
    tokens = len(sequences.positions)
    masked = torch.rand(tokens, generator=torch.Generator().manual_seed(0)) < 0.15
    firsts = sequences.cu_seqlens[:-1].long()
    return Queries.of(torch.cat([masked.nonzero()[:, 0].cuda(), firsts]), sequences.cu_seqlens)


def ours_of_used(qkv: Tensor, sequences: Sequences, heads: int) -> Result:
    """The trainer's kernels for the last layer."""
    spec, queries, width = AttentionSpec(heads), used_queries(sequences), qkv.shape[1] // 3
    inputs = QueryKeyValue(qkv[queries.tokens, :width], qkv[:, width:])
    out, logsum = attention_forward(inputs, sequences, spec, queries)

    def backward(dout: Tensor) -> tuple[Tensor, ...]:
        into = QueryKeyValue(torch.empty_like(inputs.query), torch.empty_like(qkv)[:, width:])
        attended = Attended(*inputs, out, logsum)
        sums = attention_backward(dout, attended, into, sequences, spec, queries, bias=True)
        assert sums is not None
        return *into, sums

    return out, backward


def _heads(qkv: Tensor, heads: int) -> tuple[Tensor, ...]:
    return qkv.view(qkv.shape[0], 3, heads, -1).unbind(1)


def cudnn(qkv: Tensor, sequences: Sequences, heads: int) -> Result:
    """Run cuDNN on rows of equal length."""
    count = sequences.cu_seqlens.shape[0] - 1
    rows = [x.unflatten(0, (count, -1)).transpose(1, 2) for x in _heads(qkv, heads)]
    found = torch.ops.aten._scaled_dot_product_cudnn_attention(*rows, None, True)
    out, logsum, cum_q, cum_k, max_q, max_k, seed, offset, _ = found

    def backward(dout: Tensor) -> tuple[Tensor, ...]:
        of_rows = dout.view(count, -1, heads, dout.shape[1] // heads).transpose(1, 2)
        gradients: tuple[Tensor, ...] = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            of_rows, *rows, out, logsum, seed, offset, None, cum_q, cum_k, max_q, max_k, 0.0, False
        )
        return gradients

    return out.transpose(1, 2).reshape(qkv.shape[0], -1), backward


def cudnn_packed(qkv: Tensor, sequences: Sequences, heads: int) -> Result:
    """Run cuDNN on packed sequences."""
    rows, bounds, longest = _heads(qkv, heads), sequences.cu_seqlens, sequences.max_seqlen
    out, logsum, cum_q, cum_k, max_q, max_k, seed, offset, _ = torch.ops.aten._cudnn_attention_forward(
        *rows, None, bounds, bounds, longest, longest, True
    )

    def backward(dout: Tensor) -> tuple[Tensor, ...]:
        gradients: tuple[Tensor, ...] = torch.ops.aten._cudnn_attention_backward(
            dout.view_as(out), *rows, out, logsum, seed, offset, qkv[:0], cum_q, cum_k, max_q, max_k,
            0.0, False,
        )  # fmt: skip
        return gradients

    return out.reshape(qkv.shape[0], -1), backward


def flash_packed(qkv: Tensor, sequences: Sequences, heads: int) -> Result:
    """Run torch's FlashAttention 2 on packed sequences."""
    rows, bounds, longest = _heads(qkv, heads), sequences.cu_seqlens, sequences.max_seqlen
    out, logsum, state, unused, _ = torch.ops.aten._flash_attention_forward(
        *rows, bounds, bounds, longest, longest, 0.0, False, False
    )

    def backward(dout: Tensor) -> tuple[Tensor, ...]:
        gradients: tuple[Tensor, ...] = torch.ops.aten._flash_attention_backward(
            dout.view_as(out), *rows, out, logsum, bounds, bounds, longest, longest, 0.0, False, state, unused
        )
        return gradients

    return out.reshape(qkv.shape[0], -1), backward


def padded(qkv: Tensor, sequences: Sequences, heads: int) -> Result:
    """SDPA on padded rows with a mask of the keys; the copies are not counted."""
    lengths, longest = sequences.cu_seqlens.diff(), sequences.max_seqlen
    inside = torch.arange(longest, device=qkv.device)[None, :] < lengths[:, None]
    rows = torch.zeros(*inside.shape, qkv.shape[1], dtype=qkv.dtype, device=qkv.device)
    rows[inside] = qkv
    parts = [x.transpose(1, 2) for x in rows.view(*inside.shape, 3, heads, -1).unbind(2)]
    parts = [part.detach().requires_grad_() for part in parts]
    mask = inside[:, None, None, :].expand(-1, 1, longest, -1)
    query, key, value = parts
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    grown = torch.zeros(*inside.shape, qkv.shape[1] // 3, dtype=qkv.dtype, device=qkv.device)

    def backward(dout: Tensor) -> tuple[Tensor, ...]:
        if not grown.any():
            grown[inside] = dout
        of_rows = grown.unflatten(2, (heads, -1)).transpose(1, 2)
        return torch.autograd.grad(out, parts, of_rows, retain_graph=True)

    backward(torch.ones_like(qkv[:, : qkv.shape[1] // 3]))
    return out.transpose(1, 2)[inside].flatten(1), backward


USED = "ours, used tokens"
PROGRAMS: dict[str, Callable[[Tensor, Sequences, int], Result]] = {
    "ours": ours,
    USED: ours_of_used,
    "cudnn": cudnn,
    "cudnn packed": cudnn_packed,
    "flash packed": flash_packed,
    "padded": padded,
}


def _microseconds(function: Callable[[], Any]) -> float:
    return 1e3 * float(triton.testing.do_bench(function, warmup=20, rep=60, return_mode="median"))


def measure(case: Case, name: str) -> dict[str, Any]:
    """One program on one case."""
    torch.manual_seed(0)
    program, width = PROGRAMS[name], case.heads * case.size
    sequences, tokens = sequences_of(case.lengths), sum(case.lengths)
    qkv = torch.randn(tokens, 3 * width, device="cuda").bfloat16()
    dout = torch.randn(tokens, width, device="cuda").bfloat16()
    out, backward = program(qkv, sequences, case.heads)
    reference, _ = ours(qkv, sequences, case.heads)
    if name == USED:
        chosen = used_queries(sequences).tokens
        reference, dout = reference[chosen], dout[chosen]
    difference = float((out.float() - reference.float()).norm() / reference.float().norm())
    found = [backward(dout) for _ in range(4)]
    equal = all(a.equal(b) for other in found[1:] for a, b in zip(found[0], other, strict=True))
    operations = sum(length**2 for length in case.lengths) * width / 1e6 * len(out) / tokens
    # Padded rows are run whole by autograd, so the backward pass is timed alone, on a kept graph.
    times = {
        "forward": _microseconds(partial(program, qkv, sequences, case.heads)) if name != "padded" else 0.0,
        "backward": _microseconds(lambda: backward(dout)),
    }
    rates = {f"{kind}_tflops": factor * operations / times[kind] for kind, factor in
             (("forward", 4), ("backward", 10)) if times[kind]}  # fmt: skip
    extreme = torch.zeros(tokens, 3 * width, device="cuda")
    extreme[:, :width], extreme[:, width : 2 * width] = 20.0, -20.0
    low, low_backward = program((extreme + 0.01 * qkv).bfloat16(), sequences, case.heads)
    finite = all(bool(x.isfinite().all()) for x in (low, *low_backward(dout)))
    return {"tokens": tokens, "difference": round(difference, 5), "equal_bits": equal, "finite": finite,
            **{f"{kind}_us": round(time, 1) for kind, time in times.items()},
            **{kind: round(rate, 1) for kind, rate in rates.items()}}  # fmt: skip


def main() -> int:
    """Measures every program on every case that it can compute."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("attention_speed.jsonl"))
    parser.add_argument("--tokens", type=int, default=131072)
    arguments = parser.parse_args()
    for case in cases(arguments.tokens):
        for name in PROGRAMS:
            if (name == "cudnn") != (len(set(case.lengths)) == 1) and name in ("cudnn", "padded"):
                continue
            line: dict[str, Any] = {"case": case.name, "program": name, "card": torch.cuda.get_device_name()}
            try:
                line |= measure(case, name)
            except (RuntimeError, AttributeError) as error:
                line["error"] = str(error).splitlines()[0][:200]
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
