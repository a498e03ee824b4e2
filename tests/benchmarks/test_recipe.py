"""The scripts that make a model from text: a complete run at toy size with a stop, and their rules."""

import gzip
import json
import lzma
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.recipe.schedule import RESERVE, best_rate, fit_steps
from benchmarks.recipe.state import State
from benchmarks.recipe.text import gather, join_labels, sentences_of_columns
from pipeline.dedup.evaluation_files import evaluation_texts
from schemas.errors import ConfigError, InputError
from tests.pipeline.builds import environment
from tests.support.ray_cluster import ROOT
from tests.support.waiting import HANG_SECONDS

SECONDS = st.floats(0.001, 50)


@given(st.floats(1, 1e6), st.lists(st.tuples(SECONDS, st.floats(0.01, 1)), min_size=1, max_size=3))
def test_the_steps_fill_the_time_and_do_not_exceed_it(seconds: float, phases: Any) -> None:
    rates, shares = zip(*phases, strict=True)
    steps = fit_steps(seconds, rates, shares)
    assert all(count >= 1 for count in steps)
    used = sum(count * rate for count, rate in zip(steps, rates, strict=True))
    assert used <= seconds * (1 - RESERVE) * (1 + 1e-9) + sum(rates)
    assert used >= seconds * (1 - RESERVE) * (1 - 1e-9) - sum(rates)


def test_the_search_takes_the_lowest_loss_of_the_runs_that_ended() -> None:
    assert best_rate({1e-3: 3.0, 5e-4: 2.9, 2e-3: float("nan")}) == 5e-4
    assert best_rate({1e-3: 3.0, 5e-4: 3.0}) == 5e-4
    with pytest.raises(ConfigError, match="every run"):
        best_rate({1e-3: None})


def test_another_recipe_is_refused_in_the_same_place(tmp_path: Path) -> None:
    uri = str(tmp_path / "recipe.json")
    State(uri, {"recipe": "english", "minutes": 3.0}).put("text", {"documents": 1})
    assert State(uri, {"recipe": "english", "minutes": 3.0}).get("text") == {"documents": 1}
    with pytest.raises(ConfigError, match=r"minutes 3\.0, not 4\.0"):
        State(uri, {"recipe": "english", "minutes": 4.0})


def test_text_is_capped_by_language(tmp_path: Path) -> None:
    lines = [{"lang": lang, "text": "x" * 1000} for lang in ("de", "en", "en", "de", "en")]
    write_text(tmp_path / "a.jsonl.zst", lines)
    counts = gather([(str(tmp_path / "a*.zst"), 0.002)], tmp_path / "text", parts=2)
    assert {lang: one["documents"] for lang, one in counts["languages"].items()} == {"de": 2, "en": 2}
    with pytest.raises(InputError, match="no such files"):
        gather([(str(tmp_path / "b*"), None)], tmp_path / "text")


def test_sentences_of_column_files_are_compared(tmp_path: Path) -> None:
    (tmp_path / "test-en.tsv").write_text("Ada\tB-PER\nsings\tO\n\nNow\tO\n")
    conllu = "# text = It is.\n1\tIt\tit\tPRON\t_\n2\tis\tbe\tAUX\t_\n3\t.\t.\tPUNCT\t_\n\n"
    (tmp_path / "en-ud-test.conllu.xz").write_bytes(lzma.compress(conllu.encode()))
    target = tmp_path / "sentences.jsonl"
    assert sentences_of_columns(str(tmp_path / "*test*"), target) == 3
    assert sorted(evaluation_texts(str(target))) == ["Ada sings", "It is .", "Now"]


def test_pairs_get_the_labels_of_their_translations(tmp_path: Path) -> None:
    pairs, labels = tmp_path / "test-en.tsv", tmp_path / "test-ko.tsv"
    pairs.write_text("a\tb\nc\td\n")
    labels.write_text("sentence1\tsentence2\tgold_label\nx\ty\tneutral\nx\ty\tentailment\n")
    assert join_labels(pairs, labels, tmp_path / "out.jsonl") == 2
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert rows[1] == {"text": "c", "pair": "d", "label": "entailment"}
    labels.write_text("sentence1\tsentence2\tgold_label\nx\ty\tneutral\n")
    with pytest.raises(InputError, match=r"has 1 labels, but .* has 2 pairs"):
        join_labels(pairs, labels, tmp_path / "out.jsonl")


