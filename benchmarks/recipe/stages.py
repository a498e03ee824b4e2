"""The stages, in order. Each returns its part of the report, and can be repeated after a kill."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.recipe.commands import bertmill, pretraining, run
from benchmarks.recipe.first_model_results import Finetuned
from benchmarks.recipe.report import Scored
from benchmarks.recipe.schedule import best_rate, fit_steps, step_seconds
from benchmarks.recipe.settings import (
    REPOSITORY,
    TOY_BATCH,
    TOY_CORPUS,
    TOY_MEGABYTES,
    TOY_MODEL,
    TOY_STEPS,
    TOY_TASKS,
    TOY_TOKENS,
    Call,
)
from benchmarks.recipe.state import State
from benchmarks.recipe.text import gather, join_labels, sentences_of_columns
from cluster import storage
from schemas.errors import BertmillError, CheckpointError
from trainer.finetuning.records import read_record
from trainer.monitoring.history import read_history

# Steps of each phase whose rate is measured. The first half warms up.
_MEASURED_STEPS = 60
_SAVES = ("--checkpoints.every_steps=null", "--checkpoints.every_seconds=null")
Result = dict[str, Any]


def text(call: Call, _: State) -> Result:
    """Files of text, and sentences of the evaluation sets in column files."""
    texts = [
        (str(call.data / "pretrain" / pattern), TOY_MEGABYTES if call.toy else most)
        for pattern, most in call.recipe.texts
    ]
    counts = gather(texts, call.work / "text")
    for number, pattern in enumerate(call.recipe.columns):
        target = call.work / "evaluation" / f"columns-{number}.jsonl"
        sentences_of_columns(str(call.data / "eval" / pattern), target)
    return counts


def corpus(call: Call, _: State) -> Result:
    """Shards, without documents that share text with the evaluation sets."""
    folder = call.data / "eval"
    sets = [str(folder / pattern) for pattern in call.recipe.evaluation if _has(folder, pattern)]
    columns = call.work / "evaluation"
    sets += [str(path) for path in sorted(columns.glob("*.jsonl")) if path.stat().st_size]
    source = {"name": "text", "kind": "jsonl", "paths": [str(call.work / "text" / "*.jsonl.zst")]}
    command = [
        sys.executable,
        str(REPOSITORY / "pipeline" / "build_corpus.py"),
        "--config",
        str(REPOSITORY / "configs" / f"{call.recipe.name}-model-corpus.yaml"),
        f"--output={call.at('corpus')}",
        f"--sources={json.dumps([source])}",
        f"--dedup.evaluation={json.dumps(sets)}",
        *((*TOY_CORPUS, f"--vocabulary.size={call.recipe.toy_subwords}") if call.toy else ()),
    ]
    run(command, "corpus")
    manifest = json.loads(storage.read_bytes(call.at("corpus", "manifest.json")))
    train = [one for one in manifest["sets"] if one["split"] == "train" and one["pass_number"] == 0]
    return {
        "sha256": manifest["sha256"],
        "subwords": manifest["vocabulary"]["size"],
        "removals": manifest["counts"]["removals"],
        "tokens": {one["name"]: one["tokens"] for one in train},
    }


def measure(call: Call, _: State) -> Result:
    """Seconds of a step in each phase, with the cards and the batch of the run."""
    steps = TOY_STEPS if call.toy else _MEASURED_STEPS
    phases = _phases(call, [steps] * len(call.recipe.shares), _middle_rate(call))
    command = _run_of(call, "measure", phases, "--logging.every_steps=1", "--evaluation=null", *_SAVES)
    run(command, "measuring run")
    lines = [
        (line.max_seq_length, line.step_seconds) for line in read_history(call.at("runs", "measure")).steps
    ]
    return {"step_seconds": [step_seconds(lines, phase["max_seq_length"]) for phase in phases]}


def search(call: Call, state: State) -> Result:
    """Short runs of the first phase with its whole schedule, and the lr with the lowest held-out loss."""
    if not call.search_seconds:
        return {"learning_rate": _middle_rate(call), "losses": {}}
    (steps,) = fit_steps(call.search_seconds, state.get("measure")["step_seconds"][:1], [1.0])
    steps = min(steps, TOY_STEPS) if call.toy else steps
    losses: dict[float, float | None] = {}
    for rate in call.recipe.rates[:2] if call.toy else call.recipe.rates:
        name = f"search-{rate:g}"
        phases = _phases(call, [steps], rate)
        try:
            run(_run_of(call, name, phases, f"--evaluation.every_steps={steps}", *_SAVES), name)
            losses[rate] = _held_out(call.at("runs", name))
        except BertmillError as error:
            # A rate that diverges ends its run and loses the search. best_rate raises when none is left.
            print(f"{name}: {error}", flush=True)
            losses[rate] = None
    found = {f"{rate:g}": loss for rate, loss in losses.items()}
    return {"learning_rate": best_rate(losses), "losses": found, "steps": steps}


def pretrain(call: Call, state: State) -> Result:
    """The run itself, with the number of steps that fit into the time at the measured rate."""
    planned: Result | None = state.get("plan")
    if planned is None:
        measured = state.get("measure")["step_seconds"]
        steps = fit_steps(call.minutes * 60, measured, call.recipe.shares)
        planned = {"steps": steps, "learning_rate": state.get("search")["learning_rate"]}
        # Stored before the first step, because a resumed run must have the same schedule.
        state.put("plan", planned)
    every = max(1, sum(planned["steps"]) // 10)
    phases = _phases(call, planned["steps"], planned["learning_rate"])
    run(_run_of(call, "model", phases, f"--evaluation.every_steps={every}"), "pretraining")
    return planned


def export(call: Call, _: State) -> Result:
    """The model as a directory for transformers."""
    run(bertmill("export", call.at("runs", "model"), "--to", call.at("model")), "export")
    return {"model": call.at("model")}


def nli(call: Call, _: State) -> Result | None:
    """A model fine-tuned on NLI: MNLI if the data folder has it, otherwise English XNLI."""
    files = _nli_files(call) if call.recipe.nli else None
    if files is None:
        if call.recipe.nli:
            print("no NLI set in the data folder: RTE, MRPC and STS-B start from the model", flush=True)
        return None
    target = call.work / "nli"
    command = bertmill(
        "finetune", "--config", str(REPOSITORY / "configs" / "finetune" / "nli.yaml"), "--",
        f"--model={call.at('model')}", f"--output={target}", *files,
        f"--use_gpu={str(not call.cpu).lower()}", f"--precision={'fp32' if call.cpu else 'bf16'}",
        *(("--epochs=1", "--max_train_examples=60", "--max_eval_examples=30") if call.toy else ()),
    )  # fmt: skip
    run(command, "fine-tuning on NLI")
    results = read_record(Finetuned, str(target / "results.json"), "delete it to fine-tune again")
    return {"model": str(target / "model"), "validation": results.seeds[0].validation}


def _nli_files(call: Call) -> list[str] | None:
    """The overrides that name the files and columns."""
    folder = call.data / "eval"
    train, dev = _file(folder, "MNLI/train.tsv"), _file(folder, "MNLI/dev_matched.tsv")
    if train is not None and dev is not None:
        columns = ["--files.text=sentence1", "--files.pair=sentence2", "--files.label=gold_label"]
        return [f"--files.train={json.dumps([str(train)])}", f"--files.validation={json.dumps([str(dev)])}",
                *columns]  # fmt: skip
    joined = []
    for part in ("test", "dev"):
        pairs, labels = _file(folder, f"xnli/{part}-en.tsv"), _file(folder, f"kornlu/xnli.{part}.ko.tsv")
        if pairs is None or labels is None:
            return None
        joined.append(call.work / "nli-files" / f"{part}.jsonl")
        join_labels(pairs, labels, joined[-1])
    # The larger part trains.
    names = [json.dumps([str(path)]) for path in joined]
    return [f"--files.train={names[0]}", f"--files.validation={names[1]}", "--files.text=text",
            "--files.pair=pair", "--files.label=label"]  # fmt: skip


def scorecard(call: Call, state: State) -> Result:
    """The scores, with JSON, Markdown and HTML beside the output."""
    folder = call.work / "scorecard"
    nli_model = (state.get("nli") or {}).get("model")
    command = bertmill(
        "scorecard", call.at("model"), "--suite", call.recipe.suite, "--data", str(call.data / "eval"),
        "--out", str(folder), *call.gpu_arguments, *(("--nli-model", nli_model) if nli_model else ()),
    )  # fmt: skip
    if call.toy:
        tasks = TOY_TASKS[call.recipe.suite]
        command += ["--tasks", *tasks, "--seeds", "1", "--learning-rates", "5e-5", "--epochs", "1",
                    "--max-examples", "40"]  # fmt: skip
    run(command, "scorecard")
    for suffix in ("json", "md", "html"):
        raw = (folder / f"scorecard.{suffix}").read_bytes()
        storage.put_bytes(call.at(f"scorecard.{suffix}"), raw)
    scored = read_record(Scored, str(folder / "scorecard.json"), "delete it to write it again")
    return {"tasks": {name: task.to_json() for name, task in scored.tasks.items()}}


STAGES: dict[str, Callable[[Call, State], Result | None]] = {
    "text": text,
    "corpus": corpus,
    "measure": measure,
    "search": search,
    "pretrain": pretrain,
    "export": export,
    "nli": nli,
    "scorecard": scorecard,
}


def _middle_rate(call: Call) -> float:
    return sorted(call.recipe.rates)[len(call.recipe.rates) // 2]


def _phases(call: Call, steps: Sequence[int], rate: float) -> list[Result]:
    """The phases of the recipe's config, the first ``len(steps)`` of them, with these steps and this lr."""
    path = REPOSITORY / "configs" / "recipes" / f"{call.recipe.name}-model.yaml"
    phases: list[Result] = yaml.safe_load(path.read_text(encoding="utf-8"))["phases"]
    toy = {"global_batch": TOY_BATCH, "micro_batch_tokens": TOY_TOKENS} if call.toy else {}
    return [
        {**phase, "steps": count, "learning_rate": rate, **toy}
        for phase, count in zip(phases, steps, strict=False)
    ]


def _run_of(call: Call, name: str, phases: list[Result], *overrides: str) -> list[str]:
    return pretraining(
        call,
        [
            *(TOY_MODEL if call.toy else ()),
            *call.overrides,
            f"--run.name={name}",
            f"--run.storage={call.at('runs')}",
            f"--data.manifest={call.at('corpus', 'manifest.json')}",
            # The measuring run uses all mask rates, so their shapes are compiled once for all runs.
            f"--compile_cache={call.work / 'compiled'}",
            f"--phases={json.dumps(phases)}",
            *overrides,
        ],
    )


def _held_out(run_uri: str) -> float | None:
    """The last held-out MLM loss of a run."""
    try:
        history = read_history(run_uri)
    except CheckpointError:
        return None
    return history.held_out[-1].held_out["all"].mlm_loss if history.held_out else None


def _has(folder: Path, pattern: str) -> bool:
    return any(path.is_file() for path in folder.glob(pattern))


def _file(folder: Path, name: str) -> Path | None:
    """The file, plain or compressed."""
    return next(iter(sorted(folder.glob(f"{name}*"))), None)
