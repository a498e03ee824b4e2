"""Exports a run's newest model, measures models, and fills masks with an exported one."""

from collections.abc import Sequence

import torch

from cluster import storage
from pipeline.wordpiece.tokenization import WordPieceTokenizer
from pipeline.wordpiece.vocabulary import load_vocabulary
from schemas.errors import CheckpointError, CorpusError, InputError
from schemas.vocabulary import CLS, CONTINUATION, MASK, SEP
from trainer.corpus import Corpus, check_model, open_corpus
from trainer.evaluate import Figures, HeldOut, evaluate
from trainer.export import ModelCard, export_model, import_model
from trainer.model import BertPretraining
from trainer.ranks import Ranks, alone, pick_device
from trainer.saved import load_model

Answers = list[list[tuple[str, float]]]


def export_run(run_uri: str, output: str, evaluate_rows: int = 0) -> int:
    """Exports the newest verified checkpoint of a run (or the checkpoint itself); returns its step.

    The tokenizer is that of the corpus the run was trained on. With ``evaluate_rows`` above 0 the card has
    figures of so many held-out rows. Raises CheckpointError.
    """
    saved = load_model(run_uri)
    if saved.step is None:
        raise CheckpointError(f"{run_uri}: an exported model already, no run")
    uri, digest = saved.corpus.get("uri"), saved.corpus.get("sha256")
    run = saved.config.get("run")
    name = run.get("name") if isinstance(run, dict) else None
    if not isinstance(uri, str) or not isinstance(name, str):
        raise CheckpointError(f"{saved.uri}: does not say its run and its corpus")
    corpus = open_corpus(uri)
    if corpus.digest != digest:
        raise CheckpointError(f"{saved.uri}: {uri} is not the corpus that it was trained on any more")
    tokenizer = storage.join(corpus.folder, corpus.manifest["vocabulary"]["path"]).rpartition("/")[0]
    card = ModelCard(
        name=name,
        languages=corpus.languages,
        manifest_sha256=corpus.digest,
        step=saved.step,
        config=saved.config,
        evaluation=_measure(saved.model, corpus, None, evaluate_rows) if evaluate_rows else {},
    )
    export_model(saved.model, output, tokenizer, card)
    return saved.step


def evaluate_model(
    model_uri: str,
    manifest_uri: str,
    *,
    length: int | None = None,
    rows: int | None = None,
    micro_batch_tokens: int = 16384,
    use_gpu: bool = False,
    ranks: Ranks | None = None,
) -> dict[str, Figures]:
    """Figures by language of the model at ``model_uri`` on a corpus' validation rows.

    All ``ranks`` (by default this process alone) call it together; each gets all figures.
    Raises ConfigError when they do not fit together, CorpusError, CheckpointError.
    """
    saved, corpus = load_model(model_uri), open_corpus(manifest_uri)
    check_model(
        corpus,
        vocab_size=saved.model.config.vocab_size,
        pairs=False,
        max_positions=saved.model.config.max_positions,
        lengths=[length] if length else [],
    )
    ranks = ranks or alone(pick_device(use_gpu))
    return _measure(saved.model, corpus, length, rows, micro_batch_tokens, ranks)


def _measure(
    model: BertPretraining,
    corpus: Corpus,
    length: int | None,
    rows: int | None,
    micro_batch_tokens: int = 16384,
    ranks: Ranks | None = None,
) -> dict[str, Figures]:
    ranks = ranks or alone()
    device = ranks.device
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    fitting = [one for one in corpus.lengths("validation") if one <= model.config.max_positions]
    if length is None and not fitting:
        raise CorpusError(f"{corpus.uri}: no validation rows that fit {model.config.max_positions} positions")
    chosen = length or fitting[-1]
    model.to(device)
    model.use_kernel(device, dtype)
    held_out = HeldOut(corpus, chosen, max(micro_batch_tokens, chosen), rows, ranks)
    return evaluate(model, held_out, ranks, dtype)


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
        best = logits.float().softmax(-1).topk(min(top, len(vocabulary.pieces)))
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
    """The text between [CLS] and [SEP]; [MASK] in it becomes the token (never so in a corpus)."""
    index = tokenizer.vocabulary.index
    ids = [index[CLS]]
    for number, stretch in enumerate(text.split(MASK)):
        if number:
            ids.append(index[MASK])
        ids += tokenizer.encode(stretch)
    return [*ids, index[SEP]]
