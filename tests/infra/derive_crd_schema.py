"""Makes crds.json.gz from CRDs. The result is strict (a misspelled key fails) and small.

    python tests/infra/derive_crd_schema.py *.yaml

The CRDs come from the repositories in SOURCE, all Apache-2.0. Equal parts (the pod template occurs many
times) become one definition each.
"""

import gzip
import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

OUTPUT = Path(__file__).parent / "schemas" / "crds.json.gz"
SOURCE = (
    "Apache-2.0: ray-project/kuberay v1.7.0 (ray.io_rayclusters, ray.io_rayjobs); "
    "prometheus-operator/prometheus-operator 6adcebc50 (podmonitors, prometheusrules); "
    "kubernetes-sigs/kueue ff69552e79 (clusterqueues, localqueues, resourceflavors)"
)
# Keys that only the API server or humans read.
_DROPPED = ("description", "format", "default", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
            "x-kubernetes-map-type", "x-kubernetes-validations")  # fmt: skip
_METADATA = {"name", "generateName", "namespace", "labels", "annotations", "finalizers"}
_SHARED_FROM = 120
"""Minimum characters of an equal part to become a definition."""


def strict(schema: Any) -> Any:
    """``schema`` with unknown keys forbidden wherever the known ones are listed."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: strict(value) for key, value in schema.items() if key not in ("properties", *_DROPPED)}
    if "properties" in schema:
        result["properties"] = {name: strict(part) for name, part in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            result["additionalProperties"] = False
    if result.pop("x-kubernetes-int-or-string", None):
        result.pop("type", None)
        result["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    return result


def resource(crd: dict[str, Any]) -> tuple[str, Any]:
    """Kind and strict schema of the resource that ``crd`` defines, in the stored version."""
    kind = crd["spec"]["names"]["kind"]
    version = next(one for one in crd["spec"]["versions"] if one["storage"])
    schema = strict(version["schema"]["openAPIV3Schema"])
    schema["properties"].pop("status", None)
    schema["properties"]["apiVersion"] = {"const": f"{crd['spec']['group']}/{version['name']}"}
    schema["properties"]["kind"] = {"const": kind}
    metadata: dict[str, dict[str, object]] = {name: {} for name in sorted(_METADATA)}
    schema["properties"]["metadata"] = {
        "type": "object",
        "properties": metadata,
        "additionalProperties": False,
    }
    schema["required"] = [
        "apiVersion",
        "kind",
        "metadata",
        *(["spec"] if "spec" in schema["properties"] else []),
    ]
    return kind, schema


def share(kinds: dict[str, Any]) -> dict[str, Any]:
    """The schemas with equal parts moved to ``$defs``."""
    counts: Counter[str] = Counter()

    def count(part: Any) -> None:
        if isinstance(part, dict):
            counts[_text(part)] += 1
        for child in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            count(child)

    count(kinds)
    definitions: dict[str, Any] = {}

    def move(part: Any) -> Any:
        if isinstance(part, list):
            return [move(child) for child in part]
        if not isinstance(part, dict):
            return part
        text = _text(part)
        moved = {key: move(value) for key, value in part.items()}
        if "type" not in part or counts[text] < 2 or len(text) < _SHARED_FROM:
            return moved
        name = hashlib.sha256(text.encode()).hexdigest()[:8]
        definitions[name] = moved
        return {"$ref": f"#/$defs/{name}"}

    return {"$comment": SOURCE, "kinds": move(kinds), "$defs": definitions}


def _text(part: Any) -> str:
    return json.dumps(part, sort_keys=True)


def main(paths: list[str]) -> None:
    """Writes the schema file."""
    kinds = dict(resource(yaml.safe_load(Path(path).read_text())) for path in paths)
    text = json.dumps(share(kinds), sort_keys=True, separators=(",", ":"))
    OUTPUT.parent.mkdir(exist_ok=True)
    OUTPUT.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{OUTPUT}: {len(text)} characters, {OUTPUT.stat().st_size} bytes compressed")


if __name__ == "__main__":
    main(sys.argv[1:])
