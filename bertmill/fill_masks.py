"""Predicts the [MASK]s of texts with an exported model."""

from collections.abc import Sequence

import torch

from cluster import storage
from pipeline.wordpiece.tokenization import WordPieceTokenizer
from pipeline.wordpiece.vocabulary import load_vocabulary
from schemas.errors import InputError
from schemas.vocabulary import CLS, CONTINUATION, MASK, SEP
from trainer.export.load_model import load_model

Predictions = list[tuple[str, float]]


def fill_masks(model_uri: str, texts: Sequence[str], top: int = 3) -> list[list[Predictions]]:
    """For each text and each of its [MASK]s, the ``top`` likeliest tokens with their probabilities.

    Raises CheckpointError when there is no Hugging Face directory at ``model_uri``, InputError for a text
    without [MASK] or longer than the model's positions.
    """
    saved = load_model(model_uri)
    saved.require_mlm("fill")
    model = saved.model
    vocabulary = load_vocabulary(storage.join(model_uri, "vocab.txt"))
    tokenizer = WordPieceTokenizer(vocabulary)
    results = []
    for text in texts:
        ids = _ids_with_masks(text, tokenizer)
        if len(ids) > model.config.max_positions:
            limit = model.config.max_positions
            raise InputError(f"{text[:40]!r}: {len(ids)} tokens, but the model has {limit} positions")
        positions = [position for position, token in enumerate(ids) if token == vocabulary.index[MASK]]
        if not positions:
            raise InputError(f"{text[:40]!r}: contains no {MASK}")
        tokens = torch.tensor([ids])
        with torch.no_grad():
            hidden = model.encode_padded(tokens, torch.zeros_like(tokens), torch.ones_like(tokens))
            logits = model.token_head(hidden[0, positions], model.word_weight)[:, : len(vocabulary.pieces)]
        best = logits.float().softmax(-1).topk(min(top, len(vocabulary.pieces)))
        results.append(
            [
                [(_word(vocabulary.pieces[token]), value) for token, value in zip(row, values, strict=True)]
                for row, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            ]
        )
    return results


def _word(piece: str) -> str:
    return piece.removeprefix(CONTINUATION) if piece != CONTINUATION else piece


def _ids_with_masks(text: str, tokenizer: WordPieceTokenizer) -> list[int]:
    """The ids of [CLS] text [SEP]. [MASK] in the text becomes the special token, unlike in a corpus."""
    index = tokenizer.vocabulary.index
    ids = [index[CLS]]
    for number, part in enumerate(text.split(MASK)):
        if number:
            ids.append(index[MASK])
        ids += tokenizer.encode(part)
    return [*ids, index[SEP]]
