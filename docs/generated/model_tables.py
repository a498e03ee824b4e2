"""Pydantic models as Markdown tables: a section for each model, a row for each field."""

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from schemas.attribute_docs import DescribedJsonSchema

Schema = dict[str, Any]
_BOUNDS = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
_NAMES = {"string": "text", "boolean": "true or false", "null": "`null`", "object": "mapping"}
_MAY_CHANGE = "may_change_on_resume"


def sections(model: type[BaseModel], title: str = "Top level", level: int = 2) -> Iterator[str]:
    """The tables of ``model`` and of the models inside it. Each field has its dotted name as an anchor."""
    schema = model.model_json_schema(schema_generator=DescribedJsonSchema)
    yield from _section(schema, schema.get("$defs", {}), "", title, level)


def _section(schema: Schema, definitions: Schema, prefix: str, title: str, level: int) -> Iterator[str]:
    properties, required = schema["properties"], set(schema.get("required", ()))
    marked = any(_MAY_CHANGE in field for field in properties.values())
    inner: list[tuple[str, Schema]] = []
    yield from (f"{'#' * level} {title}", "", _one_line(schema), "")
    yield from ("| field | type | default | meaning |", "|---|---|---|---|")
    for name, field in properties.items():
        reference, suffix = _reference(field)
        definition = definitions.get(reference or "", {})
        path = f"{prefix}{name}{suffix}"
        if "properties" in definition:
            inner.append((path, definition))
            kind = f"[{_container(suffix)}](#{_slug(path)})"
        else:
            kind = _type(field, definitions)
        default = "**required**" if name in required else _default(field)
        meaning = _one_line(field) or _one_line(definition)
        mark = " ↻" if marked and field.get(_MAY_CHANGE) else ""
        yield f"| `{name}`{{#{prefix}{name}}}{mark} | {kind} | {default} | {meaning} |"
    yield ""
    for path, definition in inner:
        yield from _section(definition, definitions, f"{path}.", path, level)


def _reference(field: Schema) -> tuple[str | None, str]:
    """The model that a field holds, and the suffix of its path: nothing, ``.N`` for a list, ``.NAME``."""
    for option in (field, *field.get("anyOf", ()), *field.get("allOf", ())):
        for inner, suffix in (
            (option, ""),
            (option.get("items"), ".N"),
            (option.get("additionalProperties"), ".NAME"),
        ):
            if isinstance(inner, dict) and "$ref" in inner:
                return inner["$ref"].rsplit("/", 1)[1], suffix
    return None, ""


def _container(suffix: str) -> str:
    return {"": "section", ".N": "list of sections", ".NAME": "section by name"}[suffix]


def _slug(path: str) -> str:
    """The anchor that the table of contents gives the heading of a section."""
    return path.lower().replace(".", "")


def _type(field: Schema, definitions: Schema) -> str:
    """A field's type and range in words."""
    if "$ref" in field:
        return _type(definitions[field["$ref"].rsplit("/", 1)[1]], definitions)
    options = field.get("anyOf")
    if options:
        return " or ".join(_type(option, definitions) for option in options)
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    kind = str(field.get("type", "any"))
    if kind == "array" and "prefixItems" in field:
        return " and ".join(_type(item, definitions) for item in field["prefixItems"])
    if kind == "array":
        return f"list of {_type(field.get('items', {}), definitions)}"
    if kind == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"mapping to {_type(field['additionalProperties'], definitions)}"
    if "64}" in field.get("pattern", ""):
        return "SHA-256, 64 hex digits"
    bounds = [f"{sign} {_number(field[key])}" for key, sign in _BOUNDS if key in field]
    return f"{_NAMES.get(kind, kind)} {', '.join(bounds)}".strip()


def _number(value: float) -> str:
    """Powers of two beyond a million as powers, other integers with separators."""
    if isinstance(value, int) and value > 1_000_000 and value.bit_count() == 1:
        return f"2^{value.bit_length() - 1}"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _default(field: Schema) -> str:
    """A plain default as YAML writes it. The default of a section is in the rows of its fields."""
    value = field.get("default", "")
    if "default" not in field or isinstance(value, dict):
        return ""
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return ""
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def _one_line(schema: Schema) -> str:
    return " ".join(schema.get("description", "").split()).replace("|", "\\|")
