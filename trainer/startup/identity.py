"""The identity of a run: every config field that decides what the run computes.

A checkpoint records the identity of its run. A resume compares it with the config, so that a run never
changes silently. Fields marked MayChange are not part of it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, JsonValue

from schemas.errors import ConfigError
from trainer.config import TrainConfig
from trainer.model.config import may_change

Identity = dict[str, JsonValue]

_CORPUS = "data.corpus"
START_DIGEST = "start_from_sha256"
TEACHER_DIGEST = "distillation.teacher_sha256"
OBJECTIVE_DIGEST = "objective.source_sha256"
# Older versions knew these models by their paths only.
_OLDER = {"start_from": START_DIGEST, "distillation.teacher": TEACHER_DIGEST}
# What versions without a field computed, where that is not today's default.
_FORMER: Identity = {"distillation.soft_tokens": "masked"}


def identity_of(config: TrainConfig, corpus_sha256: str, digests: Mapping[str, str]) -> Identity:
    """Dotted field -> value, of every field that a resume may not change.

    Anything from outside the config counts by its content and not by its place: the corpus by the SHA-256
    of its manifest, and ``digests`` of the start weights, the teacher and the source of an objective.
    """
    identity: Identity = dict(_fields(config, config.model_dump(mode="json"), ""))
    identity[_CORPUS] = corpus_sha256
    return {**identity, **digests}


def accepted_changes(
    before: Identity, now: Identity, defaults: Identity, run: str, accepted: list[str]
) -> list[str]:
    """The differences between two identities, each as "field: was X, is Y".

    A field that an older version of bertmill did not have counts with its default, or with what that version
    computed. Raises ConfigError that lists the differences which ``accepted`` (fields or sections) does not
    cover.
    """
    former = {name: value for name, value in {**defaults, **_FORMER}.items() if name in now}
    before = {**former, **_upgraded(before, now)}
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    changes = {name: f"{name}: was {before.get(name)!s:.60}, is {now.get(name)!s:.60}" for name in names}
    refused = [name for name in names if not _covers(accepted, name)]
    if refused:
        listed = "; ".join(changes[name] for name in refused)
        fields = ", ".join(sorted({name.partition(".")[0] for name in refused}))
        raise ConfigError(
            f"run.name: run {run!r} was started with another config ({listed}). Choose another name, or"
            f" continue this run with --run.accept_changes='[{fields}]': it keeps the steps done, and follows"
            " the new schedule, phases and data order from the next step on"
        )
    return [changes[name] for name in names]


def _upgraded(before: Identity, now: Identity) -> Identity:
    """``before`` with digests in place of an older version's paths, whose content is not known."""
    upgraded = {name: value for name, value in before.items() if name not in _OLDER}
    for path, digest in _OLDER.items():
        if before.get(path) is not None and digest in now:
            upgraded.setdefault(digest, now[digest])
    return upgraded


def field_defaults(config: TrainConfig) -> Identity:
    """Dotted field -> default, of the fields of ``config`` that have one."""
    return dict(_defaults(config, ""))


def _fields(model: BaseModel, dumped: Any, prefix: str) -> Iterator[tuple[str, JsonValue]]:
    """The fields of ``model`` and its sections that may not change. ``dumped`` is the model as JSON."""
    for name, info in type(model).model_fields.items():
        value = getattr(model, name)
        if may_change(info):
            continue
        if isinstance(value, BaseModel):
            yield from _fields(value, dumped[name], f"{prefix}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
            for number, section in enumerate(value):
                yield from _fields(section, dumped[name][number], f"{prefix}{name}.{number}.")
        else:
            yield f"{prefix}{name}", dumped[name]


def _defaults(model: BaseModel, prefix: str) -> Iterator[tuple[str, JsonValue]]:
    for name, info in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from _defaults(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
            for number, section in enumerate(value):
                yield from _defaults(section, f"{prefix}{name}.{number}.")
        elif not info.is_required():
            default = type(model).model_construct(**{name: info.get_default(call_default_factory=True)})
            yield f"{prefix}{name}", default.model_dump(mode="json", include={name})[name]


def _covers(names: list[str], field: str) -> bool:
    return any(field == name or field.startswith(f"{name}.") for name in names)
