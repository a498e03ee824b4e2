"""Retrieval of translations (Tatoeba) with the mean of hidden states, without training."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from schemas.errors import InputError
from trainer.export.load_model import load_model
from trainer.export.tokenizer_folder import load_tokenizer
from trainer.finetuning.inputs.encoding import Encoded, encode_texts, pack_encoded
from trainer.finetuning.inputs.examples import TextExample
from trainer.finetuning.inputs.text_files import read_text
from trainer.model.pretraining import BertPretraining

_BATCH = 64


def retrieval_accuracy(
    model_uri: str,
    tokenizer_uri: str | None,
    pairs: Mapping[str, tuple[str, str]],
    *,
    limit: int | None = None,
    max_length: int = 128,
    device: torch.device | None = None,
    stop_requested: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """Language -> share of its sentences whose nearest English sentence by cosine is the translation.

    A sentence is the mean of its tokens' states after two thirds of the layers (the eighth of twelve, as in
    the code of XTREME for mBERT). Returns None if stopped. Raises InputError, CheckpointError.
    """
    saved = load_model(model_uri)
    tokenizer = load_tokenizer(tokenizer_uri or model_uri)
    tokenizer.no_padding()
    device = device or torch.device("cpu")
    model = saved.model.to(device)
    length = min(max_length, model.config.max_positions)

    def vectors(texts: Sequence[str]) -> Tensor:
        examples = [TextExample(text, None, "", "") for text in texts]
        return sentence_vectors(model, encode_texts(tokenizer, examples, [0] * len(examples), length), device)

    figures: dict[str, float] = {}
    for language, (theirs, english) in pairs.items():
        if stop_requested():
            return None
        sides = [_lines(uri)[:limit] for uri in (theirs, english)]
        if len(sides[0]) != len(sides[1]):
            raise InputError(f"{theirs}: {len(sides[0])} lines, but {english} has {len(sides[1])}")
        source, target = (vectors(side) for side in sides)
        nearest = (source @ target.T).argmax(1)
        figures[language] = float((nearest == torch.arange(len(nearest))).double().mean())
    return figures


def _lines(uri: str) -> list[str]:
    lines = read_text(uri).split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    if not lines:
        raise InputError(f"{uri}: contains no sentence")
    return [line.rstrip("\r") for line in lines]


@torch.no_grad()
def sentence_vectors(model: BertPretraining, inputs: Sequence[Encoded], device: torch.device) -> Tensor:
    """Unit vectors [n, hidden], on the CPU, of encoded sentences."""
    model.eval()
    layer = max(1, round(model.config.layers * 2 / 3))
    vectors = torch.zeros(len(inputs), model.config.hidden_size)
    order = sorted(range(len(inputs)), key=lambda place: len(inputs[place].ids))
    for start in range(0, len(order), _BATCH):
        places = order[start : start + _BATCH]
        batch = pack_encoded([inputs[place] for place in places]).to(device)
        states = model.hidden_states(batch)[layer].float().cpu()
        sizes = batch.cu_seqlens.diff().tolist()
        vectors[places] = torch.stack([part.mean(0) for part in states.split(sizes)])
    return torch.nn.functional.normalize(vectors, dim=-1)