def write_text(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zstandard.open(path, "wt", encoding="utf-8") as out:
        out.writelines(json.dumps(line) + "\n" for line in lines)


def sentences() -> list[str]:
    raw = gzip.decompress((ROOT / "sample/bookcorpus_sentences/books_en.txt.gz").read_bytes())
    return [line for line in raw.decode().split("\n") if line]


def data_folder(folder: Path) -> Path:
    """A data folder with a few dozen documents of the sample's books, and tiny sets of the tasks."""
    text = sentences()
    documents = [" ".join(text[start : start + 20]) for start in range(0, 1400, 20)]
    english = [{"id": f"b:{n}", "lang": "en", "title": "", "text": t} for n, t in enumerate(documents)]
    write_text(folder / "pretrain/english.jsonl.zst", english)
    others = [
        {**one, "lang": ("de", "nl")[n % 2], "text": one["text"][::-1]} for n, one in enumerate(english)
    ]
    write_text(folder / "pretrain/multilingual.jsonl.zst", others)
    files: dict[str, list[str]] = {
        "cola/in_domain_train.tsv": [f"s\t{n % 2}\t\t{text[n]}" for n in range(40)],
        "cola/in_domain_dev.tsv": [f"s\t{n % 2}\t\t{text[n]}" for n in range(50, 60)],
        "cola/out_of_domain_dev.tsv": [f"s\t{n % 2}\t\t{text[n]}" for n in range(60, 70)],
        "xnli/test-en.tsv": [f"{text[n]}\t{text[n + 1]}" for n in range(30)],
        "xnli/dev-en.tsv": [f"{text[n]}\t{text[n + 2]}" for n in range(30)],
    }
    labels = ("entailment", "neutral", "contradiction")
    for part in ("test", "dev"):
        files[f"kornlu/xnli.{part}.ko.tsv"] = [
            "a\tb\tgold_label",
            *(f"a\tb\t{labels[n % 3]}" for n in range(30)),
        ]
    kinds = ("entailment", "not_entailment")
    pairs = [f"{n}\t{text[n]}\t{text[n + 1]}\t{kinds[n % 2]}" for n in range(40)]
    for part in ("train", "dev"):
        files[f"rte/{part}.tsv"] = ["index\tsentence1\tsentence2\tlabel", *pairs]
    for part in ("train", "dev", "test"):
        for lang in ("eng_Latn", "deu_Latn"):
            topics = [f"{n}\t{('science', 'travel')[n % 2]}\t{text[n]}" for n in range(20)]
            files[f"sib200/{lang}/{part}.tsv"] = ["index_id\tcategory\ttext", *topics]
    for name, lines in files.items():
        path = folder / "eval" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
    return folder


def start(name: str, folder: Path, data: Path) -> "subprocess.Popen[str]":
    script = ["bash", str(ROOT / f"benchmarks/{name}_model.sh"), "--data", str(data), "--out", "out"]
    command = [*script, "--cpu", "--launcher", "local", "--toy", "--minutes", "0.01", "--search-seconds", "1"]
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**environment(), "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["english", "multilingual"])
def test_a_toy_model_goes_from_text_to_scores_over_a_stop(tmp_path: Path, name: str) -> None:
    data = data_folder(tmp_path / "data")
    first = start(name, tmp_path, data)
    seen = []
    assert first.stdout is not None
    for line in first.stdout:
        seen.append(line)
        if line.startswith("pretrain ..."):
            os.kill(first.pid, signal.SIGTERM)
    assert first.wait(HANG_SECONDS) == 143, "".join(seen)
    state = json.loads((tmp_path / "out/recipe.json").read_text())
    planned = state["plan"]
    second = start(name, tmp_path, data)
    output = second.communicate(timeout=HANG_SECONDS)[0]
    assert second.returncode == 0, output
    assert "corpus ..." not in output
    found = json.loads((tmp_path / "out/results.json").read_text())
    assert found["plan"] == planned
    assert f"{planned['learning_rate']:g}" in found["search"]["losses"]
    assert found["run"]["held_out"][-1]["step"] == sum(planned["steps"])
    tasks = {"english": {"cola", "rte"}, "multilingual": {"sib200"}}[name]
    assert {task for task, row in found["scorecard"]["tasks"].items() if row.get("mean")} == tasks
    assert (found["nli"] != {}) == (name == "english")
    assert "| task | metric |" in (tmp_path / "out/results.md").read_text()
    assert (tmp_path / "out/scorecard.html").exists()
