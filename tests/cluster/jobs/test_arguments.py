"""Tests the command-line arguments that both jobs share."""

from types import ModuleType

import pytest

from pipeline import build_corpus
from trainer import pretrain


@pytest.mark.parametrize("job", [build_corpus, pretrain])
def test_overrides_are_left_for_the_config(job: ModuleType) -> None:
    words = ["--config", "a.yaml", "--dry-run", "--output=/x", "--sources.0.paths=[a.xml]"]
    known, overrides = job.parse_arguments(words)
    assert (known.config, known.dry_run) == ("a.yaml", True)
    assert overrides == ["--output=/x", "--sources.0.paths=[a.xml]"]


@pytest.mark.parametrize(
    ("job", "fields"),
    [
        (build_corpus, ("output", "dedup.near", "--cpus")),
        (pretrain, ("run.storage", "phases.N.steps", "--launcher")),
    ],
)
def test_help_lists_every_field(
    job: ModuleType, fields: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        job.parse_arguments(["--help"])
    text = capsys.readouterr().out
    assert [field for field in fields if field not in text] == []


@pytest.mark.parametrize("job", [build_corpus, pretrain])
def test_a_config_is_needed(job: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        job.parse_arguments(["--dry-run"])
    assert "--config" in capsys.readouterr().err
