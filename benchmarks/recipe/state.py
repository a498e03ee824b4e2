"""Keeps the results of the stages beside their output, so that the same command resumes after a kill."""

import json
from typing import Any

from cluster import storage
from schemas.errors import ConfigError
from schemas.json_text import parse_json


class State:
    """Results of stages by name, in OUTPUT/recipe.json. Raises ConfigError when it is of another recipe."""

    def __init__(self, uri: str, about: dict[str, Any]) -> None:
        self._uri = uri
        self._values: dict[str, Any] = {"about": about}
        if storage.exists(uri):
            self._values = parse_json(storage.read_bytes(uri))
            before = self._values["about"]
            changed = [name for name in about if before.get(name) != about[name]]
            if changed:
                raise ConfigError(
                    f"{uri}: was started with {changed[0]} {before.get(changed[0])!r}, not"
                    f" {about[changed[0]]!r}; choose another --out"
                )

    def get(self, stage: str) -> Any:
        """The result of a finished stage, or None."""
        return self._values.get(stage)

    def put(self, stage: str, result: Any) -> None:
        """Keeps the result of a finished stage."""
        self._values[stage] = result
        storage.put_bytes(self._uri, (json.dumps(self._values, indent=1, sort_keys=True) + "\n").encode())

    @property
    def values(self) -> dict[str, Any]:
        """All results by stage."""
        return dict(self._values)
