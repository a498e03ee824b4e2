"""Finds the files of a suite's tasks in a folder, in the layouts in which they are published.

The tutorial page lists the layouts. A file may be compressed (.gz, .bz2, .xz).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from schemas.errors import InputError
from trainer.finetuning.inputs.text_files import read_text

_COMPRESSED = ("", ".xz", ".gz", ".bz2")


@dataclass(frozen=True)
class TaskFiles:
    """A task of a suite that a folder has."""

    name: str
    title: str
    metric: str
    """The metric that the scorecard shows."""
    config: Mapping[str, Any]
    """Fields of the fine-tuning config: task, metric, files and settings that belong to the task."""
    note: str = ""
    from_nli: bool = False
    """Whether the task may start from a model that was fine-tuned on NLI."""
    pairs: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Retrieval: language -> the file of its sentences and that of their English translations."""
    problem: str = ""
    """Why the existing files cannot be used."""


@dataclass(frozen=True)
class _Layout:
    """Where one publication of a task keeps its files, relative to the folder."""

    train: tuple[str, ...]
    validation: tuple[str, ...]
    files: Mapping[str, Any]
    note: str = ""


@dataclass(frozen=True)
class _Glue:
    name: str
    title: str
    task: str
    metric: str
    epochs: int
    layouts: tuple[_Layout, ...]
    from_nli: bool = False


_COLA = {"text": 3, "label": 1}
_PAIR = {"text": "sentence1", "pair": "sentence2", "label": "label"}
_MSR = {"text": "#1 String", "pair": "#2 String", "label": "Quality"}
_STS = {"text": "text", "pair": "pair", "label": "label"}
_QUESTION = {"text": "question", "pair": "sentence", "label": "label"}
_TEST_NOTE = "measured on the test file of the original release"
_GLUE = (
    _Glue("cola", "CoLA", "classification", "matthews", 4, (
        _Layout(("CoLA/train.tsv",), ("CoLA/dev.tsv",), _COLA),
        _Layout(("cola/in_domain_train.tsv",), ("cola/in_domain_dev.tsv", "cola/out_of_domain_dev.tsv"),
                _COLA),
    )),
    _Glue("sst2", "SST-2", "classification", "accuracy", 3, (
        _Layout(("SST-2/train.tsv",), ("SST-2/dev.tsv",), {"text": "sentence", "label": "label"}),
        _Layout(("sst2_glue/train.tsv",), ("sst2_glue/dev.tsv",), {"text": "sentence", "label": "label"}),
    )),
    _Glue("mrpc", "MRPC", "classification", "f1", 5, (
        _Layout(("MRPC/train.tsv",), ("MRPC/dev.tsv",), _MSR),
        _Layout(("mrpc/msr_paraphrase_train.txt",), ("mrpc/msr_paraphrase_test.txt",), _MSR, _TEST_NOTE),
    ), from_nli=True),
    _Glue("stsb", "STS-B", "regression", "spearman", 5, (
        _Layout(("STS-B/train.tsv",), ("STS-B/dev.tsv",),
                {"text": "sentence1", "pair": "sentence2", "label": "score", "skip_bad_lines": True}),
        _Layout(("stsb/sts-train.csv",), ("stsb/sts-dev.csv",), _STS),
    ), from_nli=True),
    _Glue("rte", "RTE", "classification", "accuracy", 5, (
        _Layout(("RTE/train.tsv",), ("RTE/dev.tsv",), _PAIR),
        _Layout(("rte/train.tsv",), ("rte/dev.tsv",), _PAIR),
    ), from_nli=True),
    _Glue("qnli", "QNLI", "classification", "accuracy", 3, (
        _Layout(("QNLI/train.tsv",), ("QNLI/dev.tsv",), _QUESTION),
        _Layout(("qnli/train.tsv",), ("qnli/dev.tsv",), _QUESTION),
    )),
)  # fmt: skip
TASKS = {
    "glue": tuple(task.name for task in _GLUE),
    "multilingual": ("panx", "udpos", "tydiqa", "xquad", "sib200", "tatoeba"),
}
TITLES = {task.name: task.title for task in _GLUE} | {
    "panx": "PAN-X", "udpos": "UD POS", "tydiqa": "TyDiQA-GoldP", "xquad": "XQuAD", "sib200": "SIB-200",
    "tatoeba": "Tatoeba",
}  # fmt: skip


METRICS = {task.name: task.metric for task in _GLUE} | {
    "panx": "entity_f1", "udpos": "accuracy", "tydiqa": "answer_f1", "xquad": "answer_f1",
    "sib200": "accuracy", "tatoeba": "accuracy",
}  # fmt: skip


