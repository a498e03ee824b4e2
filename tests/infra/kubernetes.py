"""Checks manifests as an API server would, but treats unknown keys as errors."""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from tests.infra.tools import run_tool

SCHEMAS = Path(__file__).parent / "schemas" / "crds.json.gz"
KUBERNETES_VERSION = "1.33.0"


@cache
def _validators() -> dict[str, Draft202012Validator]:
    """Kind -> validator of the resources that CRDs define."""
    data = json.loads(gzip.decompress(SCHEMAS.read_bytes()))
    return {
        kind: Draft202012Validator({"$defs": data["$defs"], **schema})
        for kind, schema in data["kinds"].items()
    }


def render(overlay: Path) -> list[dict[str, Any]]:
    """The resources that ``kubectl apply -k`` would send. Raises ValueError with kustomize's message."""
    done = run_tool("kubectl", "kustomize", str(overlay))
    if done.returncode:
        raise ValueError(done.stderr)
    return list(yaml.safe_load_all(done.stdout))


def faults(resource: dict[str, Any]) -> list[str]:
    """The faults of ``resource``, one line each, with their location."""
    validator = _validators().get(resource["kind"])
    if validator is not None:
        found = sorted(validator.iter_errors(resource), key=lambda error: list(map(str, error.path)))
        return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in found]
    return _core_faults(resource)


def _core_faults(resource: dict[str, Any]) -> list[str]:
    import kubernetes_validate

    try:
        kubernetes_validate.validate(resource, KUBERNETES_VERSION, strict=True)
    except (kubernetes_validate.ValidationError, kubernetes_validate.InvalidSchemaError) as error:
        return [str(error)]
    return []
