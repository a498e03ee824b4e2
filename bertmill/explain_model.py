"""What a model computes for token ids: the area ``model`` of ``bertmill explain``."""

from typing import TYPE_CHECKING, Any

import torch

from schemas.errors import InputError
from trainer.export.load_model import SavedModel, load_model

if TYPE_CHECKING:
    from bertmill.explain import Explainer

_SHOWN = 8
"""Numbers of each position that an answer shows."""


def model(uri: str) -> "Explainer":
    """The explainer of the model at ``uri``, which computes in fp32 on the CPU, without dropout.

    Its fields: ``input_ids`` (with the special tokens) and, optionally, ``segment_ids``. Its answers:
    ``mlm_argmax`` (an id for each position), ``mlm_logits`` (the first eight of each position), and
    ``nsp_logits`` if the model has a head for sentence pairs. A model without an MLM head answers with
    ``hidden``, the first eight of each position's last hidden state. Raises CheckpointError.
    """
    saved = load_model(uri)

    def explain(record: dict[str, Any]) -> dict[str, Any]:
        ids, segments = _inputs(record, saved)
        return _answer(saved, torch.tensor([ids]), torch.tensor([segments]))

    return explain


@torch.no_grad()
def _answer(saved: SavedModel, ids: torch.Tensor, segments: torch.Tensor) -> dict[str, Any]:
    network, untrained = saved.model, saved.model.untrained
    hidden = network.encode_padded(ids, segments, torch.ones_like(ids))[0]
    if "token_head" in untrained:
        answer = {"hidden": hidden[:, :_SHOWN].tolist()}
    else:
        logits = network.token_head(hidden, network.word_weight)[:, : network.config.vocab_size]
        answer = {"mlm_argmax": logits.argmax(-1).tolist(), "mlm_logits": logits[:, :_SHOWN].tolist()}
    if network.pooler is not None and network.pair_head is not None and "pair_head" not in untrained:
        answer["nsp_logits"] = network.pair_head(torch.tanh(network.pooler(hidden[0]))).tolist()
    return answer


def _inputs(record: dict[str, Any], saved: SavedModel) -> tuple[list[int], list[int]]:
    """The ids and segments of ``record``. Raises InputError that names the field."""
    config = saved.model.config
    ids = _integers(record["input_ids"], "input_ids", config.vocab_size)
    if not 1 <= len(ids) <= config.max_positions:
        raise InputError(f"input_ids: {len(ids)} tokens, but the model takes 1 to {config.max_positions}")
    if saved.pad_id in ids:
        raise InputError(f"input_ids: contains {saved.pad_id}, the padding token; leave padding out")
    given = record.get("segment_ids")
    if given is None:
        return ids, [0] * len(ids)
    segments = _integers(given, "segment_ids", config.segments or 2)
    if len(segments) != len(ids):
        raise InputError(f"segment_ids: {len(segments)} entries for {len(ids)} input_ids")
    return ids, segments


def _integers(value: Any, field: str, limit: int) -> list[int]:
    if not isinstance(value, list):
        raise InputError(f"{field}: must be a list of integers, got {value!r:.60}")
    for place, number in enumerate(value):
        if type(number) is not int or not 0 <= number < limit:
            raise InputError(
                f"{field}: entry {place} must be an integer in 0..{limit - 1}, got {number!r:.60}"
            )
    return value
