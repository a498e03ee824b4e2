"""The matmuls of a layer, each by the algorithm that was chosen for it, otherwise by torch.

torch takes the first algorithm that cuBLASLt's heuristic names. Another of its eight candidates is often
faster. ``choose_algorithms`` times them once, for the shapes of a model on a device: for the weight as it is
and for a transposed copy, together with the copy. A run keeps the choice in its folder and all ranks use it,
so equal seeds give equal bits even after a resume.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from schemas.errors import BertmillError
from trainer.kernels.cublaslt import (
    ADD_BIAS,
    DGELU,
    GELU_AUX_BIAS,
    NOTHING,
    Algorithm,
    CublasLt,
    Operands,
    Problem,
    algorithm_from_text,
    algorithm_to_text,
    cublaslt,
)

_ROUNDS, _REPEATS = 3, 4

Kind = Literal["forward", "gelu", "input", "input add", "input gelu", "weight"]


class Matmul(NamedTuple):
    """A matmul of a linear layer with a weight [n, k], for any number of tokens."""

    kind: Kind
    n: int
    k: int
    bias: bool = False
    transposed: bool = False
    """Whether it takes a copy [k, n] of the weight, for which the library has other algorithms."""

    @property
    def key(self) -> str:
        """Its name in a saved choice."""
        return f"{self.kind} {self.n}x{self.k}{' bias' * self.bias}{' transposed' * self.transposed}"

    def problem(self, tokens: int) -> Problem:
        """What the library computes for ``tokens`` rows."""
        n, k = self.n, self.k
        if self.kind == "forward":
            return Problem(n, tokens, k, not self.transposed, False, ADD_BIAS if self.bias else NOTHING)
        if self.kind == "gelu":
            return Problem(n, tokens, k, not self.transposed, False, GELU_AUX_BIAS)
        if self.kind == "weight":
            return Problem(k, n, tokens, False, True, out_fp32=True)
        epilogue = DGELU if self.kind == "input gelu" else NOTHING
        return Problem(k, tokens, n, self.transposed, False, epilogue, accumulate=self.kind == "input add")


@dataclass
class _Chosen:
    """The algorithms in use on one device, and which problems each supports."""

    algorithms: dict[str, Algorithm] = field(default_factory=dict)
    checked: dict[tuple[str, Problem], Algorithm | None] = field(default_factory=dict)

    def of(self, matmul: Matmul, tokens: int, library: CublasLt) -> Algorithm | None:
        """The algorithm for ``tokens`` rows, or None for torch's."""
        key, problem = matmul.key, matmul.problem(tokens)
        if (key, problem) not in self.checked:
            algorithm = self.algorithms.get(key)
            supported = algorithm is not None and library.supports(problem, algorithm)
            self.checked[key, problem] = algorithm if supported else None
        return self.checked[key, problem]


_chosen: dict[torch.device, _Chosen] = {}


def use_algorithms(device: torch.device, algorithms: Mapping[str, str]) -> None:
    """Makes the matmuls on ``device`` use ``algorithms`` (from choose_algorithms, or {} for torch's).

    Raises ValueError for a text that does not describe an algorithm.
    """
    _chosen[device] = _Chosen({key: algorithm_from_text(text) for key, text in algorithms.items()})


def _run(matmul: Matmul, tokens: int, operands: Operands) -> bool:
    """Computes the matmul by its chosen algorithm. Returns False when it has none."""
    device = operands.out.device
    chosen = _chosen.get(device)
    if chosen is None or not chosen.algorithms or operands.b.dtype != torch.bfloat16:
        return False
    library = cublaslt(device)
    transposed = matmul._replace(transposed=True)
    if transposed.key in chosen.algorithms and chosen.of(transposed, tokens, library) is not None:
        matmul, operands = transposed, _transposed(operands)
    algorithm = chosen.of(matmul, tokens, library)
    if algorithm is None:
        return False
    library.run(matmul.problem(tokens), algorithm, operands)
    return True


