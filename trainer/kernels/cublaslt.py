"""Matrix products through cuBLASLt, NVIDIA's library, where torch offers no choice of algorithm or epilogue.

torch has already loaded the library. This module calls its C interface (cublasLt.h, the enumerations of the
cuBLAS 12 and 13 documentation). The library stores matrices by columns, so a row-major tensor [r, c] is its
matrix [c, r].
"""

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from schemas.errors import BertmillError

_WORKSPACE_BYTES = 32 << 20
_CANDIDATES = 8

_FP32, _BF16, _COMPUTE_FP32 = 0, 14, 68
_TRANSPOSE_A, _TRANSPOSE_B, _EPILOGUE, _BIAS, _AUX, _AUX_LD = 3, 4, 7, 8, 11, 12
_MAX_WORKSPACE = 1
# Epilogues. DGELU multiplies by the derivative of GELU.
NOTHING, ADD_BIAS, GELU_AUX_BIAS, DGELU = 1, 4, 164, 192

Algorithm = ctypes.Array[ctypes.c_uint64]
_ALGORITHM = ctypes.c_uint64 * 8


class _Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", _ALGORITHM),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class Problem(NamedTuple):
    """D [m, n] = op(A) op(B) (+ D), with an epilogue. A and B are bf16, D is bf16 or fp32."""

    m: int
    n: int
    k: int
    transpose_a: bool
    transpose_b: bool
    epilogue: int = NOTHING
    out_fp32: bool = False
    accumulate: bool = False


class Operands(NamedTuple):
    """The tensors of a problem, contiguous, on one device."""

    a: Tensor
    b: Tensor
    out: Tensor
    bias: Tensor | None = None
    aux: Tensor | None = None
    """The argument of GELU: where to write it, or for its derivative, where to read it."""


@dataclass
class _Plan:
    operation: ctypes.c_void_p
    layouts: tuple[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    paths = sorted({line.split()[-1] for line in maps if "libcublasLt.so" in line})
    if not paths:
        raise BertmillError("kernels: torch has not loaded libcublasLt; set kernels to plain")
    library = ctypes.CDLL(paths[0])
    library.cublasLtGetVersion.restype = ctypes.c_size_t
    return library


def _call(name: str, *arguments: object) -> None:
    status = getattr(_library(), name)(*arguments)
    if status:
        raise BertmillError(f"kernels: {name} failed with status {status}; set kernels to plain")


def _set(operation: ctypes.c_void_p, attribute: int, value: "ctypes._SimpleCData[Any]") -> None:
    _call(
        "cublasLtMatmulDescSetAttribute", operation, attribute, ctypes.byref(value),
        ctypes.c_size_t(ctypes.sizeof(value)),
    )  # fmt: skip


def _layout(rows: int, columns: int, kind: int) -> ctypes.c_void_p:
    """A matrix that is stored by columns, without gaps."""
    layout = ctypes.c_void_p()
    _call(
        "cublasLtMatrixLayoutCreate", ctypes.byref(layout), kind,
        ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows),
    )  # fmt: skip
    return layout


def algorithm_to_text(algorithm: Algorithm) -> str:
    """An algorithm as hexadecimal text. The library's documentation allows an algorithm to be stored and
    restored for the same version of the library.
    """
    return bytes(algorithm).hex()


def algorithm_from_text(text: str) -> Algorithm:
    """The algorithm of ``algorithm_to_text``. Raises ValueError for anything else."""
    data = bytes.fromhex(text)
    if len(data) != ctypes.sizeof(_ALGORITHM):
        raise ValueError(f"an algorithm has {ctypes.sizeof(_ALGORITHM)} bytes, got {len(data)}")
    return _ALGORITHM.from_buffer_copy(data)


