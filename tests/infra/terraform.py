"""Checks a Terraform module against the providers' schemas and against itself, without any provider.

Like ``terraform validate``, it checks names, nesting, required arguments and literal types. Every reference
must have a declaration in the module.
"""

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.infra.tools import ROOT

ROOT_MODULE = ROOT / "infra" / "terraform" / "aws"
SCHEMA = Path(__file__).parent / "schemas" / "terraform.json.gz"

_META = {"count", "for_each", "depends_on", "provider", "lifecycle", "dynamic"}
_HIDDEN = {"__is_block__", "__comments__", "__inline_comments__"}


@dataclass(frozen=True)
class Block:
    """A resource or data source: its kind ("aws_vpc", "data.aws_partition"), name and body."""

    kind: str
    name: str
    body: dict[str, Any]


@dataclass
class Module:
    """The declarations in the files of a folder."""

    resources: list[Block] = field(default_factory=list)
    variables: set[str] = field(default_factory=set)
    locals: set[str] = field(default_factory=set)
    modules: dict[str, dict[str, Any]] = field(default_factory=dict)
    outputs: set[str] = field(default_factory=set)
    texts: dict[str, str] = field(default_factory=dict)


@cache
def schemas() -> dict[str, Any]:
    """Schema by kind."""
    types: dict[str, Any] = json.loads(gzip.decompress(SCHEMA.read_bytes()))["types"]
    return types


def _plain(data: Any) -> Any:
    """``data`` without the quotes and notes of the parser."""
    if isinstance(data, dict):
        return {
            key.strip('"'): _plain(value)
            for key, value in data.items()
            if key not in _HIDDEN - {"__is_block__"}
        }
    if isinstance(data, list):
        return [_plain(item) for item in data]
    return data


@cache
def _parsed(text: str) -> Any:
    """The content of a .tf file. The parser takes a second for the larger ones, and copies of a module share
    most of its files."""
    import hcl2

    return _plain(hcl2.loads(text))


def read_module(folder: Path) -> Module:
    """Parses the .tf files of ``folder``."""
    module = Module()
    for path in sorted(folder.glob("*.tf")):
        module.texts[path.name] = path.read_text(encoding="utf-8")
        data = _parsed(module.texts[path.name])
        for prefix, section in (("", "resource"), ("data.", "data")):
            for entry in data.get(section, []):
                for kind, named in entry.items():
                    module.resources += [Block(prefix + kind, name, body) for name, body in named.items()]
        module.variables |= {name for entry in data.get("variable", []) for name in entry}
        module.outputs |= {name for entry in data.get("output", []) for name in entry}
        module.locals |= {
            name for entry in data.get("locals", []) for name in entry if name != "__is_block__"
        }
        for entry in data.get("module", []):
            module.modules |= entry
    return module


def faults(folder: Path) -> list[str]:
    """The faults of the module in ``folder``, one line each."""
    module = read_module(folder)
    found: list[str] = []
    for block in module.resources:
        schema = schemas().get(block.kind)
        where = f"{block.kind}.{block.name}"
        if schema is None:
            found.append(f"{where}: unknown type")
        else:
            found += _check(block.body, schema["fields"], where, top=True)
    found += _check_modules(module, folder)
    for name, text in module.texts.items():
        found += [f"{name}: {fault}" for fault in _check_references(module, text)]
    return found


def _check(body: dict[str, Any], fields: dict[str, Any], where: str, *, top: bool = False) -> Iterator[str]:
    given = {
        name: value for name, value in body.items() if name != "__is_block__" and not (top and name in _META)
    }
    dynamic = {name: entry for item in body.get("dynamic", []) for name, entry in item.items()}
    given.pop("dynamic", None)
    for name, entry in dynamic.items():
        given[name] = entry["content"]
        if "for_each" not in entry:
            yield f"{where}.{name}: dynamic without for_each"
    for name, entry in fields.items():
        if entry.get("required") and name not in given:
            yield f"{where}: {name} is missing"
    for name, value in given.items():
        if name not in fields:
            yield f"{where}: unknown argument {name}"
        elif "fields" in fields[name]:
            yield from _check_nested(value, fields[name], f"{where}.{name}", dynamic=name in dynamic)
        elif not _fits(value, fields[name]["type"]):
            yield f"{where}.{name}: {value!r} is not a {fields[name]['type']}"


