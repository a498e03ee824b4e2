"""Attention among the tokens of each sequence, for packed tokens and for padded rows.

The encoder keeps its hidden states flat, ``[T, hidden]``. A layout records which tokens form a sequence
and computes attention within each sequence: with variable-length FlashAttention
(``torch.nn.attention.varlen``) on the flat tensors, or with SDPA on padded rows.
"""

import importlib.util
import inspect
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from schemas.errors import ConfigError
from trainer.model.config import ModelConfig

FULL = (-1, -1)


class AttentionWindow(NamedTuple):
    """How many tokens ``before`` and ``after`` itself a token attends to, or -1 for no limit."""

    before: int
    after: int


def window_of(config: ModelConfig, *, local: bool) -> AttentionWindow:
    """The window of a local or a global layer of ``config``."""
    half = config.local_window // 2 if local else -1
    return AttentionWindow(half, 0 if config.left_to_right else half)


class Layout(Protocol):
    """Which of the flat tokens form a sequence."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, window: AttentionWindow, dropout: float
    ) -> Tensor:
        """Attention over ``[T, heads, head_size]`` tensors, which gives the same shape."""
        ...


@dataclass(frozen=True)
class VarlenLayout:
    """Packed tokens for the variable-length kernel: CUDA, fp16 or bf16, no attention dropout."""

    cu_seqlens: Tensor
    max_seqlen: int

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, window: AttentionWindow, dropout: float
    ) -> Tensor:
        """See Layout. Raises ValueError for a dropout above 0, which the kernel would ignore."""
        if dropout > 0:
            raise ValueError("the variable-length kernel has no attention dropout")
        # Imported here, because it takes two seconds to import torch.compile and few processes need it.
        from torch.nn.attention.varlen import varlen_attn

        bounds, longest = self.cu_seqlens, self.max_seqlen
        if window == FULL:
            mixed = varlen_attn(query, key, value, bounds, bounds, longest, longest)
        else:
            sizes = (window.before, window.after)
            mixed = varlen_attn(query, key, value, bounds, bounds, longest, longest, window_size=sizes)
        assert isinstance(mixed, Tensor)  # noqa: S101 - a tuple only comes when return_aux asks for one
        return mixed


@dataclass(frozen=True)
class PaddedLayout:
    """``rows`` x ``length`` positions for SDPA. ``valid`` of them hold a token.

    ``places`` are the positions of the flat tokens, int64 [T], or None when every position holds a token.
    """

    rows: int
    length: int
    valid: Tensor
    """bool [rows, length]. At least one position of each row is true."""
    places: Tensor | None

    @classmethod
    def of_rows(cls, attention_mask: Tensor) -> "PaddedLayout":
        """The layout of padded rows ``[rows, length]`` where ``attention_mask`` is not 0."""
        rows, length = attention_mask.shape
        return cls(rows, length, _never_empty(attention_mask.bool()), None)

    @classmethod
    def of_packed(cls, cu_seqlens: Tensor, max_seqlen: int, tokens: int) -> "PaddedLayout":
        """The layout of ``tokens`` packed tokens. Each sequence becomes a row within the attention only."""
        rows = cu_seqlens.shape[0] - 1
        token = torch.arange(tokens, device=cu_seqlens.device)
        row = torch.searchsorted(cu_seqlens[1:].long(), token, right=True)
        places = row * max_seqlen + token - cu_seqlens.long()[row]
        lengths = cu_seqlens.diff()[:, None]
        valid = torch.arange(max_seqlen, device=cu_seqlens.device)[None, :] < lengths
        return cls(rows, max_seqlen, _never_empty(valid), places)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, window: AttentionWindow, dropout: float
    ) -> Tensor:
        """See Layout."""
        mixed = F.scaled_dot_product_attention(
            self._to_rows(query),
            self._to_rows(key),
            self._to_rows(value),
            attn_mask=self._mask(window),
            dropout_p=dropout,
        )
        flat = mixed.transpose(1, 2).reshape(self.rows * self.length, *query.shape[1:])
        return flat if self.places is None else flat[self.places]

    def _to_rows(self, tensor: Tensor) -> Tensor:
        """[T, heads, size] -> [rows, heads, length, size]."""
        if self.places is not None:
            empty = tensor.new_zeros(self.rows * self.length, *tensor.shape[1:])
            tensor = empty.index_copy(0, self.places, tensor)
        return tensor.view(self.rows, self.length, *tensor.shape[1:]).transpose(1, 2)

    def _mask(self, window: AttentionWindow) -> Tensor:
        """Bool, broadcastable to [rows, heads, length, length]: true where the query attends to the key."""
        keys = self.valid[:, None, None, :]
        if window == FULL:
            return keys
        place = torch.arange(self.length, device=keys.device)
        ahead = place[None, :] - place[:, None]
        near = torch.ones_like(ahead, dtype=torch.bool)
        if window.before >= 0:
            near &= ahead >= -window.before
        if window.after >= 0:
            near &= ahead <= window.after
        # Padding attends to itself, since the softmax of a row without any key would be 0 / 0.
        return (keys & near) | (ahead == 0)


def _never_empty(valid: Tensor) -> Tensor:
    """Makes the first position of each empty row valid, so that no softmax is 0 / 0."""
    first = torch.zeros_like(valid)
    first[:, 0] = True
    return valid | (first & ~valid.any(1, keepdim=True))


class Kernel(NamedTuple):
    """The chosen attention kernel and the reason, which the trainer logs at startup."""

    name: str
    reason: str


def choose_kernel(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Kernel:
    """Chooses the kernel for a model that computes in ``dtype`` on ``device``.

    Raises ConfigError when ``config.attention`` is varlen but that kernel is not available.
    """
    obstacle = _varlen_obstacle(config, device, dtype)
    if config.attention == "padded":
        return Kernel("padded", "set in the config")
    if obstacle is None:
        return Kernel("varlen", "packed tokens, no padding")
    if config.attention == "varlen":
        raise ConfigError(f"model.attention: varlen is not available: {obstacle}")
    return Kernel("padded", obstacle)


def _varlen_obstacle(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> str | None:
    if device.type != "cuda":
        return f"the variable-length kernel needs a CUDA device, not {device.type}"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"the variable-length kernel needs fp16 or bf16, not {dtype}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "the variable-length kernel needs compute capability 8.0 or above"
    if config.attention_dropout > 0:
        return f"the variable-length kernel does not support attention_dropout {config.attention_dropout}"
    if (config.local_window or config.left_to_right) and not _has_windows():
        return f"the variable-length kernel of torch {torch.__version__} does not support windows"
    if config.head_size % 8 or config.head_size > 256:
        return f"the variable-length kernel needs a head size of 8, 16, ... 256, not {config.head_size}"
    return None


def _has_windows() -> bool:
    """Whether the kernel of this torch supports windows. In the first releases it did not."""
    from torch.nn.attention.varlen import varlen_attn

    return "window_size" in inspect.signature(varlen_attn).parameters


def fused_obstacle(config: ModelConfig, kernel: Kernel, dtype: torch.dtype) -> str | None:
    """Why trainer/kernels/layer.py cannot run the layers of ``config``, or None if it can."""
    if kernel.name != "varlen":
        return kernel.reason
    if dtype != torch.bfloat16:
        return f"they need bf16, not {dtype}"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if config.segments not in (0, 2):
        return "they need two segments or none"
    if config.head_size not in (32, 64, 128) and (config.head_size != 16 or config.positions == "rotary"):
        return f"they need heads of 16 (without rotation), 32, 64 or 128, not {config.head_size}"
    widths = (config.hidden_size, config.intermediate_size, config.embedding_size)
    if any(width % 8 for width in widths):
        return f"they need widths that are multiples of 8, not {', '.join(map(str, widths))}"
    return None


def rotary_table(position_ids: Tensor, size: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines, fp32 [T, 1, size], for rotating heads of ``size`` (Su et al. 2021).

    Dimension i is paired with i + size / 2 and turns by position x base^(-2i / size).
    """
    steps = torch.arange(0, size, 2, device=position_ids.device, dtype=torch.float32)
    angles = position_ids[:, None].float() * base ** (-steps / size)
    angles = torch.cat([angles, angles], dim=-1)[:, None, :]
    return angles.cos(), angles.sin()


def rotate(tensor: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates ``tensor`` [T, heads, size] by ``table``. Computes in fp32 and returns the input's type."""
    cosine, sine = table
    wide = tensor.float()
    first, second = wide.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (wide * cosine + turned * sine).to(tensor.dtype)
