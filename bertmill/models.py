"""Exports a run's newest model, and fills masks with an exported one."""

from collections.abc import Sequence

import torch

from cluster import storage
from pipeline.tokenization import WordPieceTokenizer
from pipeline.vocabulary import load_vocabulary
from schemas.errors import CheckpointError, InputError
from schemas.manifest import parse_manifest
from schemas.vocabulary import CLS, CONTINUATION, MASK, SEP
from trainer.checkpoint import LoadedCheckpoint, latest_verified
from trainer.export import ModelCard, export_model, import_model
from trainer.model import BertPretraining
from trainer.model_config import ModelConfig

Answers = list[list[tuple[str, float]]]


def export_run(run_uri: str, output: str) -> int:
    """Exports the newest verified checkpoint of a run; returns its step.

    The tokenizer is that of the corpus the run was trained on. Raises CheckpointError.
    """
    found = latest_verified(run_uri)
    if found is None:
        raise CheckpointError(f"{run_uri}: no checkpoints here")
    with found:
        trainer = found.trainer
        model = _trained_model(found)
        corpus = trainer["corpus"]
        manifest = parse_manifest(storage.read_bytes(corpus["uri"]), corpus["uri"])
        folder = corpus["uri"].rpartition("/")[0]
        tokenizer = storage.join(folder, manifest["vocabulary"]["path"]).rpartition("/")[0]
        card = ModelCard(
            name=trainer["config"]["run"]["name"],
            languages=tuple(manifest["languages"]),
            manifest_sha256=corpus["sha256"],
            step=found.step,
            config=trainer["config"],
        )
        export_model(model, output, tokenizer, card)
        return found.step


def _trained_model(found: LoadedCheckpoint) -> BertPretraining:
    model = BertPretraining(ModelConfig.model_validate(found.trainer["model"]))
    model.load_state_dict(found.load()["model"])
    return model.eval()


def fill_masks(model_uri: str, texts: Sequence[str], top: int = 3) -> list[Answers]:
    """For each text, for each of its [MASK]s, the likeliest pieces with their probabilities.

    Raises InputError for a text without [MASK] or longer than the model's positions.
    """
    model = import_model(model_uri).eval()
    vocabulary = load_vocabulary(storage.join(model_uri, "vocab.txt"))
    tokenizer = WordPieceTokenizer(vocabulary)
    results = []
    for text in texts:
        ids = _ids_with_masks(text, tokenizer)
        if len(ids) > model.config.max_positions:
            limit = model.config.max_positions
            raise InputError(f"{text[:40]!r}: {len(ids)} tokens, the model takes {limit}")
        places = [place for place, number in enumerate(ids) if number == vocabulary.index[MASK]]
        if not places:
            raise InputError(f"{text[:40]!r}: no {MASK} in it")
        tokens = torch.tensor([ids])
        with torch.no_grad():
            hidden = model.encode_padded(tokens, torch.zeros_like(tokens), torch.ones_like(tokens))
            logits = model.token_head(hidden[0, places], model.word_weight)[:, : len(vocabulary.pieces)]
        best = logits.float().softmax(-1).topk(top)
        answers = [
            [
                (_word(vocabulary.pieces[number]), chance)
                for number, chance in zip(numbers, chances, strict=True)
            ]
            for numbers, chances in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
        results.append(answers)
    return results


def _word(piece: str) -> str:
    return piece.removeprefix(CONTINUATION) if piece != CONTINUATION else piece


def _ids_with_masks(text: str, tokenizer: WordPieceTokenizer) -> list[int]:
    """The text between [CLS] and [SEP]; the word [MASK] becomes the token, which it never does in a corpus."""
    index = tokenizer.vocabulary.index
    ids = [index[CLS]]
    for number, stretch in enumerate(text.split(MASK)):
        if number:
            ids.append(index[MASK])
        ids += tokenizer.encode(stretch)
    return [*ids, index[SEP]]
