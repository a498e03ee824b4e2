"""Reads a job's YAML config: strict keys, ranges checked, dotted overrides from the command line."""

from collections.abc import Sequence
from typing import Any, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from cluster import storage
from schemas.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)


def load_config(model: type[Model], uri: str, overrides: Sequence[str] = ()) -> Model:
    """The config in the YAML file ``uri``, with overrides like ``--dedup.near=true`` applied.

    Raises ConfigError, one line that names the file and the field.
    """
    try:
        raw = storage.read_bytes(uri)
    except FileNotFoundError as error:
        raise ConfigError(f"{uri}: no such config file") from error
    data = parse_yaml(raw, uri)
    for override in overrides:
        _apply(data, override)
    return validate(model, data, uri)


def parse_yaml(raw: bytes, origin: str) -> dict[str, Any]:
    """The mapping in ``raw``. Raises ConfigError that names ``origin`` and the line."""
    try:
        data = yaml.safe_load(raw)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise ConfigError(f"{origin}:{line}: not YAML: {error.problem}") from error
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        # A ValueError is a date such as 2026-99-99, which YAML takes for one.
        raise ConfigError(f"{origin}: not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ConfigError(f"{origin}: nested too deeply") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{origin}: the config must be a mapping of fields")
    return data


def validate(model: type[Model], data: dict[str, Any], origin: str) -> Model:
    """``data`` as a ``model``. Raises ConfigError with the dotted name of the first bad field."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        if first["type"] == "extra_forbidden":
            what = "unknown field"
        else:
            what = f"{first['msg']}, got {first['input']!r:.80}"
            what = first["msg"] if first["type"] in ("missing", "value_error") else what
        where = f"{origin}: {field}" if field else origin
        raise ConfigError(f"{where}: {what}{more}") from error


def _apply(data: dict[str, Any], override: str) -> None:
    name, equals, text = override.removeprefix("--").partition("=")
    if not override.startswith("--") or not equals or not name:
        raise ConfigError(f"argument {override!r}: expected --field.subfield=value")
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"argument --{name}: not a YAML value: {text!r:.80}") from error
    *parents, last = name.replace("-", "_").split(".")
    place: Any = data
    for part in parents:
        place = place.setdefault(part, {}) if isinstance(place, dict) else place[_index(place, part, name)]
    if isinstance(place, dict):
        place[last] = value
    else:
        place[_index(place, last, name)] = value


def _index(place: Any, part: str, name: str) -> int:
    """``part`` as a place in the list ``place``."""
    if not isinstance(place, list) or not part.isdigit() or int(part) >= len(place):
        raise ConfigError(f"argument --{name}: no field {part!r} to set a value in")
    return int(part)


def field_help(model: type[BaseModel], prefix: str = "") -> str:
    """One line for each field of ``model`` and its sections: name, default, meaning."""
    lines = []
    for name, field in model.model_fields.items():
        section = _section_of(field.annotation)
        shown = f"{prefix}{name}" + (".N" if section and section[1] else "")
        default = "(required)" if field.is_required() else f"[{field.default!r:.40}]"
        meaning = " ".join((field.description or "").split())
        if section is None:
            lines.append(f"  {shown:<38} {meaning} {default}")
        else:
            lines += [f"  {shown:<38} {meaning}", field_help(section[0], f"{shown}.")]
    return "\n".join(lines)


def _section_of(annotation: Any) -> tuple[type[BaseModel], bool] | None:
    """The section class in a field's annotation, and whether the field is a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for inner in get_args(annotation):
        found = _section_of(inner)
        if found is not None:
            return found[0], found[1] or get_origin(annotation) is list
    return None
