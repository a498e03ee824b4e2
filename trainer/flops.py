"""The arithmetic that training needs, and what devices could do at most: their quotient is the MFU."""

from typing import TYPE_CHECKING

from trainer.model_config import ModelConfig

if TYPE_CHECKING:
    import torch

# Dense bf16 (V100, T4: fp16) TFLOP/s from NVIDIA's data sheets; the first name that fits counts.
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


def training_flops(model: ModelConfig, tokens: float, squares: float, targets: float) -> float:
    """Operations of a forward and a backward pass; a multiplication with an addition counts as two.

    ``tokens`` are real tokens, ``squares`` the sum of the squared lengths of their rows, ``targets`` the
    masked positions, which alone pass through the head. Norms, softmax and dropout are left out, and so
    is what is computed twice to save memory, as is the custom (Chowdhery et al. 2022, appendix B).
    """
    matrices = 3 if model.activation == "geglu" else 2
    layer = 4 * model.hidden_size**2 + matrices * model.hidden_size * model.intermediate_size
    seen = sum(
        min(squares, tokens * model.local_window) if model.is_local(number) else squares
        for number in range(model.layers)
    )
    head = model.embedding_size * (model.hidden_size + model.vocab_size)
    factorised = model.embedding_size < model.hidden_size
    embedding = model.embedding_size * model.hidden_size if factorised else 0
    products = tokens * (model.layers * layer + embedding) + 2 * model.hidden_size * seen + targets * head
    return 6.0 * products


def peak_flops(device: "torch.device", precision: "torch.dtype") -> float | None:
    """Operations per second that the device could do in bf16; None where that is not known."""
    # The counting above is used by the console command, which must start without loading torch.
    import torch

    if device.type != "cuda" or precision != torch.bfloat16:
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak * 1e12 for part, peak in _PEAK_TFLOPS.items() if part in name), None)
