"""Another vocabulary of the same size is refused, and a checkpoint is exported without its corpus."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import ConfigError, CorpusError
from tests.support.manifests import sealed
from tests.trainer.models import VOCAB
from tests.trainer.runs import train_config
from tests.trainer.tokenizers_for_tests import write_corpus_with_tokenizer
from trainer.checkpoint.manifest import TOKENIZER_FILES
from trainer.config import TrainConfig
from trainer.distributed.ranks import single_rank
from trainer.evaluation.saved_model import evaluate_model
from trainer.export.load_model import load_model, vocabulary_digest
from trainer.export.tokenizer_folder import load_tokenizer
from trainer.run.export_run import export_run
from trainer.run.loop import Outcome, train


def other_words(manifest: Path, folder: Path) -> Path:
    """A copy of the corpus with one word of the vocabulary replaced."""
    shutil.copytree(manifest.parent, folder)
    vocabulary, copy = folder / "tokenizer" / "vocab.txt", folder / manifest.name
    vocabulary.write_text(vocabulary.read_text().replace("cat", "cow"))
    content = json.loads(copy.read_text())
    del content["sha256"]
    content["vocabulary"]["sha256"] = hashlib.sha256(vocabulary.read_bytes()).hexdigest()
    copy.write_bytes(sealed(content))
    return copy


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus_with_tokenizer(tmp_path / "corpus", VOCAB, lengths=(32,))


def trained(folder: Path, manifest: Path, **changes: Any) -> Outcome:
    config = train_config(folder, manifest, **changes)
    config["phases"][0]["steps"] = 2
    return train(TrainConfig.model_validate(config), single_rank())


def test_another_vocabulary_of_the_same_size_is_refused_everywhere(tmp_path: Path, corpus: Path) -> None:
    run, other = trained(tmp_path, corpus).run_uri, other_words(corpus, tmp_path / "other")
    with pytest.raises(ConfigError, match="has another vocabulary than run 'run' was trained with"):
        trained(
            tmp_path,
            other,
            run={"name": "run", "storage": str(tmp_path / "runs"), "accept_changes": ["data", "phases"]},
        )
    with pytest.raises(ConfigError, match=r"model: .* has another vocabulary \(SHA-256"):
        evaluate_model(run, str(other))
    with pytest.raises(ConfigError, match=r"start_from: .* has another vocabulary"):
        trained(tmp_path / "next", other, start_from=run)
    with pytest.raises(ConfigError, match=r"distillation\.teacher: .* has another vocabulary"):
        trained(tmp_path / "student", other, distillation={"teacher": run, "copy_layers": False})


def test_a_run_is_exported_and_fine_tuned_without_its_corpus(tmp_path: Path, corpus: Path) -> None:
    run = trained(tmp_path, corpus).run_uri
    digest = hashlib.sha256((corpus.parent / "tokenizer" / "vocab.txt").read_bytes()).hexdigest()
    shutil.rmtree(corpus.parent)
    assert export_run(run, str(tmp_path / "model")) == 2
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names >= {*TOKENIZER_FILES, "config.json"} - {"pieces.txt"}
    assert "language:" in (tmp_path / "model" / "README.md").read_text()
    assert load_tokenizer(load_model(run).uri).get_vocab_size() == VOCAB
    assert load_model(str(tmp_path / "model")).vocabulary_sha256 == digest
    with pytest.raises(CorpusError, match="no such corpus manifest"):
        export_run(run, str(tmp_path / "measured"), evaluate_rows=4)


def test_the_vocabulary_of_a_folder_is_read_from_either_file(tmp_path: Path, corpus: Path) -> None:
    folder = corpus.parent / "tokenizer"
    digest = vocabulary_digest(str(folder))
    text = (folder / "vocab.txt").read_bytes()
    (folder / "vocab.txt").write_bytes(text.replace(b"\n", b"\r\n"))
    assert vocabulary_digest(str(folder)) == digest
    (folder / "vocab.txt").unlink()
    assert vocabulary_digest(str(folder)) == digest == hashlib.sha256(text).hexdigest()
    assert vocabulary_digest(str(tmp_path)) is None
