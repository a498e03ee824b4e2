"""The products of a layer, on a GPU: torch's choice of algorithm against the quickest of cuBLASLt's.

    python -m benchmarks.cublaslt_candidates

For BERT-base at 131,072 tokens and BERT-large at 65,536, a JSON line for each product (forward, gradient of
the input, gradient of the weight): microseconds of torch, of the library's first candidate and of its
quickest, medians of interleaved rounds so that the card is as warm for each, and the relative error of the
quickest against torch. Gradients of inputs that torch adds to another are added here, too. The product with
GELU in its epilogue is left out: trainer/cublaslt.py chooses for it already.
"""

import ctypes
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from trainer import cublaslt

SHAPES = {"base": (131_072, 768, 3_072), "large": (65_536, 1_024, 4_096)}
_MOST = 100
_WORKSPACE_BYTES = 64 << 20
_TRANSPOSE_A, _TRANSPOSE_B, _EPILOGUE, _BIAS = 3, 4, 7, 8
_WITH_BIAS = 4
_FP32, _BF16, _COMPUTE_FP32 = 0, 14, 68
_ROUNDS, _REPEATS, _FINALISTS = 5, 10, 4

Algorithm = ctypes.Array[ctypes.c_uint64]


def _layout(rows: int, columns: int, kind: int) -> ctypes.c_void_p:
    """A matrix that is stored by columns."""
    layout = ctypes.c_void_p()
    cublaslt._call(
        "cublasLtMatrixLayoutCreate", ctypes.byref(layout), kind,
        ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows),
    )  # fmt: skip
    return layout


@dataclass
class Product:
    """D [m, n] = op(A) op(B) (+ D) (+ bias), all stored by columns, on tensors of its own."""

    name: str
    transposed: tuple[bool, bool]
    shape: tuple[int, int, int]
    """m, n, k."""
    a: Tensor
    b: Tensor
    out: Tensor
    torch_call: Callable[[], Tensor]
    bias: Tensor | None = None
    adds: bool = False

    def __post_init__(self) -> None:
        self._operation = ctypes.c_void_p()
        cublaslt._call("cublasLtMatmulDescCreate", ctypes.byref(self._operation), _COMPUTE_FP32, _FP32)
        for attribute, transposed in zip((_TRANSPOSE_A, _TRANSPOSE_B), self.transposed, strict=True):
            cublaslt._set(self._operation, attribute, ctypes.c_int32(transposed))
        if self.bias is not None:
            cublaslt._set(self._operation, _EPILOGUE, ctypes.c_int32(_WITH_BIAS))
            cublaslt._set(self._operation, _BIAS, ctypes.c_void_p(self.bias.data_ptr()))
        m, n, k = self.shape
        self._of_a = _layout(*((k, m) if self.transposed[0] else (m, k)), _BF16)
        self._of_b = _layout(*((n, k) if self.transposed[1] else (k, n)), _BF16)
        self._of_out = _layout(m, n, _FP32 if self.out.dtype == torch.float32 else _BF16)

    def candidates(self, handle: ctypes.c_void_p) -> list[Algorithm]:
        """What the library's heuristic names, its first choice first."""
        preference, size = ctypes.c_void_p(), ctypes.c_size_t(_WORKSPACE_BYTES)
        cublaslt._call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        cublaslt._call(
            "cublasLtMatmulPreferenceSetAttribute", preference, 1, ctypes.byref(size), ctypes.c_size_t(8)
        )
        found, count = (cublaslt._Heuristic * _MOST)(), ctypes.c_int()
        cublaslt._call(
            "cublasLtMatmulAlgoGetHeuristic", handle, self._operation, self._of_a, self._of_b, self._of_out,
            self._of_out, preference, _MOST, found, ctypes.byref(count),
        )  # fmt: skip
        return [one.algorithm for one in found[: count.value] if one.state == 0]

    def run(self, handle: ctypes.c_void_p, algorithm: Algorithm, workspace: Tensor) -> None:
        """The product by one algorithm."""
        one, beta = ctypes.c_float(1.0), ctypes.c_float(self.adds)
        out = ctypes.c_void_p(self.out.data_ptr())
        cublaslt._call(
            "cublasLtMatmul", handle, self._operation, ctypes.byref(one),
            ctypes.c_void_p(self.a.data_ptr()), self._of_a, ctypes.c_void_p(self.b.data_ptr()), self._of_b,
            ctypes.byref(beta), out, self._of_out, out, self._of_out, algorithm,
            ctypes.c_void_p(workspace.data_ptr()), ctypes.c_size_t(_WORKSPACE_BYTES),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )  # fmt: skip


