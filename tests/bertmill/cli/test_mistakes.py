"""Every command on wrong paths, files of the wrong kind, wrong numbers: one line, status 2, no traceback."""

import itertools
import os
from pathlib import Path

import pytest

from bertmill.cli import main
from bertmill.cli.corpus.explain import LINE_AREAS, answer, line_explainer
from cluster.storage import retries
from tests.pipeline.small_corpus import SmallCorpus, build_small_corpus
from tests.trainer.records import step_record
from tests.trainer.states import save_steps

COMMANDS = [
    ["verify", "{}"], ["inspect", "{}"], ["checkpoints", "{}"], ["export", "{}", "--to", "out"],
    ["report", "{}", "--to", "out"], ["losses", "{}"], ["losses", "run", "--against", "{}"],
    ["fill", "{}", "[MASK]"], ["evaluate", "{}", "--corpus", "corpus/manifest.json"],
    ["evaluate", "run", "--corpus", "{}"], ["plan", "{}"], ["build", "--config", "{}"],
    ["pretrain", "--config", "{}", "--launcher", "local"], ["finetune", "--config", "{}"],
    ["explain", "dump", "{}"],
]  # fmt: skip
PLACES = [
    "nothing", "empty", "folder", "random", "empty/below", "", "/proc/self/mem", "a\0b", "x" * 5000, "s3://",
    "s3:///key", "gs://", "ftp9://a/b", "hdfs://a/b", "deep", "deep.yaml", "date.yaml",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "empty").touch()
    (folder / "folder").mkdir()
    (folder / "random").write_bytes(os.urandom(3000))
    (folder / "deep").write_bytes(b"[" * 1100)
    (folder / "deep.yaml").write_bytes(b"a: " + b"[" * 800 + b"]" * 800)
    (folder / "date.yaml").write_bytes(b"a: 2026-99-99\n")
    build_small_corpus(folder / "corpus")
    save_steps(str(folder / "run"), [2])
    return folder


@pytest.mark.parametrize(
    "place", [*PLACES, "corpus", "corpus/manifest.json", "run"], ids=lambda place: place[:12]
)
def test_wrong_places(
    folder: Path, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(retries, "BUDGET_SECONDS", 0.1)
    for command in COMMANDS:
        status = main([word.format(place) for word in command])
        said = capsys.readouterr().err
        fits = (command[0], place) in (
            ("verify", "corpus"), ("inspect", "corpus"), ("verify", "corpus/manifest.json"),
            ("inspect", "corpus/manifest.json"), ("checkpoints", "run"), ("verify", "run"),
        )  # fmt: skip
        assert status == (0 if fits else 2), (command, said)
        assert said.count("\n") == (0 if fits else 1), (command, said)


@pytest.mark.parametrize("target", ["/proc/x", "/dev/full/x", "empty/x", "s3://", ""])
def test_wrong_targets(
    folder: Path, target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    (folder / "logged" / "metrics" / "attempt-000001").mkdir(parents=True, exist_ok=True)
    log = folder / "logged" / "metrics" / "attempt-000001" / "rank-00000.jsonl"
    log.write_text(f"{step_record(1).model_dump_json(exclude_none=True)}\n")
    for command in (["losses", "logged", "--write", target], ["report", "logged", "--to", target]):
        if target or command[0] == "losses":
            main(command)
            assert capsys.readouterr().err.count("\n") == (1 if target else 0), command


def test_a_damaged_log_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    (folder / "torn" / "metrics" / "attempt-000001").mkdir(parents=True)
    log = folder / "torn" / "metrics" / "attempt-000001" / "rank-00000.jsonl"
    # A language tag with a line separator, which does not end a line of a log.
    languages = {"a\u2028b": {"loss": 1.0, "sequences": 1, "masked_tokens": 1, "pairs": 0}}
    record = step_record(1, loss=2.0, languages=languages)
    good = f"{record.model_dump_json(exclude_none=True)}\n"
    for bad in ('{"step": 2, "lo\n', "[1]\n", '{"loss": 1.0, "time": 3}\n', "[" * 100_000 + "\n"):
        log.write_text(good + bad + good, encoding="utf-8")
        assert main(["losses", "torn"]) == 2
        assert "rank-00000.jsonl:2: not a line of a log" in capsys.readouterr().err
    log.write_text(good + '{"step": 2, "lo', encoding="utf-8")
    assert main(["losses", "torn"]) == 0
    assert capsys.readouterr().out == "1\t2.0\n"


@pytest.mark.parametrize(
    ("command", "bad"),
    [
        (["evaluate", "run", "--corpus", "m", "--length"], "0"),
        (["evaluate", "run", "--corpus", "m", "--rows"], "-1"),
        (["evaluate", "run", "--corpus", "m", "--micro-batch-tokens"], "0"),
        (["inspect", "corpus", "--start"], "-1"),
        (["inspect", "corpus", "--rows"], "x"), (["fill", "m", "[MASK]", "--top"], "0"),
        (["export", "run", "--to", "out", "--evaluate"], "-1"),
        (["plan", "c", "--input-gb"], "nan"), (["plan", "c", "--input-gb"], "inf"),
        (["plan", "c", "--input-gb"], "-5"), (["plan", "c", "--vocab-size"], "0"),
        (["plan", "c", "--vocab-size"], "-5"),
        (["plan", "c", "--gpus"], "1e3"),
    ],
)  # fmt: skip
def test_wrong_numbers(command: list[str], bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, bad])
    assert ended.value.code == 2
    assert command[-1] in capsys.readouterr().err


def test_a_shard_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus: SmallCorpus = build_small_corpus(tmp_path / "corpus")
    corpus.shard(0).unlink()
    assert main(["inspect", str(corpus.folder)]) == 2
    assert capsys.readouterr().err == f"bertmill: {corpus.shard(0)}: the shard is missing\n"


RECORDS = {
    "wikitext": '{"id": 1, "lang": "en", "wikitext": "x", "namespaces": {"6": ["File"]}}',
    "normalize": '{"id": 1, "lang": "en", "text": "x"}',
    "sentences": '{"id": 1, "lang": "en", "text": "x"}',
    "tokens": '{"id": 1, "text": "w5", "cased": true}',
    "instances": '{"id": 1, "documents": [[["a"], ["b"]], [["c"]]], "max_seq_length": 16, "max_predictions": '
    '3, "objective": "nsp", "masking": "token", "seed": 1, "langs": ["en", "en"]}',
}
VALUES = ["null", "5", "-1", "1.5", "NaN", "1" * 40, '"x"', "[]", "[5]", '["a"]', "{}", '{"6": 5}', "true"]


@pytest.mark.parametrize("area", LINE_AREAS)
def test_explain_answers_odd_fields(area: str, folder: Path) -> None:
    explainer = line_explainer(
        area, str(folder / "corpus" / "tokenizer" / "vocab.txt") if area == "tokens" else None
    )
    record = RECORDS[area]
    assert "output" in answer(explainer, record, 1)
    names = [part.split('"')[-2] for part in record.split(": ")[:-1]]
    for name, value in itertools.product(names, VALUES):
        before, _, rest = record.partition(f'"{name}": ')
        # The second field of the same name counts.
        answered = answer(explainer, f'{before}"{name}": {rest[:-1]}, "{name}": {value}}}', 1)
        assert {"id", "error"} == answered.keys() or "output" in answered
    for line in ("[" * 100_000, '{"a":' * 100_000, "1" * 5000):
        assert "not JSON" in answer(explainer, line, 1)["error"]