def _check_nested(value: Any, entry: dict[str, Any], where: str, *, dynamic: bool) -> Iterator[str]:
    blocks = value if isinstance(value, list) else [value]
    is_block = all(isinstance(one, dict) and one.get("__is_block__") for one in blocks)
    if entry["block"] != is_block:
        yield f"{where}: {'a block' if entry['block'] else 'an argument'} is expected"
        return
    if len(blocks) > 1 and not entry.get("many") and not dynamic:
        yield f"{where}: only one block is allowed"
    for one in blocks:
        if isinstance(one, dict):
            yield from _check(one, entry["fields"], where)


def _fits(value: Any, kind: str) -> bool:
    """Whether a literal has the type. An expression may have any type."""
    if kind == "any" or (isinstance(value, str) and value.startswith("${")):
        return True
    if isinstance(value, str):
        return kind in ("string", "number", "bool") and (
            kind == "string" or _converts(value.strip('"'), kind)
        )
    if isinstance(value, bool):
        return kind in ("bool", "string")
    if isinstance(value, int | float):
        return kind in ("number", "string")
    return kind == ("list" if isinstance(value, list) else "map")


def _converts(text: str, kind: str) -> bool:
    return text in ("true", "false") if kind == "bool" else re.fullmatch(r"-?\d+(\.\d+)?", text) is not None


def _check_modules(module: Module, folder: Path) -> Iterator[str]:
    for name, body in module.modules.items():
        source = folder / body["source"].strip('"')
        if not source.is_dir():
            yield f"module.{name}: no folder {source}"
            continue
        inner = read_module(source)
        given = set(body) - {"source", "__is_block__"} - _META
        yield from (f"module.{name}: unknown argument {one}" for one in sorted(given - inner.variables))
        for text in inner.texts.values():
            for entry in _parsed(text).get("variable", []):
                for variable, content in entry.items():
                    if "default" not in content and variable not in given:
                        yield f"module.{name}: {variable} is missing"


_REFERENCE = re.compile(
    r"(?<![\w.\"/])(data\.)?([a-z][a-z0-9_]*)\.([a-z][\w]*)(?:\[[^\]]*\])?(?:\.([a-z_]\w*))?"
)


def _check_references(module: Module, text: str) -> Iterator[str]:
    """The var., local., module. and resource references without a declaration that has the attribute."""
    known = {(block.kind, block.name) for block in module.resources}
    kinds = {block.kind for block in module.resources}
    code = re.sub(r"(?m)#.*$", "", text)
    for data, root, name, attribute in _REFERENCE.findall(code):
        kind = data + root
        if root == "var" and name not in module.variables:
            yield f"var.{name} is not declared"
        elif root == "local" and name not in module.locals:
            yield f"local.{name} is not declared"
        elif root == "module" and name not in module.modules:
            yield f"module.{name} is not declared"
        elif root == "module" and attribute and attribute not in _outputs(module, name):
            yield f"module.{name} has no output {attribute}"
        elif kind in kinds or root.startswith(("aws_", "helm_")):
            if (kind, name) not in known:
                yield f"{kind}.{name} is not declared"
            elif (
                attribute
                and attribute not in schemas()[kind]["attributes"]
                and attribute not in schemas()[kind]["fields"]
            ):
                yield f"{kind}.{name} has no attribute {attribute}"


def _outputs(module: Module, name: str) -> set[str]:
    source = ROOT_MODULE / module.modules[name]["source"].strip('"')
    return read_module(source).outputs
