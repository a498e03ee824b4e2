"""The clock that separates compiling from training, tested with a fake clock that only compilers advance."""

import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch._dynamo.callback import callback_handler
from torch._dynamo.exc import BackendCompilerFailed

from trainer.monitoring import compile_clock
from trainer.monitoring.compile_clock import CompileClock


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which only a test advances."""
    found = [100.0]
    monkeypatch.setattr(compile_clock, "time", SimpleNamespace(monotonic=lambda: found[0]))
    return found


@pytest.fixture
def clock(now: list[float]) -> Iterator[CompileClock]:
    torch._dynamo.reset()
    found = CompileClock()
    yield found
    found.stop()
    assert not callback_handler.start_callbacks
    assert not callback_handler.end_callbacks


def compiled(now: list[float], seconds: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function whose compiler takes ``seconds``, and each of whose calls takes one second."""

    def slow(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        now[0] += seconds

        def call(*arguments: torch.Tensor) -> Any:
            now[0] += 1
            return graph.forward(*arguments)

        return call

    return torch.compile(lambda tensor: tensor * 2 + 1, backend=slow)


def test_only_compiling_is_counted(clock: CompileClock, now: list[float]) -> None:
    function = compiled(now, 5)
    assert clock.seconds == 0
    function(torch.ones(3))
    function(torch.ones(3))
    assert now[0] == 107
    assert clock.seconds == 5
    compiled(now, 2.5)(torch.ones(3))
    assert clock.seconds == 7.5
    clock.stop()
    compiled(now, 4)(torch.ones(3))
    assert clock.seconds == 7.5


def test_a_failed_compilation_counts_too(clock: CompileClock, now: list[float]) -> None:
    def broken(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        now[0] += 3
        raise RuntimeError("no such compiler")

    with pytest.raises(BackendCompilerFailed):
        torch.compile(lambda tensor: tensor + 1, backend=broken)(torch.ones(3))
    assert clock.seconds == 3


def test_stopping_within_a_compilation_and_after_a_reset(clock: CompileClock, now: list[float]) -> None:
    def stopping(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        now[0] += 3
        assert clock.seconds == 3
        clock.stop()
        now[0] += 3
        return graph.forward

    torch.compile(lambda tensor: tensor + 1, backend=stopping)(torch.ones(3))
    assert clock.seconds == 3
    other = CompileClock()
    torch._dynamo.reset()
    other.stop()
    assert other.seconds == 0


def test_kernels_of_triton_are_counted_once(now: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in replaces Triton, which needs a GPU."""
    heard: list[dict[str, Any]] = []
    compilation = SimpleNamespace(listener=lambda **event: heard.append(event))
    before = compilation.listener
    triton = ModuleType("triton")
    triton.knobs = SimpleNamespace(compilation=compilation)  # type: ignore[attr-defined]
    triton.__spec__ = importlib.machinery.ModuleSpec("triton", None)
    monkeypatch.setitem(sys.modules, "triton", triton)
    torch._dynamo.reset()
    clock = CompileClock()

    def kernel(microseconds: int) -> None:
        times = SimpleNamespace(total=microseconds)
        compilation.listener(src=None, metadata={}, metadata_group={}, times=times, cache_hit=False)

    def inductor(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        now[0] += 2
        kernel(1_500_000)
        return graph.forward

    kernel(250_000)
    torch.compile(lambda tensor: tensor - 1, backend=inductor)(torch.ones(3))
    assert clock.seconds == 2.25
    clock.stop()
    assert compilation.listener is before
    assert len(heard) == 2
