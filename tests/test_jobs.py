"""Both jobs submitted to a running Ray with `ray job submit`, as the README says, then exported and used."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

from bertmill.models import export_run, fill_masks
from cluster import storage
from pipeline.wordpiece.tokenization import WordPieceTokenizer
from pipeline.wordpiece.vocabulary import load_vocabulary
from schemas.manifest import parse_manifest
from tests.checkout import copy_checkout
from tests.pipeline import builds
from tests.ray_head import RayHead, ray_head
from trainer.checkpoint import latest_verified
from trainer.export import import_model

ROOT = builds.ROOT
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def working_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copy_checkout(tmp_path_factory.mktemp("checkout") / "bertmill")
    for name in builds.DUMPS:
        (folder / "sample" / "dumps").mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "sample" / "dumps" / f"{name}.xml.bz2", folder / "sample" / "dumps")
    return folder


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHead]:
    """A Ray as `ray start` gives it, with this environment's python first and no path to the checkout."""
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    with ray_head(tmp_path_factory.mktemp("head"), 2, {"PATH": path, "PYTHONPATH": ""}) as running:
        yield running


def submit(head: RayHead, working_dir: Path, home: Path, *words: str) -> str:
    runtime_env = {"env_vars": {"BERTMILL_HOME": str(home)}}
    for _ in range(60):
        done = subprocess.run(
            ["ray", "job", "submit", "--working-dir", ".", "--runtime-env-json", json.dumps(runtime_env),
             "--", "python", *words],
            env=head.environment, cwd=working_dir, capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
        if "No available agent" not in done.stderr:
            break
        time.sleep(1)  # the agent that runs jobs starts some seconds after the cluster
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def home(head: RayHead, working_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lasting folder of the jobs, after a corpus was built and a model trained from it."""
    home = tmp_path_factory.mktemp("home")
    files = [f"sample/dumps/{name}.xml.bz2" for name in builds.DUMPS]
    sources = json.dumps([{"name": "wikipedia", "kind": "wikimedia", "paths": files}])
    built = submit(
        head, working_dir, home,
        "pipeline/build_corpus.py", "--config", "configs/demo.yaml", f"--sources={sources}",
        "--vocabulary.size=3000", "--vocabulary.min_count=1",
        "--instances.bucket_bytes=100000", "--instances.validation_share=0.1",
    )  # fmt: skip
    assert "tokens_left_over" in built
    phase = {"global_batch": 16, "micro_batch_tokens": 2048, "learning_rate": 1e-3}
    phases = [{"max_seq_length": 128, "steps": 6, **phase}, {"max_seq_length": 512, "steps": 2, **phase}]
    trained = submit(
        head, working_dir, home,
        "trainer/pretrain.py", "--config", "configs/demo-train.yaml", f"--phases={json.dumps(phases)}",
        "--logging.every_steps=1",
    )  # fmt: skip
    assert "finished" in trained
    return home


def test_the_corpus_outlasts_the_job(home: Path) -> None:
    corpus = home / "runs/demo/corpus"
    manifest = parse_manifest((corpus / "manifest.json").read_bytes(), "manifest.json")
    shards = [shard for entry in manifest["sets"] for shard in entry["shards"]]
    assert shards
    assert all((corpus / shard["path"]).stat().st_size == shard["bytes"] for shard in shards)


def test_the_run_ends_with_a_verified_checkpoint(home: Path) -> None:
    found = latest_verified(str(home / "runs/demo/bert-demo"))
    assert found is not None
    with found:
        assert found.step == 8


def test_the_export_is_the_same_model_in_transformers(home: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "model")
    assert export_run(str(home / "runs/demo/bert-demo"), target) == 8
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
