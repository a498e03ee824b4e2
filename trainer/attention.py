"""Attention among the tokens of one sequence, for packed tokens and for padded rows alike.

The encoder keeps its hidden states flat, ``[T, hidden]``. A layout knows which tokens form a
sequence and computes attention within each, with the kernel that suits: variable-length Flash
attention (``torch.nn.attention.varlen``) straight on the flat tensors, or SDPA on padded rows.
"""

import importlib.util
import inspect
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from schemas.errors import ConfigError
from trainer.model_config import ModelConfig

FULL = (-1, -1)
# The first releases of the kernel had none.
_HAS_WINDOWS = "window_size" in inspect.signature(varlen_attn).parameters


class Reach(NamedTuple):
    """How far a token sees: ``before`` and ``after`` itself, -1 for no limit."""

    before: int
    after: int


def reach_of(config: ModelConfig, *, local: bool) -> Reach:
    """The reach of a local or a global layer of ``config``."""
    half = config.local_window // 2 if local else -1
    return Reach(half, 0 if config.left_to_right else half)


class Layout(Protocol):
    """Which of the flat tokens form a sequence."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, reach: Reach, dropout: float) -> Tensor:
        """Attention over ``[T, heads, head_size]`` tensors, giving the same shape."""
        ...


@dataclass(frozen=True)
class VarlenLayout:
    """Packed tokens for the variable-length kernel: CUDA, fp16 or bf16, no attention dropout."""

    cu_seqlens: Tensor
    max_seqlen: int

    def attend(self, query: Tensor, key: Tensor, value: Tensor, reach: Reach, dropout: float) -> Tensor:
        """See Layout. Raises ValueError for a dropout above 0, which the kernel would ignore."""
        if dropout > 0:
            raise ValueError("the variable-length kernel has no attention dropout")
        bounds, longest = self.cu_seqlens, self.max_seqlen
        if reach == FULL:
            mixed = varlen_attn(query, key, value, bounds, bounds, longest, longest)
        else:
            window = (reach.before, reach.after)
            mixed = varlen_attn(query, key, value, bounds, bounds, longest, longest, window_size=window)
        assert isinstance(mixed, Tensor)  # noqa: S101 - a tuple only comes when return_aux asks for one
        return mixed


@dataclass(frozen=True)
class PaddedLayout:
    """``rows`` x ``length`` places of which ``valid`` ones hold a token, for SDPA.

    ``places`` are the places of the flat tokens, int64 [T]; None when the tokens are the places.
    """

    rows: int
    length: int
    valid: Tensor
    """bool [rows, length]; at least one place of each row is true."""
    places: Tensor | None

    @classmethod
    def of_rows(cls, attention_mask: Tensor) -> "PaddedLayout":
        """The layout of padded rows ``[rows, length]`` where ``attention_mask`` is not 0."""
        rows, length = attention_mask.shape
        return cls(rows, length, _never_empty(attention_mask.bool()), None)

    @classmethod
    def of_packed(cls, cu_seqlens: Tensor, max_seqlen: int, tokens: int) -> "PaddedLayout":
        """The layout of ``tokens`` packed tokens: each sequence becomes a row for the attention only."""
        rows = cu_seqlens.shape[0] - 1
        token = torch.arange(tokens, device=cu_seqlens.device)
        row = torch.searchsorted(cu_seqlens[1:].long(), token, right=True)
        places = row * max_seqlen + token - cu_seqlens.long()[row]
        lengths = cu_seqlens.diff()[:, None]
        valid = torch.arange(max_seqlen, device=cu_seqlens.device)[None, :] < lengths
        return cls(rows, max_seqlen, _never_empty(valid), places)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, reach: Reach, dropout: float) -> Tensor:
        """See Layout."""
        mixed = F.scaled_dot_product_attention(
            self._to_rows(query),
            self._to_rows(key),
            self._to_rows(value),
            attn_mask=self._mask(reach),
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

    def _mask(self, reach: Reach) -> Tensor:
        """Bool, to be broadcast to [rows, heads, length, length]; true where the query sees the key."""
        keys = self.valid[:, None, None, :]
        if reach == FULL:
            return keys
        place = torch.arange(self.length, device=keys.device)
        ahead = place[None, :] - place[:, None]
        near = torch.ones_like(ahead, dtype=torch.bool)
        if reach.before >= 0:
            near &= ahead >= -reach.before
        if reach.after >= 0:
            near &= ahead <= reach.after
        # A padding place sees itself: a row of the softmax without any key would be 0 / 0.
        return (keys & near) | (ahead == 0)


def _never_empty(valid: Tensor) -> Tensor:
    """``valid`` with the first place of each empty row made true, so that no softmax is 0 / 0."""
    first = torch.zeros_like(valid)
    first[:, 0] = True
    return valid | (first & ~valid.any(1, keepdim=True))


class Kernel(NamedTuple):
    """A choice of attention kernel and why; the trainer says both at its start."""

    name: str
    reason: str


def choose_kernel(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Kernel:
    """The kernel for a model that computes in ``dtype`` on ``device``.

    Raises ConfigError when ``config.attention`` asks for varlen and it cannot be had.
    """
    obstacle = _varlen_obstacle(config, device, dtype)
    if config.attention == "padded":
        return Kernel("padded", "the config asks for it")
    if obstacle is None:
        return Kernel("varlen", "packed tokens, no padding")
    if config.attention == "varlen":
        raise ConfigError(f"model.attention: varlen is not possible: {obstacle}")
    return Kernel("padded", obstacle)


def _varlen_obstacle(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> str | None:
    if device.type != "cuda":
        return f"the variable-length kernel needs a CUDA device, this is {device.type}"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"the variable-length kernel needs fp16 or bf16, this computes in {dtype}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "the variable-length kernel needs compute capability 8.0 or above"
    if config.attention_dropout > 0:
        return f"attention_dropout {config.attention_dropout} is not possible with the variable-length kernel"
    if (config.local_window or config.left_to_right) and not _HAS_WINDOWS:
        return f"the variable-length kernel of torch {torch.__version__} has no windows"
    if config.head_size % 8 or config.head_size > 256:
        return f"the variable-length kernel needs a head size of 8, 16, ... 256, this has {config.head_size}"
    return None


def fused_obstacle(config: ModelConfig, kernel: Kernel, dtype: torch.dtype) -> str | None:
    """Why the layers of ``config`` cannot run as trainer/fused_layer.py; None when they can."""
    if kernel.name != "varlen":
        return kernel.reason
    if dtype != torch.bfloat16:
        return f"they compute in bf16, this in {dtype}"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    post_norm = config.norm == "post" and config.positions == "learned" and config.bias
    if not post_norm or config.activation == "geglu" or config.local_window or config.left_to_right:
        return "they are BERT's layers: post-norm, learned positions, biases, GELU, attention without limits"
    if config.embedding_size != config.hidden_size:
        return "they have no factorised embeddings"
    if config.segments not in (0, 2):
        return "they have two segments or none"
    if config.head_size not in (16, 32, 64, 128) or config.hidden_size % 8 or config.intermediate_size % 8:
        return "they need heads of 16, 32, 64 or 128 and widths that are multiples of 8"
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
    """``tensor`` [T, heads, size] turned by ``table``; computed in fp32, returned in its own type."""
    cosine, sine = table
    wide = tensor.float()
    first, second = wide.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (wide * cosine + turned * sine).to(tensor.dtype)
