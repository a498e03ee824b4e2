"""Checks that all packages of bertmill come from one place.

``trainer`` and ``schemas`` are common names. Another package of that name, in the current folder or in
site-packages, may come before ours on sys.path. Then imports fail with misleading errors or run foreign
code. This module imports no other module of bertmill, so that it can report this first.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("cluster", "pipeline", "schemas", "trainer")


def foreign_package() -> str | None:
    """One line that names a package from elsewhere and the remedy, or None if all are from one root."""
    root = Path(__file__).resolve().parents[1]
    for name in PACKAGES:
        folder = _folder(name)
        if folder != root / name:
            what = "is missing" if folder is None else f"comes from {folder}"
            return (
                f"package {name!r} {what}, but bertmill from {root}; rename or uninstall the other package, "
                f"or set PYTHONPATH={root}"
            )
    return None


def _folder(name: str) -> Path | None:
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if file is None:
        spec = find_spec(name) if module is None else None
        file = spec.origin if spec is not None else None
    return Path(file).resolve().parent if file is not None else None
