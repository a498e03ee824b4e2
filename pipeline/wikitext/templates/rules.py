"""Loads handwritten rules for templates, modules and parser functions by name.

The rules are data (``data/templates.yaml``, which explains the format) for templates that the wiki's table
lacks. A user's file in the same format takes precedence over both. An unknown call is a hole.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import yaml

from pipeline.text.languages import PARSER_FUNCTION_ALIASES
from pipeline.wikitext.markup import ASIDE, BLANKS, FORMULA_CLOSE, FORMULA_OPEN
from pipeline.wikitext.templates.functions import (
    FUNCTIONS,
    LOCALIZED_FUNCTIONS,
    PARSER_FUNCTIONS,
    SILENT_PARSER_FUNCTIONS,
)
from pipeline.wikitext.templates.rule import HOLE, SILENT, Arguments, Fixed, Rule
from pipeline.wikitext.wiki_words import TEXT_ARGUMENTS
from schemas.errors import ConfigError


@dataclass(frozen=True)
class _Pattern:
    """Text with ``{1|name}`` (first non-empty argument) and ``[...]`` (only if filled)."""

    parts: tuple["str | tuple[str, ...] | _Pattern", ...]

    def __call__(self, arguments: Arguments) -> str | None:
        """The filled pattern. '' for a call without text, and a hole if the text is elsewhere."""
        text, filled = self._fill(arguments)
        if not filled and any(map(arguments.at, range(len(arguments.names())))):
            return None
        return text.strip(BLANKS)

    def _fill(self, arguments: Arguments) -> tuple[str, bool]:
        """The text, and whether any of its arguments had text."""
        pieces, filled = [], False
        for part in self.parts:
            if isinstance(part, str):
                pieces.append(part)
                continue
            if isinstance(part, _Pattern):
                text, has_text = part._fill(arguments)
                text = text if has_text else ""
            else:
                text, has_text = _first_given(arguments, part)
            filled = filled or has_text
            pieces.append(text)
        return ("".join(pieces) if filled else ""), filled


@dataclass(frozen=True)
class _Formula:
    """A pattern whose text is a formula."""

    pattern: _Pattern

    def __call__(self, arguments: Arguments) -> str | None:
        """The filled pattern between the marks of a formula."""
        text = self.pattern(arguments)
        return FORMULA_OPEN + text + FORMULA_CLOSE if text else text


def _first_given(arguments: Arguments, names: tuple[str, ...]) -> tuple[str, bool]:
    """The text of the first name with text, and whether there is one. Even an empty default counts."""
    for name in names:
        if name.startswith("="):
            return name[1:], True
        text = _argument(arguments, name)
        if text:
            return text, True
    return "", False


def _argument(arguments: Arguments, name: str) -> str:
    if name.startswith("*"):
        return name[1:].join(filter(None, arguments.positional()))
    if name == "last":
        return next(filter(None, reversed(arguments.positional())), "")
    if name == "text":
        return next(filter(None, map(arguments.get, TEXT_ARGUMENTS)), "")
    return arguments.get(name)


_PATTERN_TOKEN = re.compile(r"(\\[\[\]]|\{[^{}]*\}|\[|\])")


def parse_pattern(text: str) -> _Pattern:
    """Parses a pattern. Raises ValueError for unbalanced brackets or braces."""
    stack: list[list[Any]] = [[]]
    for token in filter(None, _PATTERN_TOKEN.split(text)):
        if token == "[":
            stack.append([])
        elif token == "]":
            if len(stack) == 1:
                raise ValueError("']' without '['")
            inner = _Pattern(tuple(stack.pop()))
            stack[-1].append(inner)
        elif token[0] == "\\":
            stack[-1].append(token[1])
        elif token[0] == "{" and token[-1] == "}":
            stack[-1].append(tuple(token[1:-1].split("|")))
        elif "{" in token or "}" in token:
            raise ValueError("'{' and '}' do not match")
        else:
            stack[-1].append(token)
    if len(stack) > 1:
        raise ValueError("'[' without ']'")
    return _Pattern(tuple(stack[0]))


# The names under which a template may get the first argument that it shows.
_TEXT_ONLY = {"{1}": "{1|text}", "{2}": "{2|text}"}
_ONE_ARGUMENT = re.compile(r"[^{}]*\{1\}[^{}]*")


def _rule(text: str) -> Rule:
    if text == "silent":
        return SILENT
    if text == "hole":
        return HOLE
    if text == "aside":
        return Fixed(ASIDE)
    if text.startswith("function "):
        return FUNCTIONS[text.removeprefix("function ")]
    if text.startswith("formula "):
        formula = text.removeprefix("formula ")
        return _Formula(parse_pattern(_TEXT_ONLY.get(formula, formula)))
    shown = text.replace("{1}", "{1|text}") if _ONE_ARGUMENT.fullmatch(text) else _TEXT_ONLY.get(text, text)
    pattern = parse_pattern(shown)
    if all(isinstance(part, str) for part in pattern.parts):
        return Fixed("".join(map(str, pattern.parts)))
    return pattern


class TemplateRules:
    """The rules of one wiki."""

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self._rules = rules
        self._starts = _longest_first(name[:-1] for name in rules if name.endswith("*"))
        self._ends = _longest_first(name[1:] for name in rules if name.startswith("*"))

    def find(self, name: str) -> Rule | None:
        """The rule of a template by its lowercase name with spaces for '_', or of a module "#invoke:name"."""
        rule = self._rules.get(name)
        if rule is not None:
            return rule
        for start in self._starts:
            if name.startswith(start):
                return self._rules[start + "*"]
        for end in self._ends:
            if name.endswith(end):
                return self._rules["*" + end]
        return None


_UNKNOWN_FUNCTIONS = frozenset(["grammar"])
"""Parser functions without "#" whose text, an inflected name, is unknown."""


def find_function(name: str, lang: str) -> Rule | None:
    """The rule of a parser function (``#if``, ``lc``) in a wiki, or None for another name."""
    name = PARSER_FUNCTION_ALIASES.get(name, name)
    if name in SILENT_PARSER_FUNCTIONS:
        return SILENT
    localized = LOCALIZED_FUNCTIONS.get(name)
    if localized is not None:
        return lambda arguments: localized(arguments, lang)
    if name in _UNKNOWN_FUNCTIONS:
        return HOLE
    return PARSER_FUNCTIONS.get(name, HOLE if name.startswith("#") else None)


def _longest_first(parts: Iterable[str]) -> list[str]:
    return sorted(filter(None, parts), key=len, reverse=True)


@lru_cache(maxsize=512)
def built_in_rules(lang: str) -> TemplateRules:
    """The built-in rules for the wiki ``lang``."""
    shipped = resources.files("pipeline").joinpath("data/templates.yaml").read_text("utf-8")
    return _rules_of("templates.yaml", shipped, lang)


@lru_cache(maxsize=512)
def user_rules(lang: str, uri: str | None) -> TemplateRules:
    """The rules of the file ``uri`` (path or URI) for the wiki ``lang``. Raises ConfigError."""
    if uri is None:
        return TemplateRules({})
    from cluster.storage import read_bytes

    try:
        text = read_bytes(uri).decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"template_rules: {uri}: no such file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"template_rules: {uri}: not UTF-8: {error}") from None
    return _rules_of(uri, text, lang)


def _rules_of(origin: str, text: str, lang: str) -> TemplateRules:
    rules: dict[str, Rule] = {}
    table = _parse(origin, text)
    families = table.get("families") or {}
    applied = ["all", *(family for family, langs in families.items() if lang in langs.split()), lang]
    for family in dict.fromkeys(applied):
        for pattern, listed in table.get("rules", {}).get(family, {}).items():
            rule = _checked_rule(origin, family, pattern, listed)
            rules.update({name.strip().lower(): rule for name in listed.split(",")})
    return TemplateRules(rules)


@lru_cache(maxsize=8)
def _parse(origin: str, text: str) -> dict[str, Any]:
    try:
        table = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe loaders
    except yaml.YAMLError as error:
        raise ConfigError(f"{origin}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(table, dict) or not set(table) <= {"families", "rules"}:
        raise ConfigError(f"{origin}: expected the keys 'families' and 'rules'")
    for key in ("families", "rules"):
        if not isinstance(table.get(key, {}), dict):
            raise ConfigError(f"{origin}: {key}: expected a mapping")
    for family, rules in table.get("rules", {}).items():
        if not isinstance(rules, dict):
            raise ConfigError(f"{origin}: rules: {family}: expected a mapping of pattern to names")
    return table


def _checked_rule(origin: str, family: str, pattern: object, listed: object) -> Rule:
    where = f"{origin}: rules: {family}: {pattern!r}"
    if not isinstance(pattern, str) or not isinstance(listed, str):
        raise ConfigError(f"{where}: expected a quoted pattern and comma-separated names")
    try:
        return _rule(pattern)
    except KeyError as error:
        raise ConfigError(f"{where}: no function {error}; use {', '.join(sorted(FUNCTIONS))}") from None
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
