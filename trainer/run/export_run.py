"""Exports a run's newest model with the tokenizer of its checkpoint."""

from cluster import storage
from schemas.errors import CheckpointError
from trainer.checkpoint.manifest import TOKENIZER_FILES, VOCABULARY_FILES
from trainer.data.corpus import Corpus, open_corpus
from trainer.evaluation.saved_model import evaluate_on
from trainer.export.directory import ModelCard, export_model
from trainer.export.families import Family
from trainer.export.load_model import SavedModel, load_model


def export_run(
    run_uri: str, output: str, evaluate_rows: int = 0, family: Family | None = None, *, ema: bool = False
) -> int:
    """Writes the newest verified checkpoint of a run, or one checkpoint, to ``output`` and returns its step.

    The model card has metrics of ``evaluate_rows`` held-out rows, or none if it is 0. ``family`` requests
    an architecture of transformers, ``ema`` the moving average of the weights. Only the metrics, and
    checkpoints of older versions, which have no tokenizer, need the corpus of the run. Raises ConfigError
    when the model is not of that family, CheckpointError when there is no checkpoint or the needed corpus has
    changed since, CorpusError.
    """
    saved = load_model(run_uri, ema=ema)
    if saved.step is None or saved.run is None:
        raise CheckpointError(f"{run_uri}: an exported model already, not a run")
    section, reference = saved.run.config.get("run"), saved.run.corpus
    name = section.get("name") if isinstance(section, dict) else None
    if not isinstance(name, str):
        raise CheckpointError(f"{saved.uri}: the config in its manifest has no run.name")
    present = {file for file in TOKENIZER_FILES if storage.exists(storage.join(saved.uri, file))}
    complete = len(present) >= len(TOKENIZER_FILES) - 1 and bool(present & {*VOCABULARY_FILES})
    corpus = None if complete and not evaluate_rows else _corpus_of(saved, reference.uri)
    tokenizer, languages = saved.uri, tuple(reference.languages)
    if corpus is not None and not complete:
        tokenizer = storage.join(corpus.folder, corpus.manifest.vocabulary.path).rpartition("/")[0]
        languages = corpus.languages
    evaluation: dict[str, dict[str, float]] = {}
    if corpus is not None and evaluate_rows:
        metrics = evaluate_on(corpus, saved.model, rows=evaluate_rows)
        evaluation = {group: one.model_dump(exclude_none=True) for group, one in metrics.items()}
    card = ModelCard(
        name=name,
        languages=languages,
        manifest_sha256=reference.sha256,
        step=saved.step,
        ema=ema,
        config=saved.run.config,
        evaluation=evaluation,
    )
    export_model(saved.model, output, tokenizer, card, family)
    return saved.step


def _corpus_of(saved: SavedModel, uri: str) -> Corpus:
    """The corpus of the run. Raises CheckpointError when it has changed, CorpusError."""
    corpus = open_corpus(uri)
    if saved.run is not None and corpus.digest != saved.run.corpus.sha256:
        raise CheckpointError(
            f"{saved.uri}: {uri} has changed since training; restore the corpus that the run was trained on"
        )
    return corpus
