"""A product with GELU in its epilogue that keeps GELU's argument, which torch does not offer.

cuBLASLt, NVIDIA's library, is loaded by torch already; it is called here through its C interface
(cublasLt.h, the enumerations of the cuBLAS 12 and 13 documentation). Its GELU is the one by tanh. The
first call for a shape times the library's candidates and keeps the quickest.
"""

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from schemas.errors import BertmillError

_WORKSPACE_BYTES = 32 << 20
_CANDIDATES = 8
_REPEATS = 3

_R_32F, _R_16BF, _COMPUTE_32F = 0, 14, 68
_TRANSPOSE_A, _EPILOGUE, _BIAS, _AUX, _AUX_LD = 3, 7, 8, 11, 12
_MAX_WORKSPACE = 1
_GELU_AUX_BIAS = 164


class _Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass
class _Plan:
    """A product of one shape: its descriptor, the layouts of A, B and D, and the algorithm."""

    operation: ctypes.c_void_p
    layouts: tuple[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    algorithm: ctypes.Array[ctypes.c_uint64] | None = None


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    paths = sorted({line.split()[-1] for line in maps if "libcublasLt.so" in line})
    if not paths:
        raise BertmillError("kernels: torch has not loaded libcublasLt")
    return ctypes.CDLL(paths[0])


def _call(name: str, *arguments: object) -> None:
    status = getattr(_library(), name)(*arguments)
    if status:
        raise BertmillError(f"kernels: {name} failed with status {status}")


class _Products:
    """The library's handle, plans and workspace on one device."""

    def __init__(self, device: torch.device) -> None:
        torch.zeros(8, 8, device=device).mm(torch.zeros(8, 8, device=device))  # loads the library
        self._handle = ctypes.c_void_p()
        _call("cublasLtCreate", ctypes.byref(self._handle))
        self._workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._plans: dict[tuple[int, int, int], _Plan] = {}

    def run(self, a: Tensor, b: Tensor, out: Tensor, bias: Tensor, aux: Tensor) -> None:
        """GELU of b [t, k] times a [n, k] transposed plus bias goes to out [t, n], its argument to aux."""
        (tokens, width), inner = out.shape, b.shape[1]
        key = (width, tokens, inner)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._plan(*key)
        _set(plan.operation, _BIAS, ctypes.c_void_p(bias.data_ptr()))
        _set(plan.operation, _AUX, ctypes.c_void_p(aux.data_ptr()))
        if plan.algorithm is None:
            plan.algorithm = self._quickest(plan, a, b, out)
        self._multiply(plan, plan.algorithm, a, b, out)

    def _plan(self, width: int, tokens: int, inner: int) -> _Plan:
        # The library's matrices are stored by columns: ours are their transposes, so D' = op(A)' B'.
        operation = ctypes.c_void_p()
        _call("cublasLtMatmulDescCreate", ctypes.byref(operation), _COMPUTE_32F, _R_32F)
        _set(operation, _TRANSPOSE_A, ctypes.c_int32(1))
        _set(operation, _EPILOGUE, ctypes.c_int32(_GELU_AUX_BIAS))
        _set(operation, _AUX_LD, ctypes.c_int64(width))
        return _Plan(operation, (_layout(inner, width), _layout(inner, tokens), _layout(width, tokens)))

    def _multiply(
        self, plan: _Plan, algorithm: ctypes.Array[ctypes.c_uint64], a: Tensor, b: Tensor, out: Tensor
    ) -> None:
        of_a, of_b, of_out = plan.layouts
        one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        place = ctypes.c_void_p(out.data_ptr())
        _call(
            "cublasLtMatmul", self._handle, plan.operation, ctypes.byref(one),
            ctypes.c_void_p(a.data_ptr()), of_a, ctypes.c_void_p(b.data_ptr()), of_b,
            ctypes.byref(zero), place, of_out, place, of_out, algorithm,
            ctypes.c_void_p(self._workspace.data_ptr()), ctypes.c_size_t(_WORKSPACE_BYTES),
            ctypes.c_void_p(torch.cuda.current_stream(out.device).cuda_stream),
        )  # fmt: skip

    def _quickest(self, plan: _Plan, a: Tensor, b: Tensor, out: Tensor) -> ctypes.Array[ctypes.c_uint64]:
        """The candidate that takes the least time on these tensors."""
        preference = ctypes.c_void_p()
        _call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        size = ctypes.c_size_t(_WORKSPACE_BYTES)
        _call(
            "cublasLtMatmulPreferenceSetAttribute", preference, _MAX_WORKSPACE, ctypes.byref(size),
            ctypes.c_size_t(ctypes.sizeof(size)),
        )  # fmt: skip
        found = (_Heuristic * _CANDIDATES)()
        count = ctypes.c_int()
        of_a, of_b, of_out = plan.layouts
        _call(
            "cublasLtMatmulAlgoGetHeuristic", self._handle, plan.operation, of_a, of_b, of_out, of_out,
            preference, _CANDIDATES, found, ctypes.byref(count),
        )  # fmt: skip
        _call("cublasLtMatmulPreferenceDestroy", preference)
        candidates = [one.algorithm for one in found[: count.value] if one.state == 0]
        if not candidates:
            raise BertmillError(f"kernels: cuBLASLt has no algorithm for a product of {tuple(out.shape)}")
        times = [self._seconds(plan, candidate, a, b, out) for candidate in candidates]
        best = candidates[times.index(min(times))]
        copy: ctypes.Array[ctypes.c_uint64] = type(best)(*best)
        return copy

    def _seconds(
        self, plan: _Plan, algorithm: ctypes.Array[ctypes.c_uint64], a: Tensor, b: Tensor, out: Tensor
    ) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's
        self._multiply(plan, algorithm, a, b, out)
        begin.record()
        for _ in range(_REPEATS):
            self._multiply(plan, algorithm, a, b, out)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))


def _layout(rows: int, columns: int) -> ctypes.c_void_p:
    """A bf16 matrix that is stored by columns, without gaps."""
    layout = ctypes.c_void_p()
    _call(
        "cublasLtMatrixLayoutCreate", ctypes.byref(layout), _R_16BF,
        ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows),
    )  # fmt: skip
    return layout


def _set(operation: ctypes.c_void_p, attribute: int, value: "ctypes._SimpleCData[Any]") -> None:
    _call(
        "cublasLtMatmulDescSetAttribute", operation, attribute, ctypes.byref(value),
        ctypes.c_size_t(ctypes.sizeof(value)),
    )  # fmt: skip


@lru_cache
def _products(device: torch.device) -> _Products:
    return _Products(device)


def gelu_product(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """GELU (by tanh) of x W' + bias, and its argument: bf16 [T, k], [n, k], [n] -> two of [T, n].

    Needs contiguous tensors. Raises BertmillError when the library refuses.
    """
    before = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype, device=x.device)
    out = torch.empty_like(before)
    _products(x.device).run(weight, x, out, bias, before)
    return out, before