def find_tasks(
    suite: str, data: str, work: str, names: Sequence[str] = ()
) -> tuple[list[TaskFiles], dict[str, str]]:
    """The tasks of ``suite`` that the folder ``data`` has, and title -> the missing file of the others.

    ``work`` is a folder for sets that must be converted. Raises InputError if the folder has no task.
    """
    folder = Path(data)
    if not folder.is_dir():
        raise InputError(f"{data}: no such folder")
    available: list[TaskFiles] = []
    missing: dict[str, str] = {}
    for name in names or TASKS[suite]:
        try:
            available.append(
                _glue(name, folder, Path(work)) if suite == "glue" else _MULTILINGUAL[name](folder)
            )
        except _MissingError as error:
            missing[TITLES[name]] = str(error)
        except InputError as error:
            available.append(TaskFiles(name, TITLES[name], METRICS[name], {}, problem=str(error)))
    if not available:
        raise InputError(f"{data}: has no task of the suite; missing: {'; '.join(missing.values())}")
    return available, missing


class _MissingError(Exception):
    """The file that a task lacks."""


def _file(folder: Path, name: str) -> str:
    for suffix in _COMPRESSED:
        if (folder / f"{name}{suffix}").is_file():
            return str(folder / f"{name}{suffix}")
    raise _MissingError(f"no {name}")


def _by_language(folder: Path, prefix: str, suffix: str) -> dict[str, str]:
    """Language -> the file whose name is PREFIX, the language and SUFFIX."""
    files: dict[str, str] = {}
    for path in sorted(folder.glob(f"{prefix}*")) if folder.is_dir() else []:
        name = next(
            (path.name.removesuffix(end) for end in _COMPRESSED[1:] if path.name.endswith(end)), path.name
        )
        if name.startswith(prefix) and name.endswith(suffix):
            files.setdefault(name[len(prefix) : len(name) - len(suffix)], str(path))
    return files


def _glue(name: str, folder: Path, work: Path) -> TaskFiles:
    task = next(task for task in _GLUE if task.name == name)
    reasons = []
    for layout in task.layouts:
        try:
            files = {
                "train": [_file(folder, path) for path in layout.train],
                "validation": [_file(folder, path) for path in layout.validation],
            }
        except _MissingError as error:
            reasons.append(str(error))
            continue
        if name == "stsb" and layout.train[0].endswith(".csv"):
            files = {part: [_sts_as_json(uri, work, part) for uri in uris] for part, uris in files.items()}
        config = {
            "task": task.task,
            "metric": task.metric,
            "epochs": task.epochs,
            "files": {**files, **layout.files},
        }
        return TaskFiles(name, task.title, task.metric, config, layout.note, task.from_nli)
    raise _MissingError(reasons[-1])


def _sts_as_json(uri: str, work: Path, part: str) -> str:
    """The set of the STS benchmark as JSON Lines.

    Its files are called .csv and separate columns by tabs: genre, file, year, id, score, two sentences, and
    in some rows the licenses of the sources.
    """
    path = work / f"stsb-{part}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for number, line in enumerate(read_text(uri).split("\n"), start=1):
        fields = line.rstrip("\r").split("\t")
        if fields == [""]:
            continue
        if len(fields) < 7:
            raise InputError(
                f"{uri}:{number}: {len(fields)} fields; a row of the STS benchmark has 7 or more"
            )
        row = {"text": fields[5], "pair": fields[6], "label": fields[4]}
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


def _panx(folder: Path) -> TaskFiles:
    """Tests on test-LANGUAGE.tsv, or on dev-LANGUAGE.tsv where XTREME publishes the former without tags."""
    train, dev = _file(folder, "panx/train-en.tsv"), _file(folder, "panx/dev-en.tsv")
    tests = _by_language(folder / "panx", "test-", ".tsv")
    tagged = {language: uri for language, uri in tests.items() if _has_tags(uri)}
    others = {
        language: uri
        for language, uri in _by_language(folder / "panx", "dev-", ".tsv").items()
        if language not in tagged
    }
    notes = []
    if len(tagged) < len(tests):
        notes.append(f"without the test sets of {len(tests) - len(tagged)} language(s), which have no tags")
    if others:
        notes.append(f"measured on the dev sets of {', '.join(sorted(others))}")
    files = {
        "train": [train],
        "validation": [dev],
        "test": {language: [uri] for language, uri in sorted({**tagged, **others}.items())},
    }
    config = {"task": "tokens", "metric": "entity_f1", "epochs": 3, "files": files}
    return TaskFiles("panx", TITLES["panx"], METRICS["panx"], config, ", ".join(notes))


def _has_tags(uri: str) -> bool:
    """Whether the first word of a column file has a second column."""
    first = next((line for line in read_text(uri).split("\n") if line.strip()), "")
    return "\t" in first.rstrip("\r\t ")


