"""Extension points: objects that a config names as ``package.module:Name``, and their code's version."""

import hashlib
import importlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar, overload

from schemas.errors import BertmillError, ConfigError, PluginError

T = TypeVar("T")

_DOTTED_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


@dataclass(frozen=True)
class Plugin(Generic[T]):
    """An object from outside the package that a config names."""

    name: str
    """As the config spells it: ``package.module:Name``."""
    object: T
    sha256: str
    """SHA-256 of the Python source: the module's file, or all ``.py`` files of its top-level package.

    It does not cover files that the plug-in reads at run time.
    """


@overload
def load_plugin(name: str, field: str) -> Plugin[Callable[..., Any]]: ...
@overload
def load_plugin(name: str, field: str, protocol: type[T]) -> Plugin[T]: ...
def load_plugin(name: str, field: str, protocol: type[Any] | None = None) -> Plugin[Any]:
    """Imports the object ``name`` (``package.module:Name``) that the config's ``field`` names.

    The module may be installed, on PYTHONPATH, or in the current folder. ``protocol`` defines what
    the object must offer: a ``runtime_checkable`` Protocol, or a class of which it must be an instance.
    By default the object must be callable: a function or a class.

    Raises ConfigError when the name is malformed, the module cannot be imported or has no source file,
    the object does not exist, or it lacks a member of the protocol.

    >>> load_plugin("schemas.json_text:parse_json", "filters.0.use").object("[1, 2]")
    [1, 2]
    """
    if not _DOTTED_NAME.fullmatch(name):
        raise ConfigError(f"{field}: {name!r} must have the form package.module:Name")
    module_name, _, attribute = name.partition(":")
    module = _import(module_name, field)
    source = getattr(module, "__file__", None)
    if source is None:
        raise ConfigError(f"{field}: module {module_name!r} has no source file, so its version is unknown")
    try:
        value = getattr(module, attribute)
    except AttributeError as error:
        raise ConfigError(f"{field}: module {module_name!r} ({source}) has no {attribute!r}") from error
    _check_protocol(value, protocol, f"{field}: {name}")
    return Plugin(name, value, _source_sha256(module_name, Path(source)))


def is_plugin_name(name: str) -> bool:
    """Whether ``name`` has the form ``package.module:Name``, unlike the name of a built-in choice.

    >>> is_plugin_name("my_filters:drop_short"), is_plugin_name("wikimedia")
    (True, False)
    """
    return _DOTTED_NAME.fullmatch(name) is not None


def _import(module_name: str, field: str) -> ModuleType:
    # Ray puts the driver's current folder on the path of its workers, but a driver that was started as a
    # console command lacks it. Append it, so that nothing there hides an installed module.
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{field}: cannot import {module_name}: {error}") from error
        raise ConfigError(
            f"{field}: no module named {error.name!r}; install it, put its folder on PYTHONPATH, "
            f"or start from its folder"
        ) from error
    except Exception as error:
        # Importing runs code that is not ours, which may raise anything.
        message = " ".join(str(error).split())
        raise ConfigError(
            f"{field}: cannot import {module_name}: {type(error).__name__}: {message}"
        ) from error


def _check_protocol(value: Any, protocol: type[Any] | None, where: str) -> None:
    if protocol is None:
        if not callable(value):
            raise ConfigError(f"{where} is not callable")
    elif not isinstance(value, protocol):
        members = {*dir(protocol), *getattr(protocol, "__annotations__", {})}
        missing = sorted(name for name in members if name[0] != "_" and not hasattr(value, name))
        lacks = f": it lacks {', '.join(missing)}" if missing else ""
        raise ConfigError(f"{where} is not a {protocol.__name__}{lacks}")


def _sources(module_name: str, source: Path) -> tuple[Path, set[Path]]:
    """The folder and the Python files of a plug-in in the module ``module_name`` with the file ``source``."""
    top = getattr(sys.modules[module_name.partition(".")[0]], "__file__", None)
    if top is not None and Path(top).name == "__init__.py":
        folder = Path(top).parent
        return folder, {*folder.rglob("*.py"), source}
    # A single-file module, or one in a namespace package.
    return source.parent, {source}


def _source_sha256(module_name: str, source: Path) -> str:
    folder, sources = _sources(module_name, source)
    digest = hashlib.sha256()
    for path in sorted(sources):
        for part in (path.relative_to(folder).as_posix().encode(), path.read_bytes()):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.hexdigest()


@contextmanager
def plugin_errors(name: str, what: str) -> Iterator[None]:
    """Turns an exception of the plug-in ``name`` into one line that names its task ``what`` and the location.

    Expected errors (BertmillError) pass through. Raises PluginError for the others.
    """
    try:
        yield
    except BertmillError:
        raise
    except Exception as error:
        raise plugin_error(name, what, error) from error


def plugin_error(name: str, what: str, error: Exception) -> PluginError:
    """One line for an ``error`` that the plug-in ``name`` raised in its task ``what``.

    The location is the last line of the plug-in's own code, which may have called a library that failed.
    """
    place = _own_line(name, error) or traceback.extract_tb(error.__traceback__)[-1]
    message = " ".join(str(error).split())
    return PluginError(f"{name}: {what}: {type(error).__name__}: {message} ({place.filename}:{place.lineno})")


def is_raised_by(name: str, error: Exception) -> bool:
    """Whether code of the plug-in ``name`` was running when ``error`` was raised."""
    return _own_line(name, error) is not None


def _own_line(name: str, error: Exception) -> traceback.FrameSummary | None:
    source = getattr(sys.modules.get(name.partition(":")[0]), "__file__", None)
    if source is None:
        return None
    sources = {str(path) for path in _sources(name.partition(":")[0], Path(source))[1]}
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return next((frame for frame in frames if frame.filename in sources), None)