def _transposed(operands: Operands) -> Operands:
    """``operands`` with a transposed copy of the weight."""
    return operands._replace(a=operands.a.t().contiguous())


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """X W' + bias: bf16 [T, k], [n, k], [n] -> [T, n]."""
    (n, k), tokens = weight.shape, x.shape[0]
    out = torch.empty(tokens, n, dtype=x.dtype, device=x.device)
    matmul = Matmul("forward", n, k, bias is not None)
    if not _run(matmul, tokens, Operands(weight, x, out, bias)):
        if bias is None:
            return torch.mm(x, weight.t(), out=out)
        return torch.addmm(bias, x, weight.t(), out=out)
    return out


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """GELU (by tanh) of x W' + bias, and its argument: bf16 [T, k], [n, k], [n] -> two of [T, n].

    torch has no such matmul, so without a choice the library's first candidate computes it. Raises
    BertmillError when the library has none.
    """
    (n, k), tokens = weight.shape, x.shape[0]
    before = torch.empty(tokens, n, dtype=x.dtype, device=x.device)
    out = torch.empty_like(before)
    if x.dtype != torch.bfloat16:
        torch.addmm(bias, x, weight.t(), out=before)
        return F.gelu(before, approximate="tanh"), before
    matmul, operands = Matmul("gelu", n, k, True), Operands(weight, x, out, bias, before)
    if not _run(matmul, tokens, operands):
        library, problem = cublaslt(x.device), matmul.problem(tokens)
        library.run(problem, _first_candidate(library, problem), operands)
    return out, before


_first: dict[Problem, Algorithm] = {}


def _first_candidate(library: CublasLt, problem: Problem) -> Algorithm:
    if problem not in _first:
        candidates = library.candidates(problem)
        if not candidates:
            raise BertmillError(f"kernels: cuBLASLt has no algorithm for {problem}; set kernels to plain")
        _first[problem] = candidates[0]
    return _first[problem]


def input_gradient(dy: Tensor, weight: Tensor) -> Tensor:
    """Dy W: bf16 [T, n], [n, k] -> [T, k]."""
    (n, k), tokens = weight.shape, dy.shape[0]
    out = torch.empty(tokens, k, dtype=dy.dtype, device=dy.device)
    if not _run(Matmul("input", n, k), tokens, Operands(weight, dy, out)):
        return torch.mm(dy, weight, out=out)
    return out


def gelu_input_gradient(dy: Tensor, weight: Tensor, before: Tensor) -> Tensor | None:
    """Dy W times the derivative of GELU (by tanh) at ``before`` bf16 [T, k]: bf16 [T, n], [n, k] -> [T, k].

    None without a chosen algorithm, as torch has no such matmul.
    """
    (n, k), tokens = weight.shape, dy.shape[0]
    out = torch.empty_like(before)
    operands = Operands(weight, dy, out, aux=before)
    return out if _run(Matmul("input gelu", n, k), tokens, operands) else None


def add_input_gradient(total: Tensor, dy: Tensor, weight: Tensor) -> Tensor:
    """``total`` bf16 [T, k], to which dy W was added in place."""
    n, k = weight.shape
    if not _run(Matmul("input add", n, k), dy.shape[0], Operands(weight, dy, total)):
        return total.addmm_(dy, weight)
    return total


def weight_gradient(dy: Tensor, x: Tensor) -> Tensor:
    """Dy' x in fp32: bf16 [T, n], [T, k] -> [n, k]."""
    n, k = dy.shape[1], x.shape[1]
    if dy.dtype == torch.float32:
        return torch.mm(dy.t(), x)
    out = torch.empty(n, k, dtype=torch.float32, device=dy.device)
    if not _run(Matmul("weight", n, k), dy.shape[0], Operands(x, dy, out)):
        return torch.mm(dy.t(), x, out_dtype=torch.float32)
    return out


