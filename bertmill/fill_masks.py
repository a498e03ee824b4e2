"""Predicts the masks of texts with a model of any tokenizer."""

from collections.abc import Sequence

import torch
from tokenizers import AddedToken, Tokenizer

from schemas.errors import CorpusError, InputError
from schemas.vocabulary import CONTINUATION, MASK
from trainer.export.load_model import load_model
from trainer.export.tokenizer_folder import load_tokenizer, special_token

Predictions = list[tuple[str, float]]


def fill_masks(model_uri: str, texts: Sequence[str], top: int = 3) -> list[list[Predictions]]:
    """For each text and each of its masks, the ``top`` likeliest tokens with their probabilities.

    A mask is [MASK] or the tokenizer's own mask token, such as <mask>. Raises CheckpointError when there is
    no Hugging Face directory at ``model_uri``, InputError for a text without a mask or longer than the
    model's positions, and for a folder without a tokenizer.
    """
    saved = load_model(model_uri)
    saved.require_mlm("fill")
    model = saved.model
    tokenizer, mask, mask_id = _tokenizer(model_uri, model.config.vocab_size)
    size = min(max(tokenizer.get_vocab().values()) + 1, model.config.vocab_size)
    results = []
    for text in texts:
        encoding = tokenizer.encode(text.replace(MASK, mask))
        ids = torch.tensor([encoding.ids])
        if ids.shape[1] > model.config.max_positions:
            limit = model.config.max_positions
            raise InputError(f"{text[:40]!r}: {ids.shape[1]} tokens, but the model has {limit} positions")
        places = (ids[0] == mask_id).nonzero().flatten()
        if not len(places):
            raise InputError(f"{text[:40]!r}: contains no {mask if mask == MASK else f'{MASK} or {mask}'}")
        with torch.no_grad():
            hidden = model.encode_padded(ids, torch.tensor([encoding.type_ids]), torch.ones_like(ids))
            logits = model.token_head(hidden[0, places], model.word_weight)[:, :size]
        best = logits.float().softmax(-1).topk(min(top, size))
        results.append(
            [
                [(_word(tokenizer, token), value) for token, value in zip(row, values, strict=True)]
                for row, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            ]
        )
    return results


def _tokenizer(folder: str, vocab_size: int) -> tuple[Tokenizer, str, int]:
    """The tokenizer of a model, its mask token, and the token's id."""
    tokenizer = load_tokenizer(folder)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    mask = special_token(folder, MASK, tokenizer)
    mask_id: int | None = tokenizer.token_to_id(mask)
    if mask_id is None or mask_id >= vocab_size:
        raise CorpusError(f"{folder}: the vocabulary of this model has no mask token")
    if mask_id not in tokenizer.get_added_tokens_decoder():
        # Otherwise the tokenizer would split it in a text.
        tokenizer.add_special_tokens([AddedToken(mask)])
    return tokenizer, mask, mask_id


def _word(tokenizer: Tokenizer, token: int) -> str:
    """The text of a token without the sign of a word's beginning or middle."""
    piece = tokenizer.id_to_token(token) or ""
    text = tokenizer.decode([token], skip_special_tokens=False).strip() or piece
    if "\ufffd" in text:
        return piece  # a part of a character's bytes
    return text.removeprefix(CONTINUATION) or text
