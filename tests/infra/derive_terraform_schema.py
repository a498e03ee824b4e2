"""Makes terraform.json.gz: arguments and attributes of the provider types that infra/terraform uses.

    npm pack @cdktf/provider-aws@21.22.1 @cdktf/provider-helm@12.1.2     # then unpack to aws/ and helm/
    python -m tests.infra.derive_terraform_schema aws/lib helm/lib

CI cannot reach Terraform's registry, so `terraform validate` cannot load a provider. HashiCorp generates type
declarations from the same provider schemas (MPL-2.0), with names, types and requirements. This module
extracts these facts, not the declarations.
"""

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.infra.terraform import ROOT_MODULE, read_module

OUTPUT = Path(__file__).parent / "schemas" / "terraform.json.gz"
SOURCE = "@cdktf/provider-aws 21.22.1 (aws 6.25.0), @cdktf/provider-helm 12.1.2 (helm 3.1.1), MPL-2.0"

_INTERFACE = re.compile(r"export interface (\w+)(?: extends [\w.]+)? \{\n(.*?)\n\}", re.DOTALL)
_FIELD = re.compile(
    r"/\*\*(?P<doc>.*?)\*/\s*readonly (?P<name>\w+)(?P<optional>\??): (?P<type>[^;]*(?:\{[^}]*\}[^;]*)?);",
    re.DOTALL,
)
_GETTER = re.compile(r"^    get (\w+)\(\)", re.MULTILINE)


def snake(name: str) -> str:
    """camelCase -> snake_case."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: "_" + match[1].lower(), name)


def fields(name: str, interfaces: dict[str, str], *, top: bool = False) -> dict[str, Any]:
    """The arguments that the interface ``name`` declares, nested ones included."""
    found: dict[str, Any] = {}
    for match in _FIELD.finditer(interfaces[name]):
        link = re.search(r"#(\w+) \w+#\w+\}", match["doc"])
        argument = link[1] if link else snake(match["name"])
        if top and argument == "id":  # declared for every resource, but never settable
            continue
        entry: dict[str, Any] = {"required": True} if not match["optional"] else {}
        kind = match["type"].replace("| cdktf.IResolvable", "").strip()
        inner = re.match(r"[A-Z]\w+", kind)
        if inner and inner[0] in interfaces:
            entry["fields"] = fields(inner[0], interfaces)
            entry["block"] = re.search(rf"\* {argument} block", match["doc"]) is not None
            if kind.endswith("[]"):
                entry["many"] = True
        else:
            entry["type"] = simple(kind)
        found[argument] = entry
    return found


def simple(kind: str) -> str:
    """Terraform's name of a type."""
    words = {"string": "string", "number": "number", "boolean": "bool"}
    if kind in words:
        return words[kind]
    if kind.endswith("[]") or kind.startswith("Array<"):
        return "list"
    return "map" if kind.startswith("{") else "any"


def declared(kind: str, libraries: list[Path]) -> dict[str, Any]:
    """Schema of a resource type ("aws_vpc") or data source ("data.aws_partition")."""
    data = kind.startswith("data.")
    provider, name = kind.removeprefix("data.").split("_", 1)
    folder = name.replace("_", "-")
    for library in libraries:
        path = library / (f"data-{provider}-{folder}" if data else folder) / "index.d.ts"
        if library.parent.name == provider and path.is_file():
            return read(path.read_text())
    raise SystemExit(f"{kind}: no declarations found")


def read(text: str) -> dict[str, Any]:
    """Arguments and attributes from the declarations of one type."""
    interfaces = dict(_INTERFACE.findall(text))
    (main,) = [
        name
        for name in interfaces
        if re.search(rf"interface {name} extends cdktf.TerraformMetaArguments", text)
    ]
    resource = text[text.index("extends cdktf.Terraform", text.rindex("export declare class")) :]
    attributes = sorted({snake(name) for name in _GETTER.findall(resource) if not name.endswith("Input")})
    return {"fields": fields(main, interfaces, top=True), "attributes": attributes}


def main(words: list[str]) -> None:
    """Writes the schema file."""
    module = read_module(ROOT_MODULE)
    kinds = sorted({block.kind for block in module.resources})
    schema = {kind: declared(kind, [Path(word) for word in words]) for kind in kinds}
    text = json.dumps({"$comment": SOURCE, "types": schema}, sort_keys=True, separators=(",", ":"))
    OUTPUT.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{OUTPUT}: {len(kinds)} types, {len(text)} characters, {OUTPUT.stat().st_size} bytes compressed")


if __name__ == "__main__":
    main(sys.argv[1:])
