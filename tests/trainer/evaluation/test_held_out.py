"""Held-out figures against a plain computation, for one rank and for several."""

import math
from functools import cached_property
from pathlib import Path

import pytest
import torch

from schemas.errors import ConfigError, CorpusError
from tests.support.manifests import set_entry, write_manifest
from tests.trainer import synthetic
from tests.trainer.models import small_model
from trainer.data.corpus import Corpus, open_corpus
from trainer.distributed.ranks import Ranks, single_rank
from trainer.evaluation.held_out import ALL, HeldOut, evaluate
from trainer.model.objectives import STATISTICS
from trainer.model.pretraining import BertPretraining
from trainer.monitoring.metrics import metrics_by_language, total_metrics

CPU = torch.device("cpu")
VOCAB = 101


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("held-out"), "validation", "nsp")


def make_corpus(folder: Path, split: str, objective: str, vocab_size: int = VOCAB) -> Corpus:
    shards = [
        synthetic.write_shard(
            folder / "held-out" / f"shard-{number:05d}.parquet",
            synthetic.invented_rows(rows, 32, VOCAB, objective, seed=number),
            group_rows=8,
        )
        for number, rows in enumerate((17, 9))
    ]
    entry = set_entry("held-out", 32, 0, shards) | {"split": split}
    path = folder / "manifest.json"
    write_manifest(path, synthetic.manifest([entry], vocab_size, objective))
    return open_corpus(str(path))


def test_figures_equal_a_plain_computation(corpus: Corpus) -> None:
    model = small_model()
    held_out = HeldOut(corpus, 32, micro_batch_tokens=10_000)
    assert len(held_out) == 1
    batch = held_out.batch(0)
    output = model(batch)
    found = evaluate(model, held_out, single_rank())[ALL]
    logits = output.padded_token_logits[:, :VOCAB]
    loss = torch.nn.functional.cross_entropy(logits, batch.masked_ids).item()
    assert found.sequences == 26
    assert found.masked_tokens == len(batch.masked_ids)
    assert found.mlm_loss == pytest.approx(loss, rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(loss), rel=1e-4)
    assert found.mlm_accuracy == pytest.approx((logits.argmax(1) == batch.masked_ids).float().mean().item())
    assert output.pair_logits is not None
    labels, guesses = batch.next_sentence_labels, output.pair_logits.argmax(1)
    for label in (0, 1):
        of_class = (guesses == label)[labels == label].float().mean().item()
        assert getattr(found, f"nsp_accuracy_label_{label}") == pytest.approx(of_class)
    assert found.nsp_label_1_share == pytest.approx(labels.float().mean().item())


def test_languages_add_up_to_all(corpus: Corpus) -> None:
    found = evaluate(small_model(), HeldOut(corpus, 32, 200), single_rank())
    assert set(found) == {ALL, *synthetic.LANGUAGES}
    for name in ("sequences", "masked_tokens", "pairs"):
        assert getattr(found[ALL], name) == sum(getattr(found[lang], name) for lang in synthetic.LANGUAGES)
    weighted = sum((found[lang].mlm_loss or 0) * found[lang].masked_tokens for lang in synthetic.LANGUAGES)
    assert weighted / found[ALL].masked_tokens == pytest.approx(found[ALL].mlm_loss)


@pytest.mark.parametrize("world_size", [2, 3, 40])
def test_world_size_does_not_change_a_bit(corpus: Corpus, world_size: int) -> None:
    """Ranks one after another. 40 ranks are more than the micro-batches, and make the same calls."""
    model, held_out = small_model(), HeldOut(corpus, 32, 100)
    shares = [_Turn(rank, world_size, CPU, None) for rank in range(world_size)]
    for share in shares:
        evaluate(model, held_out, share)
    assert [len(share.sums) for share in shares] == [1] * world_size
    total = torch.stack([share.sums[0] for share in shares]).sum(0)
    statistics = total.double() / (1 << 20)
    found = {ALL: total_metrics(statistics), **metrics_by_language(statistics, corpus.languages)}
    assert found == evaluate(model, held_out, single_rank())


class _Turn(Ranks):
    """One of several ranks that are evaluated one after another. It keeps the values that it would sum."""

    @cached_property
    def sums(self) -> list[torch.Tensor]:
        return []

    def sum_on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        self.sums.append(tensor.clone())
        return tensor


def test_rows_that_cannot_be_read_end_the_evaluation(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, "validation", "nsp", vocab_size=50)  # its rows have larger ids
    held_out, model = HeldOut(corpus, 32, 100), small_model().train()
    with pytest.raises(CorpusError, match="is outside the vocabulary of 50"):
        evaluate(model, held_out, single_rank())
    assert model.training


def test_part_of_the_rows(corpus: Corpus) -> None:
    assert evaluate(small_model(), HeldOut(corpus, 32, 100, rows=11), single_rank())[ALL].sequences == 11


def test_training_mode_is_given_back(corpus: Corpus) -> None:
    model = small_model(hidden_dropout=0.5).train()
    first = evaluate(model, HeldOut(corpus, 32, 400), single_rank())
    assert model.training
    assert first == evaluate(model, HeldOut(corpus, 32, 400), single_rank())


def test_metrics_without_pairs_lack_nsp_fields(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, "validation", "none")
    found = evaluate(small_model("roberta"), HeldOut(corpus, 32, 400), single_rank())
    assert found[ALL].nsp_accuracy is None


def test_bfloat16_is_close(corpus: Corpus) -> None:
    model, held_out = BertPretraining(small_model().config), HeldOut(corpus, 32, 400)
    exact = evaluate(model, held_out, single_rank())[ALL].loss
    assert evaluate(model, held_out, single_rank(), torch.bfloat16)[ALL].loss == pytest.approx(
        exact, rel=2e-2
    )


def test_language_without_rows_is_left_out() -> None:
    statistics = torch.zeros(2, len(STATISTICS))
    statistics[0, [STATISTICS.index(name) for name in ("mlm_loss", "mlm_count", "sequences")]] = torch.tensor(
        [6.0, 3, 2]
    )
    found = metrics_by_language(statistics, ["de", "el"])
    assert set(found) == {"de"}
    assert found["de"].mlm_loss == 2


def test_missing_split_and_tight_budget_are_refused(tmp_path: Path, corpus: Corpus) -> None:
    with pytest.raises(CorpusError, match="no validation rows of length 32"):
        HeldOut(make_corpus(tmp_path, "train", "nsp"), 32, 400)
    with pytest.raises(ConfigError, match="cannot hold a row of 32"):
        HeldOut(corpus, 32, 31)