def _udpos(folder: Path) -> TaskFiles:
    """Trains on the training part of EWT, or without one on its dev part and validates on its test part."""
    tests: dict[str, str] = {}
    for place in ("ud", "ud_pud"):
        for name, uri in _by_language(folder / place, "", "-ud-test.conllu").items():
            language, _, treebank = name.partition("_")
            tests[language if treebank == "pud" else f"{language} {treebank}"] = uri
    note = ""
    dev = _file(folder, "ud/en_ewt-ud-dev.conllu")
    try:
        train, validation = _file(folder, "ud/en_ewt-ud-train.conllu"), dev
    except _MissingError:
        train, validation = dev, _file(folder, "ud/en_ewt-ud-test.conllu")
        tests.pop("en ewt", None)
        note = "trained on the dev part of English EWT, because the folder has no training part"
    tests = _present(tests, "ud/LANGUAGE_TREEBANK-ud-test.conllu")
    files = {
        "train": [train], "validation": [validation], "word": 1, "tag": 3,
        "test": {language: [uri] for language, uri in sorted(tests.items())},
    }  # fmt: skip
    config = {"task": "tokens", "metric": "accuracy", "epochs": 3, "files": files}
    return TaskFiles("udpos", TITLES["udpos"], METRICS["udpos"], config, note)


_SPANS = {"task": "spans", "metric": "answer_f1", "epochs": 3}


def _tydiqa(folder: Path) -> TaskFiles:
    """The training and dev files of TyDiQA-GoldP, in tydiqa/ or in the folders of its archives."""
    train, dev, tests = _tydiqa_files(folder)
    files = {"train": [train], "validation": [dev], "test": {name: [uri] for name, uri in tests.items()}}
    return TaskFiles("tydiqa", TITLES["tydiqa"], METRICS["tydiqa"], {**_SPANS, "files": files})


def _tydiqa_files(folder: Path) -> tuple[str, str, dict[str, str]]:
    reason = ""
    for train, dev in (("tydiqa-goldp-v1.1-train/", "tydiqa-goldp-v1.1-dev/"), ("", "")):
        try:
            tests = _by_language(folder / "tydiqa" / dev, "tydiqa.goldp.", ".dev.json")
            return (
                _file(folder, f"tydiqa/{train}tydiqa.goldp.en.train.json"),
                _file(folder, f"tydiqa/{dev}tydiqa.goldp.en.dev.json"),
                _present(tests, "tydiqa/tydiqa.goldp.LANGUAGE.dev.json"),
            )
        except _MissingError as error:
            reason = str(error)
    raise _MissingError(reason)


def _xquad(folder: Path) -> TaskFiles:
    """Trains on SQuAD 1.1, or without it on English TyDiQA-GoldP."""
    tests = _present(_by_language(folder / "xquad", "xquad.", ".json"), "xquad/xquad.LANGUAGE.json")
    note = ""
    try:
        train, dev = _file(folder, "squad/train-v1.1.json"), _file(folder, "squad/dev-v1.1.json")
    except _MissingError:
        train, dev, _ = _tydiqa_files(folder)
        note = "trained on English TyDiQA-GoldP, because the folder has no squad/train-v1.1.json"
    files = {"train": [train], "validation": [dev], "test": {name: [uri] for name, uri in tests.items()}}
    return TaskFiles("xquad", TITLES["xquad"], METRICS["xquad"], {**_SPANS, "files": files}, note)


def _sib200(folder: Path) -> TaskFiles:
    languages = sorted(path.name for path in (folder / "sib200").glob("*_*") if path.is_dir())
    tests = {language: [_file(folder, f"sib200/{language}/test.tsv")] for language in languages}
    files = {
        "train": [_file(folder, "sib200/eng_Latn/train.tsv")],
        "validation": [_file(folder, "sib200/eng_Latn/dev.tsv")],
        "test": tests, "text": "text", "label": "category",
    }  # fmt: skip
    config = {"task": "classification", "metric": "accuracy", "epochs": 10, "files": files}
    return TaskFiles("sib200", TITLES["sib200"], METRICS["sib200"], config)


def _tatoeba(folder: Path) -> TaskFiles:
    pairs = {}
    for name, uri in _by_language(folder / "tatoeba", "tatoeba.", "").items():
        pair, _, side = name.partition(".")
        language = pair.removesuffix("-eng")
        if pair.endswith("-eng") and side == language:
            pairs[language] = (uri, _file(folder, f"tatoeba/tatoeba.{pair}.eng"))
    if not pairs:
        raise _MissingError("no tatoeba/tatoeba.LANGUAGE-eng.LANGUAGE")
    return TaskFiles("tatoeba", TITLES["tatoeba"], METRICS["tatoeba"], {}, pairs=pairs)


def _present(tests: dict[str, str], name: str) -> dict[str, str]:
    if not tests:
        raise _MissingError(f"no {name}")
    return tests


_MULTILINGUAL = {
    "panx": _panx,
    "udpos": _udpos,
    "tydiqa": _tydiqa,
    "xquad": _xquad,
    "sib200": _sib200,
    "tatoeba": _tatoeba,
}
