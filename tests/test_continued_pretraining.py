"""Continued pretraining of models from elsewhere: a corpus with their tokenizer, training, and export."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import transformers

from cluster.jobs.config_file import validate
from pipeline.build import build
from pipeline.config import BuildConfig
from pipeline.verify.corpus import verify_corpus
from schemas.errors import ConfigError
from tests.pipeline import builds
from tests.support.hub_tokenizers import NAMES, byte_bpe, unigram
from tests.support.ray_cluster import RayCluster
from tests.trainer.export.hub_models import outputs, random_model, save
from tests.trainer.runs import TINY, phase, train_config
from trainer.config import TrainConfig
from trainer.distributed.ranks import single_rank
from trainer.export.families import Family
from trainer.run.export_run import export_run
from trainer.run.loop import train

pytestmark = pytest.mark.ray

MAKERS = {"roberta": byte_bpe, "xlm-roberta": unigram}


def sample_texts() -> list[str]:
    readme = (builds.ROOT / "README.md").read_text(encoding="utf-8")
    return [line for line in readme.split("\n") if line]


@pytest.fixture(scope="module", params=MAKERS)
def family(request: pytest.FixtureRequest) -> Family:
    name: Family = request.param
    return name


@pytest.fixture(scope="module")
def model(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose tokenizer transformers has saved."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = MAKERS[family](sample_texts(), 400)
    made = random_model(family, vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=66)
    save(made, folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **NAMES).save_pretrained(folder)
    return folder


def build_config(output: Path, model: Path, **fields: Any) -> BuildConfig:
    dumps = [str(builds.SAMPLE / "dumps" / f"{name}.xml.bz2") for name in builds.DUMPS[:2]]
    config = builds.config(
        output,
        sources=[{"name": "wikipedia", "kind": "wikimedia", "paths": dumps}],
        vocabulary={"path": str(model / "tokenizer.json")},
        instances={
            "objective": "none",
            "bucket_bytes": 65536,
            "validation_share": 0.1,
            "lengths": [{"max_seq_length": 64, "max_predictions": 12}],
        },
    )
    return validate(BuildConfig, config | fields, "test")


@pytest.fixture(scope="module")
def corpus(ray_session: RayCluster, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("build") / "corpus"
    build(build_config(output, model))
    return output


def shard_hashes(corpus: Path) -> dict[str, str]:
    return {
        path.relative_to(corpus).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(corpus.glob("data/**/*.parquet"))
    }


def test_the_corpus_is_sound_and_its_rows_are_the_tokenizer_s(corpus: Path, model: Path) -> None:
    assert list(verify_corpus(str(corpus)).problems) == []
    manifest = json.loads((corpus / "manifest.json").read_text())
    assert manifest["vocabulary"]["special_ids"] == {
        "[CLS]": 0, "[PAD]": 1, "[SEP]": 2, "[UNK]": 3, "[MASK]": 4,
    }  # fmt: skip
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    read, masks, targets = 0, 0, 0
    for path in corpus.glob("data/**/*.parquet"):
        for row in pq.read_table(path).to_pylist()[:20]:
            ids = list(row["input_ids"])
            found = [ids[position] for position in row["masked_positions"]].count(tokenizer.mask_token_id)
            # The chance that none of ten targets is [MASK] is 0.2 to the power of ten.
            assert found or len(row["masked_positions"]) < 10
            masks += found
            targets += len(row["masked_positions"])
            for position, label in zip(row["masked_positions"], row["masked_ids"], strict=True):
                ids[position] = label
            assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
            assert tokenizer.decode(ids[1:-1], skip_special_tokens=True)
            read += 1
    assert read > 10
    assert masks == pytest.approx(0.8 * targets, rel=0.1), targets


def test_words_are_masked_whole(corpus: Path) -> None:
    pieces = (corpus / "tokenizer" / "pieces.txt").read_text(encoding="utf-8").split("\n")
    whole = 0
    for path in corpus.glob("data/**/*.parquet"):
        for row in pq.read_table(path).to_pylist():
            targets = set(row["masked_positions"])
            for position, label in zip(row["masked_positions"], row["masked_ids"], strict=True):
                if pieces[label].startswith("##") and position - 1 not in targets:
                    # Only a word longer than the budget is masked in part, from its start.
                    previous = row["input_ids"][position - 1]
                    assert pieces[previous] in ("[CLS]", "[SEP]", "[UNK]"), row["input_ids"]
                whole += pieces[label].startswith("##")
    assert whole > 50


def test_the_division_of_work_changes_no_byte(corpus: Path, model: Path, tmp_path: Path) -> None:
    other = build_config(tmp_path / "corpus", model, extraction={"unit_bytes": 1 << 20})
    build(other)
    assert shard_hashes(tmp_path / "corpus") == shard_hashes(corpus)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        if (model / name).exists():
            assert (corpus / "tokenizer" / name).read_bytes() == (model / name).read_bytes()


def run_config(folder: Path, corpus: Path, model: Path, **fields: Any) -> TrainConfig:
    network = {**TINY, "style": "roberta", "layers": 2, "intermediate_size": 48}
    config = train_config(
        folder,
        corpus / "manifest.json",
        model={**network, "hidden_dropout": 0.0, "norm_eps": 1e-12},
        start_from=str(model),
        phases=[{**phase(64, 8, 1024, steps=2), **fields}],
    )
    return TrainConfig.model_validate(config)


def test_weights_and_tokenizer_come_back(corpus: Path, model: Path, family: Family, tmp_path: Path) -> None:
    """With a learning rate near 0 the export equals the start. With a normal one, the model learns."""
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(model).eval()
    ids = torch.tensor([[0, *range(5, 40), 2]])
    expected = outputs(theirs, ids, torch.zeros_like(ids))["mlm"]
    differences = []
    for name, rate in (("still", 1e-30), ("learned", 1e-3)):
        outcome = train(run_config(tmp_path / name, corpus, model, learning_rate=rate), single_rank())
        export_run(outcome.run_uri, str(tmp_path / name / "model"), family=family)
        ours = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / name / "model").eval()
        assert type(ours) is type(theirs)
        difference = outputs(ours, ids, torch.zeros_like(ids))["mlm"] - expected
        differences.append(float(difference.abs().max()))
        for file in model.glob("*token*.json"):
            assert (tmp_path / name / "model" / file.name).read_bytes() == file.read_bytes()
    assert differences[0] < 1e-5
    assert differences[1] > 1e-3


def test_a_model_with_another_tokenizer_is_refused(
    corpus: Path, model: Path, family: str, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    save(transformers.AutoModelForMaskedLM.from_pretrained(model), other)
    tokenizer = MAKERS[family](sample_texts()[::2], 400)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **NAMES).save_pretrained(other)
    with pytest.raises(ConfigError, match=r"start_from: (the vocabulary of |.* have different tokenizers)"):
        train(run_config(tmp_path, corpus, other, learning_rate=1e-3), single_rank())