class CublasLt:
    """The library's handle, plans and workspace on one device. Raises BertmillError where a call fails."""

    def __init__(self, device: torch.device) -> None:
        torch.zeros(8, 8, device=device).mm(torch.zeros(8, 8, device=device))  # loads the library
        self._handle = ctypes.c_void_p()
        _call("cublasLtCreate", ctypes.byref(self._handle))
        self._workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._plans: dict[Problem, _Plan] = {}

    @property
    def version(self) -> int:
        """The library's version. An algorithm is valid for one version only."""
        return int(_library().cublasLtGetVersion())

    def candidates(self, problem: Problem) -> list[Algorithm]:
        """The algorithms that the library's heuristic names, its first choice first. May be empty."""
        plan, preference = self._plan(problem), ctypes.c_void_p()
        _call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        size = ctypes.c_size_t(_WORKSPACE_BYTES)
        _call(
            "cublasLtMatmulPreferenceSetAttribute", preference, _MAX_WORKSPACE, ctypes.byref(size),
            ctypes.c_size_t(ctypes.sizeof(size)),
        )  # fmt: skip
        heuristics, count = (_Heuristic * _CANDIDATES)(), ctypes.c_int()
        of_a, of_b, of_out = plan.layouts
        _call(
            "cublasLtMatmulAlgoGetHeuristic", self._handle, plan.operation, of_a, of_b, of_out, of_out,
            preference, _CANDIDATES, heuristics, ctypes.byref(count),
        )  # fmt: skip
        _call("cublasLtMatmulPreferenceDestroy", preference)
        results = [result for result in heuristics[: count.value] if result.state == 0]
        return [_ALGORITHM(*result.algorithm) for result in results]

    def supports(self, problem: Problem, algorithm: Algorithm) -> bool:
        """Whether ``algorithm`` can compute ``problem`` within the workspace."""
        plan, result = self._plan(problem), _Heuristic()
        of_a, of_b, of_out = plan.layouts
        status = _library().cublasLtMatmulAlgoCheck(
            self._handle, plan.operation, of_a, of_b, of_out, of_out, algorithm, ctypes.byref(result)
        )
        return not status and result.state == 0 and result.workspace <= _WORKSPACE_BYTES

    def run(self, problem: Problem, algorithm: Algorithm, operands: Operands) -> None:
        """Computes the product on the current stream."""
        plan = self._plan(problem)
        if operands.bias is not None:
            _set(plan.operation, _BIAS, ctypes.c_void_p(operands.bias.data_ptr()))
        if operands.aux is not None:
            _set(plan.operation, _AUX, ctypes.c_void_p(operands.aux.data_ptr()))
        of_a, of_b, of_out = plan.layouts
        one, beta = ctypes.c_float(1.0), ctypes.c_float(problem.accumulate)
        out = ctypes.c_void_p(operands.out.data_ptr())
        _call(
            "cublasLtMatmul", self._handle, plan.operation, ctypes.byref(one),
            ctypes.c_void_p(operands.a.data_ptr()), of_a, ctypes.c_void_p(operands.b.data_ptr()), of_b,
            ctypes.byref(beta), out, of_out, out, of_out, algorithm,
            ctypes.c_void_p(self._workspace.data_ptr()), ctypes.c_size_t(_WORKSPACE_BYTES),
            ctypes.c_void_p(torch.cuda.current_stream(operands.out.device).cuda_stream),
        )  # fmt: skip

    def _plan(self, problem: Problem) -> _Plan:
        plan = self._plans.get(problem)
        if plan is None:
            plan = self._plans[problem] = _new_plan(problem)
            if problem.epilogue == DGELU:
                # The heuristic refuses this plan without a pointer. `run` sets the real one.
                _set(plan.operation, _AUX, ctypes.c_void_p(self._workspace.data_ptr()))
        return plan


def _new_plan(problem: Problem) -> _Plan:
    operation = ctypes.c_void_p()
    _call("cublasLtMatmulDescCreate", ctypes.byref(operation), _COMPUTE_FP32, _FP32)
    _set(operation, _TRANSPOSE_A, ctypes.c_int32(problem.transpose_a))
    _set(operation, _TRANSPOSE_B, ctypes.c_int32(problem.transpose_b))
    _set(operation, _EPILOGUE, ctypes.c_int32(problem.epilogue))
    if problem.epilogue in (GELU_AUX_BIAS, DGELU):
        _set(operation, _AUX_LD, ctypes.c_int64(problem.m))
    m, n, k = problem.m, problem.n, problem.k
    of_a = _layout(*((k, m) if problem.transpose_a else (m, k)), _BF16)
    of_b = _layout(*((n, k) if problem.transpose_b else (k, n)), _BF16)
    return _Plan(operation, (of_a, of_b, _layout(m, n, _FP32 if problem.out_fp32 else _BF16)))


@lru_cache
def cublaslt(device: torch.device) -> CublasLt:
    """The library on ``device``. Raises BertmillError when torch has not loaded it."""
    return CublasLt(device)
