"""Reads a job's YAML config with strict keys, checked ranges, and dotted overrides from the command line."""

import difflib
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from cluster import storage
from cluster.jobs.paths import expand_location
from schemas.attribute_docs import attribute_docs
from schemas.errors import ConfigError, reason_of

Model = TypeVar("Model", bound=BaseModel)


def resolve_config(model: type[Model], config: str | os.PathLike[str] | Mapping[str, Any] | Model) -> Model:
    """The typed config from a YAML file (path or URI), a mapping of its fields, or a ready config.

    Raises ConfigError whose one line names the file or "config", and the field.
    """
    if isinstance(config, model):
        return config
    if isinstance(config, BaseModel):
        raise ConfigError(f"config: must be a {model.__name__}, got a {type(config).__name__}")
    if isinstance(config, Mapping):
        return validate(model, dict(config), "config")
    return load_config(model, os.fspath(config))


def load_config(model: type[Model], uri: str, overrides: Sequence[str] = ()) -> Model:
    """The config in the YAML file ``uri``, with overrides like ``--dedup.near=true`` applied.

    Raises ConfigError whose one line names the file and the field.
    """
    try:
        uri = expand_location(uri)
    except ValueError as error:
        raise ConfigError(f"--config: {error}") from error
    try:
        raw = storage.read_bytes(uri)
    except FileNotFoundError as error:
        raise ConfigError(f"{uri}: no such config file") from error
    data = parse_yaml(raw, uri)
    for override in overrides:
        _apply(data, override)
    return validate(model, data, uri, _texts(overrides))


def parse_yaml(raw: bytes, origin: str) -> dict[str, Any]:
    """The mapping in ``raw``. Raises ConfigError that names ``origin`` and the line."""
    try:
        data = yaml.safe_load(raw)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise ConfigError(f"{origin}:{line}: not YAML: {error.problem}") from error
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        # YAML reads 2026-99-99 as a date, which is a ValueError.
        raise ConfigError(f"{origin}: not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ConfigError(f"{origin}: nested too deeply") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{origin}: the config must be a mapping of fields")
    return data


def validate(
    model: type[Model], data: dict[str, Any], origin: str, texts: Mapping[str, str] | None = None
) -> Model:
    """``data`` as a ``model``. Raises ConfigError with the dotted name of the first bad field.

    ``texts`` are the fields from the command line. If the model expects text, a value such as 2024 is text.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        as_text = {
            name: text
            for name, text in (texts or {}).items()
            if any(e["type"] == "string_type" and _dotted(_field_of(e)) == name for e in error.errors())
        }
        if as_text:
            for name, text in as_text.items():
                _set(data, name, text)
            rest = {name: text for name, text in (texts or {}).items() if name not in as_text}
            return validate(model, data, origin, rest)
        first = error.errors()[0]
        field_place = _field_of(first)
        union = [e for e in error.errors() if e["loc"] != field_place == _field_of(e)]
        if len(union) > 1:
            raise ConfigError(_of_union(union, origin)) from error
        field = _dotted(first["loc"])
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        if first["type"] == "extra_forbidden":
            problem = f"unknown field{_suggestion(model, first['loc'])}"
        else:
            problem = f"{first['msg']}, got {first['input']!r:.80}"
            if first["type"] in ("missing", "value_error"):
                problem = reason_of(first)
        where = f"{origin}: {field}" if field else origin
        raise ConfigError(f"{where}: {problem}{more}") from error


def _suggestion(model: type[BaseModel], place: tuple[int | str, ...]) -> str:
    """A question about the field that is most similar to the unknown one at ``place``, or nothing."""
    section = model
    for part in place[:-1]:
        if isinstance(part, str):
            field = section.model_fields.get(part)
            nested = _section_of(field.annotation) if field else None
            if nested is None:
                return ""
            section = nested[0]
    similar = difflib.get_close_matches(str(place[-1]), section.model_fields, 1)
    return f"; did you mean {similar[0]}?" if similar else ""


def _dotted(place: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in place)


def _field_of(error: Any) -> tuple[int | str, ...]:
    """The path of the field. In a union, pydantic adds the name of the type at the end, which is removed."""
    place: tuple[int | str, ...] = error["loc"]
    last = str(place[-1]) if place else ""
    branch = last in ("int", "str", "bool", "float") or last.endswith("]")
    return place[:-1] if branch else place


def _of_union(errors: Sequence[Any], origin: str) -> str:
    """The message for a value that fits none of the types of its field."""
    kinds = dict.fromkeys(e["msg"].removeprefix("Input should be ") for e in errors)
    field = _dotted(_field_of(errors[0]))
    return f"{origin}: {field}: must be {' or '.join(kinds)}, got {errors[0]['input']!r:.80}"


def _texts(overrides: Sequence[str]) -> dict[str, str]:
    """Dotted field -> the text given for it on the command line."""
    pairs = (override.removeprefix("--").partition("=") for override in overrides)
    return {name.replace("-", "_"): text for name, _, text in pairs}


def _apply(data: dict[str, Any], override: str) -> None:
    name, equals, text = override.removeprefix("--").partition("=")
    if not override.startswith("--") or not equals or not name:
        raise ConfigError(f"argument {override!r}: expected --field.subfield=value")
    _set(data, name, _value_of(name, text))


def _set(data: dict[str, Any], name: str, value: Any) -> None:
    """Sets the dotted field ``name``. Raises ConfigError when a list in the path has no such index."""
    *parents, last = name.replace("-", "_").split(".")
    section: Any = data
    for part in parents:
        if isinstance(section, dict):
            section = section.setdefault(part, {})
        else:
            section = section[_index(section, part, name)]
    if isinstance(section, dict):
        section[last] = value
    else:
        section[_index(section, last, name)] = value


def _value_of(name: str, text: str) -> Any:
    """The value of ``text``: YAML for a list, a mapping, quoted text, a number, a boolean or null.

    Anything else is the text itself, so ``#1 String`` needs no quotes.
    """
    structured = text.lstrip().startswith(("[", "{", "'", '"'))
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if structured:
            raise ConfigError(f"argument --{name}: not a YAML value: {text!r:.80}") from error
        return text
    if structured or (isinstance(value, bool | int | float) and "#" not in text):
        return value
    return None if text.strip().lower() in ("", "null", "~") else text


def _index(section: Any, part: str, name: str) -> int:
    """``part`` as an index of the list ``section``."""
    if not isinstance(section, list) or not part.isdigit() or int(part) >= len(section):
        raise ConfigError(f"argument --{name}: unknown config field {part!r}")
    return int(part)


def field_help(model: type[BaseModel], prefix: str = "") -> str:
    """One line for each field of ``model`` and its sections: name, default, meaning."""
    lines = []
    docs = attribute_docs(model)
    for name, field in model.model_fields.items():
        section = _section_of(field.annotation)
        full_name = f"{prefix}{name}" + (".N" if section and section[1] else "")
        default = "(required)" if field.is_required() else f"[{field.default!r:.40}]"
        meaning = " ".join(docs.get(name, "").replace("``", "").split())
        if section is None:
            lines.append(f"  {full_name:<38} {meaning} {default}")
        else:
            lines += [f"  {full_name:<38} {meaning}", field_help(section[0], f"{full_name}.")]
    return "\n".join(lines)


def _section_of(annotation: Any) -> tuple[type[BaseModel], bool] | None:
    """The section class in a field's annotation, and whether the field is a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for inner in get_args(annotation):
        nested = _section_of(inner)
        if nested is not None:
            return nested[0], nested[1] or get_origin(annotation) is list
    return None
