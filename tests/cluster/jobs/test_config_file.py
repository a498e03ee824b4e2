"""Tests overrides from the command line, and errors that name the config file and the field."""

from pathlib import Path
from typing import Annotated

import pytest
from pydantic import BaseModel, ConfigDict, Field

from cluster.jobs.config_file import field_help, load_config
from schemas.errors import ConfigError


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")

    size: Annotated[int, Field(ge=1)] = 3
    """How large."""


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    """What it is called."""
    inner: Inner = Inner()
    """The inside."""
    many: list[Inner] = []
    """More of them."""


def write(folder: Path, text: str) -> str:
    path = folder / "c.yaml"
    path.write_text(text)
    return str(path)


def test_overrides_reach_sections_and_list_items(tmp_path: Path) -> None:
    uri = write(tmp_path, "name: a\nmany: [{size: 1}, {size: 2}]\n")
    config = load_config(Outer, uri, ["--inner.size=9", "--many.1.size=7", "--name=b"])
    assert (config.name, config.inner.size, [item.size for item in config.many]) == ("b", 9, [1, 7])


@pytest.mark.parametrize(
    ("text", "override", "message"),
    [
        ("name: a\nnam: b\n", [], "nam: unknown field; did you mean name?"),
        ("name: a\nzzz: b\n", [], "zzz: unknown field"),
        ("inner: {}\n", [], "name: Field required"),
        ("name: a\ninner: {size: 0}\n", [], "inner.size: Input should be greater than or equal to 1, got 0"),
        ("name: a\ninner: {siez: 4}\n", [], "inner.siez: unknown field; did you mean size?"),
        ("name: a\nmany: [{siz: 1}]\n", [], "many.0.siz: unknown field; did you mean size?"),
        ("name: a\nmany: [{size: 1}, {size: x}]\n", [], "many.1.size"),
        ("- a\n", [], "must be a mapping"),
        ("name: [a\n", [], r"c.yaml:2: not YAML"),
        ("name: a\n", ["--inner.size"], "expected --field.subfield=value"),
        ("name: a\n", ["--name.x=1"], "unknown config field 'x'"),
        ("name: a\nmany: [{size: 1}]\n", ["--many.5.size=1"], "unknown config field '5'"),
        ("name: a\n", ["--inner.size={"], "not a YAML value"),
    ],
)
def test_mistakes_name_file_and_field(tmp_path: Path, text: str, override: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(Outer, write(tmp_path, text), override)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("#1 String", "#1 String"),
        ("a # b", "a # b"),
        ("a: b", "a: b"),
        ("- a", "- a"),
        ("@home", "@home"),
        ("2026", "2026"),
        ("2026-11-28", "2026-11-28"),
        ("true", "true"),
        ("'quoted'", "quoted"),
        ("x=y", "x=y"),
    ],
)
def test_a_text_on_the_command_line_needs_no_quotes(given: str, value: str, tmp_path: Path) -> None:
    assert load_config(Outer, write(tmp_path, "name: a\n"), [f"--name={given}"]).name == value


class Choice(BaseModel):
    column: int | str | list[str] = 0
    other: int | None = None


@pytest.mark.parametrize(
    ("given", "value"),
    [("3", 3), ("#1 String", "#1 String"), ("[a, b]", ["a", "b"]), ("1.5", "1.5")],
)
def test_a_field_of_several_types_takes_each(given: str, value: object, tmp_path: Path) -> None:
    assert load_config(Choice, write(tmp_path, "{}"), [f"--column={given}"]).column == value


def test_a_value_of_none_of_the_types_is_named(tmp_path: Path) -> None:
    message = r"c\.yaml: column: must be a valid integer or a valid string or a valid list, got \{'a': 1\}"
    with pytest.raises(ConfigError, match=message):
        load_config(Choice, write(tmp_path, "column: {a: 1}\n"))
    with pytest.raises(ConfigError, match=r"other: Input should be a valid integer.*got 'x'"):
        load_config(Choice, write(tmp_path, "{}"), ["--other=x"])


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"/no/c\.yaml: no such config file"):
        load_config(Outer, "/no/c.yaml")


def test_help_lists_fields_with_default_and_meaning() -> None:
    text = field_help(Outer)
    assert "name" in text.splitlines()[0]
    assert "(required)" in text.splitlines()[0]
    assert "inner.size" in text
    assert "many.N.size" in text
    assert "[3]" in text
    assert "How large." in text
