"""Which build an output belongs to."""

from pathlib import Path
from typing import Any

import pytest

from cluster.config_file import validate
from pipeline import claim as claim_module
from pipeline.claim import Claim
from pipeline.config import BuildConfig
from schemas.errors import ConfigError, CorpusError
from tests.pipeline import builds


def config_of(output: Path, **fields: Any) -> BuildConfig:
    return validate(BuildConfig, builds.config(output, **fields), "test")


def test_two_builds_claim_an_output_only_once(tmp_path: Path) -> None:
    Claim.of(config_of(tmp_path)).take(str(tmp_path))
    Claim.of(config_of(tmp_path)).take(str(tmp_path))
    instances = {"passes": 3, "bucket_bytes": 65536, "validation_share": 0.1}
    with pytest.raises(ConfigError, match=r"differs in instances\.passes"):
        Claim.of(config_of(tmp_path, instances=instances)).take(str(tmp_path))


def test_a_build_that_other_code_began_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(tmp_path)
    Claim.of(config).take(str(tmp_path))
    monkeypatch.setattr(claim_module, "CODE_VERSION", "9.9.9")
    with pytest.raises(ConfigError, match=r"holds a build of bertmill \d\S*, this is 9\.9\.9;"):
        Claim.of(config).take(str(tmp_path))


@pytest.mark.parametrize("raw", [b"{", b"[]", b'{"config": {}}', b"\xff", b"[" * 100_000])
def test_what_is_no_claim_is_named(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "build.json").write_bytes(raw)
    with pytest.raises(CorpusError, match=r"work/build\.json: not a build's claim"):
        Claim.of(config_of(tmp_path)).check(str(tmp_path))


def test_a_side_file_that_changes_while_a_build_runs_is_told(tmp_path: Path) -> None:
    questions = tmp_path / "set.jsonl"
    questions.write_text('{"q": "a question"}\n')
    config = config_of(tmp_path / "out", dedup={"evaluation": [str(questions)]})
    claim = Claim.of(config)
    claim.check_unchanged(config)
    questions.write_text('{"q": "another question"}\n')
    with pytest.raises(ConfigError, match=r"dedup\.evaluation\..*set\.jsonl changed while the build ran"):
        claim.check_unchanged(config)