def choose_algorithms(matmuls: Iterable[Matmul], tokens: int, device: torch.device) -> dict[str, str]:
    """Key -> algorithm: the fastest of the library's candidates for each matmul at ``tokens`` rows.

    Takes about a second for BERT-base at 131,072 tokens. Raises BertmillError when a call fails.
    """
    chosen = {}
    for matmul in matmuls:
        layouts = (False,) if matmul.kind == "weight" else (False, True)
        fastest = [_fastest(matmul._replace(transposed=transposed), tokens, device) for transposed in layouts]
        timed = [one for one in fastest if one is not None]
        if timed:
            _, key, algorithm = min(timed, key=lambda one: one[0])
            chosen[key] = algorithm_to_text(algorithm)
    return chosen


def _fastest(matmul: Matmul, tokens: int, device: torch.device) -> tuple[float, str, Algorithm] | None:
    """Milliseconds of the fastest candidate, the matmul's key and the candidate; None if there are none."""
    library, problem = cublaslt(device), matmul.problem(tokens)
    operands, candidates = _random_operands(matmul, tokens, device), library.candidates(problem)
    if not candidates:
        return None

    def compute(algorithm: Algorithm) -> None:
        library.run(problem, algorithm, _transposed(operands) if matmul.transposed else operands)

    times = _times(compute, candidates)
    return min(times), matmul.key, candidates[times.index(min(times))]


def _random_operands(matmul: Matmul, tokens: int, device: torch.device) -> Operands:
    """Operands of the matmul's shape. They are random, because a GPU is faster on zeros than on data."""

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16, generator=generator)

    generator = torch.Generator(device).manual_seed(0)  # do not change the random numbers of the run
    n, k = matmul.n, matmul.k
    if matmul.kind == "weight":
        return Operands(random(tokens, k), random(tokens, n), torch.empty(n, k, device=device))
    weight = random(n, k)
    if matmul.kind in ("input", "input add", "input gelu"):
        aux = random(tokens, k) if matmul.kind == "input gelu" else None
        return Operands(weight, random(tokens, n), random(tokens, k), aux=aux)
    aux = random(tokens, n) if matmul.kind == "gelu" else None
    return Operands(weight, random(tokens, k), random(tokens, n), random(n) if matmul.bias else None, aux)


def _times(compute: Callable[[Algorithm], None], candidates: list[Algorithm]) -> list[float]:
    """Milliseconds of each candidate: medians of alternating rounds, so that the GPU is equally warm."""
    rounds = [[_milliseconds(partial(compute, one)) for one in candidates] for _ in range(_ROUNDS)]
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


def _milliseconds(compute: Callable[[], object]) -> float:
    """Of _REPEATS calls of ``compute``, after one that is not timed."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    compute()
    start.record()
    for _ in range(_REPEATS):
        compute()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def matmuls_of_layer(
    hidden: int, inner: int, *, gated: bool, tanh: bool, bias: bool, pre_norm: bool
) -> list[Matmul]:
    """Every matmul of an encoder layer, forward and backward, and those of keys and values alone."""
    shapes = {"qkv": (3 * hidden, hidden), "kv": (2 * hidden, hidden), "output": (hidden, hidden)}
    shapes |= {"up": (2 * inner if gated else inner, hidden), "down": (hidden, inner)}
    matmuls = []
    for name, (n, k) in shapes.items():
        in_epilogue = name == "up" and tanh and bias
        # The gradients of a sublayer's input: in a post-norm layer they are added to those of the residual,
        # and those through keys and values alone to those through queries.
        adds = name == "kv" or (name in ("qkv", "up") and not pre_norm)
        backward: Kind = "input add" if adds else "input gelu" if name == "down" and tanh else "input"
        matmuls += [
            Matmul("gelu" if in_epilogue else "forward", n, k, bias),
            Matmul(backward, n, k),
            Matmul("weight", n, k),
        ]
    return matmuls
