"""FLOPs that training needs, and the peak FLOP/s of devices. Their quotient is the MFU."""

from typing import TYPE_CHECKING

from trainer.model.config import ModelConfig

if TYPE_CHECKING:
    import torch

# Dense bf16 (V100, T4: fp16) TFLOP/s from NVIDIA's data sheets. The first name that matches counts.
_PEAK_TFLOPS = {
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "H200": 989.0,
    "A100": 312.0,
    "A30": 165.0,
    "A10": 125.0,
    "L40S": 362.0,
    "L4": 121.0,
    "V100": 125.0,
    "T4": 65.0,
}


def training_flops(
    model: ModelConfig, tokens: float, squares: float, targets: float, used: float | None = None
) -> float:
    """FLOPs that the objective needs, forward and backward. A multiply-add counts as two.

    ``tokens`` are real tokens, ``squares`` is the sum of the squared lengths of their sequences, and
    ``targets`` are the masked tokens, which alone pass through the MLM head. ``used`` is the number of tokens
    whose last hidden states the objective uses (None: all). In the last layer the others need only keys and
    values, so nothing else of theirs counts, whether it is computed or not. As usual for MFU (Chowdhery et
    al. 2022, appendix B), norms, softmax, dropout and recomputation to save memory do not count.
    """
    matrices = 3 if model.activation == "geglu" else 2
    share = 1.0 if used is None else used / tokens
    layers = model.layers - 1 + share
    keys_and_values = 2 * model.hidden_size**2
    rest = 2 * model.hidden_size**2 + matrices * model.hidden_size * model.intermediate_size
    attended = sum(
        (min(squares, tokens * model.local_window) if model.is_local(number) else squares)
        * (share if number == model.layers - 1 else 1.0)
        for number in range(model.layers)
    )
    head = model.embedding_size * (model.hidden_size + model.vocab_size)
    factorised = model.embedding_size < model.hidden_size
    embedding = model.embedding_size * model.hidden_size if factorised else 0
    per_token = model.layers * keys_and_values + layers * rest + embedding
    return 6.0 * (tokens * per_token + 2 * model.hidden_size * attended + targets * head)


def peak_flops(device: "torch.device", precision: "torch.dtype") -> float | None:
    """Peak FLOP/s of the device in bf16, or None for an unknown device or another precision."""
    # The console command uses training_flops and must start without torch.
    import torch

    if device.type != "cuda" or precision != torch.bfloat16:
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak * 1e12 for part, peak in _PEAK_TFLOPS.items() if part in name), None)