def products(tokens: int, hidden: int, inner: int) -> list[Product]:
    """Those of one layer, but for the one with GELU."""

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.5

    found = []
    matrices = {"qkv": (3 * hidden, hidden), "out": (hidden, hidden)}
    matrices |= {"up": (inner, hidden), "down": (hidden, inner)}
    for name, (n, k) in matrices.items():
        x, weight, gradient, bias = random(tokens, k), random(n, k), random(tokens, n), random(n)
        adds = name in ("qkv", "up")
        of_input = partial(random(tokens, k).addmm_ if adds else torch.mm, gradient, weight)
        of_weight = partial(torch.mm, gradient.t(), x, out_dtype=torch.float32)
        forward, back = random(tokens, n), random(tokens, k)
        summed = torch.empty(n, k, device="cuda")
        found += [
            Product(f"{name} forward", (True, False), (n, tokens, k), weight, x, forward,
                    partial(torch.addmm, bias, x, weight.t()), bias),
            Product(f"{name} input", (False, False), (k, tokens, n), weight, gradient, back, of_input,
                    adds=adds),
            Product(f"{name} weight", (False, True), (k, n, tokens), x, gradient, summed, of_weight),
        ]  # fmt: skip
    return [product for product in found if product.name != "up forward"]


def microseconds(call: Callable[[], object], repeats: int) -> float:
    """Of one call, after two that are not measured."""
    call(), call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / repeats * 1e3


def compare(product: Product, handle: ctypes.c_void_p, workspace: Tensor) -> dict[str, float | str | int]:
    """torch, the first candidate and the quickest of all, in microseconds."""
    candidates = product.candidates(handle)

    def by(number: int) -> Callable[[], None]:
        return lambda: product.run(handle, candidates[number], workspace)

    rough = sorted(range(len(candidates)), key=lambda number: microseconds(by(number), 3))
    error = -1.0
    if not product.adds:
        wanted = product.torch_call().float()
        by(rough[0])()
        error = float((product.out.float() - wanted).norm() / wanted.norm())
    chosen = [0, *rough[:_FINALISTS]]
    calls = [product.torch_call, *map(by, chosen)]
    rounds = [[microseconds(call, _REPEATS) for call in calls] for _ in range(_ROUNDS)]
    medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
    best = min(medians[1:])
    return {
        "product": product.name, "torch_us": medians[0], "first_us": medians[1], "quickest_us": best,
        "place": chosen[medians.index(best, 1) - 1], "candidates": len(candidates), "error": error,
    }  # fmt: skip


def main() -> None:
    """Prints the lines, and the sums of each size."""
    torch.zeros(8, 8, device="cuda").mm(torch.zeros(8, 8, device="cuda"))  # loads the library
    handle = ctypes.c_void_p()
    cublaslt._call("cublasLtCreate", ctypes.byref(handle))
    workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    for size, shape in SHAPES.items():
        total = dict.fromkeys(("torch_us", "first_us", "quickest_us"), 0.0)
        for product in products(*shape):
            found = compare(product, handle, workspace)
            for name in total:
                total[name] += float(found[name])
            print(json.dumps({"size": size, "tokens": shape[0], **found}), flush=True)
        print(json.dumps({"size": size, "product": "all", **total}), flush=True)


if __name__ == "__main__":
    main()
