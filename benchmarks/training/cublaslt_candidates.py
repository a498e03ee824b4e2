"""Compares torch's algorithm with the fastest of cuBLASLt's candidates, for the products of a layer on a GPU.

    python -m benchmarks.training.cublaslt_candidates

Prints, for BERT-base at 131,072 tokens and BERT-large at 65,536, a JSON line for each product with the
microseconds of torch and of the chosen algorithm: medians of alternating rounds, so that the GPU is equally
warm for both. The product with GELU in its epilogue is left out, because torch does not have it.
"""

import json
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from trainer.kernels.matmuls import (
    Matmul,
    add_input_gradient,
    choose_algorithms,
    input_gradient,
    linear,
    matmuls_of_layer,
    use_algorithms,
    weight_gradient,
)

SHAPES = {"base": (131_072, 768, 3_072), "large": (65_536, 1_024, 4_096)}
_ROUNDS, _REPEATS = 5, 10


def call_of(matmul: Matmul, tokens: int) -> Callable[[], Tensor]:
    """The product on random operands."""

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.5

    n, k = matmul.n, matmul.k
    x, dy, weight, bias = random(tokens, k), random(tokens, n), random(n, k), random(n)
    calls: dict[str, Callable[[], Tensor]] = {
        "forward": lambda: linear(x, weight, bias if matmul.bias else None),
        "input": lambda: input_gradient(dy, weight),
        "input add": lambda: add_input_gradient(x, dy, weight),
        "weight": lambda: weight_gradient(dy, x),
    }
    return calls[matmul.kind]


def microseconds(call: Callable[[], object]) -> float:
    """Microseconds of one call, after two that are not measured."""
    call(), call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(_REPEATS):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / _REPEATS * 1e3


def compare(matmul: Matmul, tokens: int, device: torch.device) -> dict[str, float]:
    """Microseconds of torch and of the chosen algorithm."""
    choice = choose_algorithms([matmul], tokens, device)
    call = call_of(matmul, tokens)
    rounds = []
    for _ in range(_ROUNDS):
        times = []
        for algorithms in ({}, choice):
            use_algorithms(device, algorithms)
            times.append(microseconds(call))
        rounds.append(times)
    torch_us, chosen_us = (statistics.median(column) for column in zip(*rounds, strict=True))
    return {"torch_us": torch_us, "chosen_us": chosen_us}


def main() -> None:
    """Prints the lines, and the sums of each size."""
    device = torch.device("cuda", torch.cuda.current_device())
    for size, (tokens, hidden, inner) in SHAPES.items():
        total = dict.fromkeys(("torch_us", "chosen_us"), 0.0)
        for matmul in matmuls_of_layer(hidden, inner, gated=False, tanh=True, bias=True, pre_norm=False):
            if matmul.kind == "gelu":
                continue
            found = compare(matmul, tokens, device)
            for name in total:
                total[name] += found[name]
            print(json.dumps({"size": size, "tokens": tokens, "product": matmul.key, **found}), flush=True)
        print(json.dumps({"size": size, "product": "all", **total}), flush=True)


if __name__ == "__main__":
    main()
