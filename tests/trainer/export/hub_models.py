"""Small random models of every family of transformers that bertmill imports."""

from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB = 61
POSITIONS = 24

_COMMON = {"vocab_size": VOCAB, "initializer_range": 0.15, "pad_token_id": 0}
_BERT = _COMMON | {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
    "max_position_embeddings": POSITIONS,
}  # fmt: skip
_ENDS = {"bos_token_id": 2, "eos_token_id": 3}
_ROBERTA = _BERT | {"pad_token_id": 1, "max_position_embeddings": POSITIONS + 2, "type_vocab_size": 1} | _ENDS

# Family -> class of the config, its fields, the class with an MLM head.
FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("BertConfig", _BERT, "BertForPreTraining"),
    "roberta": ("RobertaConfig", _ROBERTA, "RobertaForMaskedLM"),
    "xlm-roberta": ("XLMRobertaConfig", _ROBERTA, "XLMRobertaForMaskedLM"),
    "distilbert": (
        "DistilBertConfig",
        _COMMON
        | {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 2, "max_position_embeddings": POSITIONS},
        "DistilBertForMaskedLM",
    ),
    "albert": ("AlbertConfig", _BERT | {"embedding_size": 16} | _ENDS, "AlbertForPreTraining"),
    "electra": ("ElectraConfig", _BERT | {"embedding_size": 16}, "ElectraForMaskedLM"),
    "modernbert": (
        "ModernBertConfig",
        _BERT | {"num_hidden_layers": 4, "local_attention": 6, "cls_token_id": 2, "sep_token_id": 3} | _ENDS,
        "ModernBertForMaskedLM",
    ),
}


def random_model(family: str, architecture: str | None = None, **fields: Any) -> Any:
    """A model of ``family`` with random weights, biases and norms included, in evaluation mode."""
    kind, figures, usual = FAMILIES[family]
    config = getattr(transformers, kind)(**{**figures, **fields})
    torch.manual_seed(0)
    model = getattr(transformers, architecture or usual)(config).eval()
    with torch.no_grad():
        for parameter in dict.fromkeys(model.parameters()):
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape) * 0.2)
    return model


def save(model: Any, folder: Path) -> str:
    model.save_pretrained(folder)
    return str(folder)


def random_ids(length: int = 17) -> torch.Tensor:
    """[1, length], without the ids of special tokens."""
    return torch.randint(5, VOCAB, (1, length), generator=torch.Generator().manual_seed(length))


def segments_of(model: Any, length: int = 17) -> torch.Tensor:
    """[1, length]: two segments where the model has them."""
    rows = getattr(model.config, "type_vocab_size", 1)
    return (torch.arange(length)[None] >= length // 2).long() % rows


def outputs(model: Any, ids: torch.Tensor, segments: torch.Tensor) -> dict[str, torch.Tensor]:
    """``mlm`` or ``hidden``, and ``pair``, of one sequence."""
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if segments.any():
        inputs["token_type_ids"] = segments
    with torch.no_grad():
        answer = model(**inputs)
    names = {
        "prediction_logits": "mlm", "logits": "mlm", "last_hidden_state": "hidden",
        "seq_relationship_logits": "pair", "sop_logits": "pair",
    }  # fmt: skip
    return {ours: answer[name][0] for name, ours in names.items() if answer.get(name) is not None}
