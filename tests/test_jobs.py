"""Both jobs submitted to a running Ray as in the guides, then the model exported and used."""

from pathlib import Path

import pytest
import torch
import transformers

from bertmill.fill_masks import fill_masks
from cluster import storage
from pipeline.verify.corpus_files import CorpusFiles
from pipeline.wordpiece.tokenization import WordPieceTokenizer
from pipeline.wordpiece.vocabulary import load_vocabulary
from tests.infra.job_metrics import SubmittedJobs
from tests.support.submitted_jobs import LONG_STEPS, STEPS
from trainer.checkpoint.reading import latest_verified
from trainer.export.directory import import_model
from trainer.run.export_run import export_run

pytestmark = [pytest.mark.slow, pytest.mark.ray]


@pytest.fixture
def home(submitted_jobs: SubmittedJobs) -> Path:
    """The home folder of the jobs, after a corpus was built and a model trained on it."""
    return submitted_jobs.home


def test_the_corpus_outlasts_the_job(home: Path) -> None:
    corpus = home / "runs/demo/corpus"
    files = CorpusFiles.open(str(corpus))
    shards = [shard for entry in files.manifest.sets for shard in files.shards(entry)]
    assert shards
    assert all((corpus / shard.path).stat().st_size == shard.bytes for shard in shards)


def test_the_run_ends_with_a_verified_checkpoint(home: Path) -> None:
    found = latest_verified(str(home / "runs/demo/bert-demo"))
    assert found is not None
    with found:
        assert found.step == STEPS + LONG_STEPS


def test_the_export_is_the_same_model_in_transformers(home: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "model")
    assert export_run(str(home / "runs/demo/bert-demo"), target) == STEPS + LONG_STEPS
    theirs, report = transformers.BertForPreTraining.from_pretrained(target, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    ours = import_model(target).eval()
    vocabulary = load_vocabulary(storage.join(target, "vocab.txt"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(target)
    text = "Bridges are built over rivers."
    encoded = tokenizer(text, return_tensors="pt")
    assert encoded["input_ids"][0, 1:-1].tolist() == WordPieceTokenizer(vocabulary).encode(text)
    ids, mask = encoded["input_ids"], encoded["attention_mask"]
    with torch.no_grad():
        wanted = theirs.eval()(input_ids=ids, attention_mask=mask)
        hidden = ours.encode_padded(ids, torch.zeros_like(ids), mask)
        logits = ours.token_head(hidden[0], ours.word_weight)[:, : len(vocabulary.pieces)]
    torch.testing.assert_close(logits, wanted.prediction_logits[0], atol=1e-4, rtol=1e-4)

    fill = transformers.pipeline("fill-mask", model=target, tokenizer=target)
    text = f"The river is {tokenizer.mask_token} ."
    first = fill(text, top_k=3)
    mine = fill_masks(target, [text.replace(tokenizer.mask_token, "[MASK]")], top=3)[0][0]
    assert [answer["score"] for answer in first] == pytest.approx([chance for _, chance in mine], abs=1e-4)
