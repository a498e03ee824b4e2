"""Loading objects by the dotted names in a config."""

import itertools
import sys
from pathlib import Path
from typing import Protocol, runtime_checkable

import pytest

from schemas.errors import ConfigError, PluginError
from schemas.plugins import is_plugin_name, load_plugin, plugin_errors

_NUMBERS = itertools.count()


@runtime_checkable
class Filter(Protocol):
    reason: str

    def keep(self, text: str) -> bool: ...


FILTER = """
class Short:
    reason = "short"
    def keep(self, text):
        return len(text) > 3
short = Short()
half = object()
number = 7
def shout(text):
    return text.upper()
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of a name that no test has imported, in the current folder."""
    folder = tmp_path / f"plugin_{next(_NUMBERS)}"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "filters.py").write_text(FILTER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    return folder


def test_an_object_of_the_current_folder(package: Path) -> None:
    plugin = load_plugin(f"{package.name}.filters:short", "filters.0", Filter)
    assert plugin.name == f"{package.name}.filters:short"
    assert plugin.object.keep("long enough")
    assert not plugin.object.keep("no")


def test_a_function_and_a_class_are_callable(package: Path) -> None:
    assert load_plugin(f"{package.name}.filters:shout", "f").object("a") == "A"
    assert load_plugin(f"{package.name}.filters:Short", "f").object().reason == "short"


def test_the_version_follows_every_source_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str, files: dict[str, str]) -> str:
        root = tmp_path / str(next(_NUMBERS))
        for path, text in files.items():
            (root / name / path).parent.mkdir(parents=True, exist_ok=True)
            (root / name / path).write_text(text)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(root))
            sha256 = load_plugin(f"{name}.rules:run", "f").sha256
            for module in [m for m in sys.modules if m.split(".")[0] == name]:
                sys.modules.pop(module)
        return sha256

    files = {"__init__.py": "", "rules.py": "def run(): pass", "deep/helper.py": "A = 1"}
    same = version("plugin_v", files)
    assert version("plugin_v", files | {"__pycache__/rules.pyc": "x", "notes.txt": "x"}) == same
    changed = [
        version("plugin_v", files | {"rules.py": "def run(): return 1"}),
        version("plugin_v", files | {"deep/helper.py": "A = 2"}),
        version("plugin_v", files | {"more.py": ""}),
    ]
    assert len({same, *changed}) == 4


def test_a_single_module_depends_on_no_neighbour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = f"plugin_{next(_NUMBERS)}", f"plugin_{next(_NUMBERS)}"
    for name in (first, second):
        (tmp_path / f"{name}.py").write_text("def run(): pass")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = load_plugin(f"{first}:run", "f").sha256
    (tmp_path / f"{second}.py").write_text("def run(): return 1")
    assert load_plugin(f"{first}:run", "f").sha256 == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("short", "filters.0: 'short' must have the form package.module:Name"),
        ("a.b:c d", "filters.0: 'a.b:c d' must have the form"),
        (":short", "must have the form"),
        ("no_such_module:short", "filters.0: no module named 'no_such_module'; install it"),
        ("PACKAGE.missing:short", "no module named 'PACKAGE.missing'"),
        ("PACKAGE.filters:long", "module 'PACKAGE.filters' (FOLDER/filters.py) has no 'long'"),
        ("PACKAGE.filters:half", "filters.0: PACKAGE.filters:half is not a Filter: it lacks keep, reason"),
        ("PACKAGE.broken:short", "filters.0: cannot import PACKAGE.broken: SyntaxError: "),
        (
            "PACKAGE.raises:short",
            "filters.0: cannot import PACKAGE.raises: ZeroDivisionError: division by zero",
        ),
        ("PACKAGE.needs:short", "cannot import PACKAGE.needs: No module named 'no_such_library'"),
        ("sys:path", "module 'sys' has no source file"),
    ],
)
def test_a_wrong_name_is_one_line_with_the_field(package: Path, name: str, message: str) -> None:
    (package / "broken.py").write_text("def (")
    (package / "raises.py").write_text("1 / 0")
    (package / "needs.py").write_text("import no_such_library")
    protocol = list if name == "sys:path" else Filter
    with pytest.raises(ConfigError) as refused:
        load_plugin(name.replace("PACKAGE", package.name), "filters.0", protocol)
    assert message.replace("PACKAGE", package.name).replace("FOLDER", str(package)) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_is_not_callable_is_refused(package: Path) -> None:
    with pytest.raises(ConfigError, match=r"filters:number is not callable"):
        load_plugin(f"{package.name}.filters:number", "f")


def test_built_in_choices_are_not_plugin_names() -> None:
    assert [is_plugin_name(name) for name in ("wikimedia", "a:B", "a.b:C", "s3://a", "a.b", "C:\\x")] == [
        False, True, True, False, False, False,
    ]  # fmt: skip


def test_an_error_names_the_last_line_of_the_plugin_itself(package: Path) -> None:
    """A library that the plug-in called may have raised it."""
    (package / "calls.py").write_text("import json\ndef run():\n    return json.loads('{')\n")
    name = f"{package.name}.calls:run"
    run = load_plugin(name, "f").object
    with pytest.raises(PluginError) as raised, plugin_errors(name, "file x"):
        run()
    assert str(raised.value).startswith(f"{name}: file x: JSONDecodeError: ")
    assert str(raised.value).endswith(f"({package / 'calls.py'}:3)")
