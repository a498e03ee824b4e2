"""Tests which build an output belongs to."""

from pathlib import Path
from typing import Any

import pytest

from cluster.jobs.config_file import validate
from pipeline.config import BuildConfig
from pipeline.engine import build_identity as identity_module
from pipeline.engine.build_identity import BuildIdentity
from schemas.errors import ConfigError, CorpusError
from tests.pipeline import builds


def config_of(output: Path, **fields: Any) -> BuildConfig:
    return validate(BuildConfig, builds.config(output, **fields), "test")


def test_two_builds_claim_an_output_only_once(tmp_path: Path) -> None:
    BuildIdentity.of(config_of(tmp_path)).claim_output(str(tmp_path))
    BuildIdentity.of(config_of(tmp_path)).claim_output(str(tmp_path))
    instances = {"passes": 3, "bucket_bytes": 65536, "validation_share": 0.1}
    with pytest.raises(ConfigError, match=r"differs in instances\.passes"):
        BuildIdentity.of(config_of(tmp_path, instances=instances)).claim_output(str(tmp_path))


def test_a_build_that_other_code_began_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(tmp_path)
    BuildIdentity.of(config).claim_output(str(tmp_path))
    monkeypatch.setattr(identity_module, "CODE_VERSION", "9.9.9")
    with pytest.raises(ConfigError, match=r"holds a build of bertmill \d\S*, this is 9\.9\.9;"):
        BuildIdentity.of(config).claim_output(str(tmp_path))


@pytest.mark.parametrize("raw", [b"{", b"[]", b'{"config": {}}', b"\xff", b"[" * 100_000])
def test_an_invalid_build_identity_is_reported(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "build.json").write_bytes(raw)
    with pytest.raises(CorpusError, match=r"work/build\.json: not the identity of a build"):
        BuildIdentity.of(config_of(tmp_path)).check_output(str(tmp_path))


def test_a_side_file_that_changes_during_a_build_is_reported(tmp_path: Path) -> None:
    questions = tmp_path / "set.jsonl"
    questions.write_text('{"q": "a question"}\n')
    config = config_of(tmp_path / "out", dedup={"evaluation": [str(questions)]})
    identity = BuildIdentity.of(config)
    identity.check_unchanged(config)
    questions.write_text('{"q": "another question"}\n')
    with pytest.raises(ConfigError, match=r"dedup\.evaluation\..*set\.jsonl changed while the build ran"):
        identity.check_unchanged(config)
