"""Changes that a resume may make: the marks on config fields, and the comparison of identities."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ConfigError
from trainer.config import TrainConfig
from trainer.startup.identity import (
    OBJECTIVE_DIGEST,
    START_DIGEST,
    TEACHER_DIGEST,
    Identity,
    accepted_changes,
    field_defaults,
    identity_of,
)

PHASE = {
    "max_seq_length": 32,
    "global_batch": 16,
    "micro_batch_tokens": 128,
    "steps": 12,
    "learning_rate": 1e-3,
}


def config(**fields: Any) -> TrainConfig:
    base = {"run": {"name": "a", "storage": "runs"}, "data": {"manifest": "m.json"}, "phases": [PHASE]}
    return TrainConfig.model_validate({**base, **fields})


def identity(**fields: Any) -> Identity:
    return identity_of(config(**fields), "d" * 64, {})


@pytest.mark.parametrize(
    "fields",
    [
        {"run": {"name": "b", "storage": "s3://bucket"}},
        {"data": {"manifest": "moved.json", "read_threads": 9, "disk_cache": "/tmp/cache"}},
        {"phases": [{**PHASE, "micro_batch_tokens": 4096}]},
        {"model": {"attention": "padded"}},
        {"stability": {"max_skipped": 3, "check_ranks_every": 10}},
        {"evaluation": {"every_steps": 5}},
        {"workers": {"num_workers": 4}},
        {"kernels": "plain", "compile": True, "checkpoints": {"keep": 9}, "logging": {"every_steps": 1}},
    ],
)
def test_how_a_run_is_carried_out_may_change(fields: dict[str, Any]) -> None:
    assert identity(**fields) == identity()


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"seed": 7}, "seed"),
        ({"phases": [{**PHASE, "global_batch": 32}]}, "phases.0.global_batch"),
        ({"model": {"layers": 3}}, "model.layers"),
        ({"stability": {"clip_norm": None}}, "stability.clip_norm"),
        ({"data": {"manifest": "m.json", "masking": "dynamic"}}, "data.masking"),
    ],
)
def test_what_a_run_computes_may_not(fields: dict[str, Any], name: str) -> None:
    before, now = identity(), identity(**fields)
    with pytest.raises(
        ConfigError,
        match=rf"{name}: was .*, is .*--run.accept_changes='\[{name.split('.', maxsplit=1)[0]}\]'",
    ):
        accepted_changes(before, now, {}, "a", [])
    (change,) = accepted_changes(before, now, {}, "a", [name])
    assert change.startswith(f"{name}: was ")
    assert accepted_changes(before, now, {}, "a", [name.split(".", maxsplit=1)[0]]) == [change]


def test_another_corpus_or_another_source_of_the_objective_is_a_change() -> None:
    before = identity_of(config(), "d" * 64, {OBJECTIVE_DIGEST: "1" * 64})
    other_corpus = identity_of(config(), "e" * 64, {OBJECTIVE_DIGEST: "1" * 64})
    other_source = identity_of(config(), "d" * 64, {OBJECTIVE_DIGEST: "2" * 64})
    for now in (other_corpus, other_source):
        with pytest.raises(ConfigError, match=r"data.corpus|objective.source_sha256"):
            accepted_changes(before, now, field_defaults(config()), "a", [])


def test_other_models_than_the_run_began_with_are_a_change_wherever_they_lie() -> None:
    for digest in (START_DIGEST, TEACHER_DIGEST):
        before = identity_of(config(start_from="a"), "d" * 64, {digest: "1" * 64})
        moved = identity_of(config(start_from="b"), "d" * 64, {digest: "1" * 64})
        assert accepted_changes(before, moved, {}, "a", []) == []
        for digests in ({digest: "2" * 64}, {}):
            other = identity_of(config(start_from="a"), "d" * 64, digests)
            with pytest.raises(ConfigError, match=rf"{digest}: was 1+, is (2+|None)"):
                accepted_changes(before, other, {}, "a", [])


def test_an_older_version_knew_models_by_their_paths() -> None:
    now = identity_of(config(start_from="a"), "d" * 64, {START_DIGEST: "1" * 64})
    without = identity_of(config(), "d" * 64, {})
    assert accepted_changes({**without, "start_from": "a"}, now, {}, "a", []) == []
    assert accepted_changes({**without, "start_from": None}, without, {}, "a", []) == []
    with pytest.raises(ConfigError, match=r"start_from_sha256: was None, is 1"):
        accepted_changes({**without, "start_from": None}, now, {}, "a", [])


@given(st.data())
def test_a_field_of_a_newer_version_counts_as_its_default(data: st.DataObject) -> None:
    """A checkpoint of an older version lacks fields. Fields of the config at their default fit it."""
    defaults = field_defaults(config())
    now = identity()
    older = dict(now)
    at_default = sorted(name for name in defaults.keys() & now.keys() if defaults[name] == now[name])
    for name in data.draw(st.sets(st.sampled_from(at_default))):
        del older[name]
    assert accepted_changes(older, now, defaults, "a", []) == []
    del older["phases.0.learning_rate"]  # has no default
    with pytest.raises(ConfigError, match=r"phases.0.learning_rate: was None"):
        accepted_changes(older, now, defaults, "a", [])


def test_a_field_that_older_versions_lacked_means_what_they_computed() -> None:
    now = config(distillation={"teacher": "t"})
    older = {k: v for k, v in identity_of(now, "d" * 64, {}).items() if k != "distillation.soft_tokens"}
    with pytest.raises(ConfigError, match=r"soft_tokens: was masked, is all"):
        accepted_changes(older, identity_of(now, "d" * 64, {}), field_defaults(now), "a", [])
    masked = config(distillation={"teacher": "t", "soft_tokens": "masked"})
    assert accepted_changes(older, identity_of(masked, "d" * 64, {}), field_defaults(masked), "a", []) == []
