"""Evaluates a saved model on the validation rows of a corpus."""

import torch

from schemas.errors import CorpusError
from trainer.data.corpus import Corpus, check_model, open_corpus
from trainer.distributed.ranks import Ranks, pick_device, single_rank
from trainer.evaluation.held_out import HeldOut, evaluate
from trainer.export.load_model import load_model
from trainer.model.pretraining import BertPretraining
from trainer.monitoring.records import PretrainingMetrics

_MICRO_BATCH_TOKENS = 16384


def evaluate_model(
    model_uri: str,
    manifest_uri: str,
    *,
    length: int | None = None,
    rows: int | None = None,
    micro_batch_tokens: int = _MICRO_BATCH_TOKENS,
    use_gpu: bool = False,
    ranks: Ranks | None = None,
    ema: bool = False,
) -> dict[str, PretrainingMetrics]:
    """Metrics by language of the model at ``model_uri`` on a corpus' validation rows of one ``length``.

    By default the longest length that fits and all rows. All ``ranks`` (by default this process alone)
    call it together, and each gets all metrics. Raises ConfigError when model and corpus do not fit
    together, CorpusError, CheckpointError.
    """
    saved, corpus = load_model(model_uri, ema=ema), open_corpus(manifest_uri)
    saved.require_mlm("an evaluation")
    check_model(
        corpus,
        vocab_size=saved.model.config.vocab_size,
        pairs=False,
        max_positions=saved.model.config.max_positions,
        lengths=[length] if length else [],
    )
    saved.check_vocabulary(corpus.manifest.vocabulary.sha256, corpus.uri, "model")
    ranks = ranks or single_rank(pick_device(use_gpu))
    return evaluate_on(
        corpus, saved.model, length=length, rows=rows, micro_batch_tokens=micro_batch_tokens, ranks=ranks
    )


def evaluate_on(
    corpus: Corpus,
    model: BertPretraining,
    *,
    length: int | None = None,
    rows: int | None = None,
    micro_batch_tokens: int = _MICRO_BATCH_TOKENS,
    ranks: Ranks | None = None,
) -> dict[str, PretrainingMetrics]:
    """Like `evaluate_model`, for a model in memory, which moves to the ranks' device."""
    ranks = ranks or single_rank()
    device = ranks.device
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    fitting = [each for each in corpus.lengths("validation") if each <= model.config.max_positions]
    if length is None and not fitting:
        raise CorpusError(f"{corpus.uri}: no validation rows that fit {model.config.max_positions} positions")
    chosen = length or fitting[-1]
    model.to(device)
    model.use_kernel(device, dtype)
    held_out = HeldOut(corpus, chosen, max(micro_batch_tokens, chosen), rows, ranks)
    return evaluate(model, held_out, ranks, dtype)
