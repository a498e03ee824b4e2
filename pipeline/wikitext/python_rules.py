"""Template rules in Python that a config adds before the YAML rules.

A plug-in is a mapping of template names to functions::

    RULES = {
        "stress": lambda arguments: arguments.get("1") + "\u0301",
        "infobox*": lambda arguments: "",
    }

The config names it as ``extraction.template_functions: "my_rules:RULES"``. As in the YAML rules, names are
lowercase, and a ``*`` at the start or end matches any beginning or end. A function gets the arguments of a
call (pipeline.wikitext.templates.rule.Arguments) and returns its text. '' shows nothing, and None is an
unknown text.
"""

from collections.abc import Mapping
from functools import lru_cache

from pipeline.wikitext.templates.rule import Arguments, Rule
from pipeline.wikitext.templates.rules import TemplateRules
from schemas.errors import ConfigError, PluginError
from schemas.plugins import load_plugin, plugin_errors

_FIELD = "extraction.template_functions"


class OverlaidRules:
    """Python rules over other rules."""

    def __init__(self, over: TemplateRules, under: TemplateRules) -> None:
        self._over, self._under = over, under

    def find(self, name: str) -> Rule | None:
        """The rule of a template by its lowercase name with spaces for '_', or None without a rule."""
        rule = self._over.find(name)
        return self._under.find(name) if rule is None else rule


@lru_cache(maxsize=8)
def load_python_rules(plugin: str) -> TemplateRules:
    """The rules of a plug-in. Raises ConfigError if it is not a mapping of names to functions."""
    rules = load_plugin(plugin, _FIELD, Mapping).object
    for name, rule in rules.items():
        if not isinstance(name, str) or not callable(rule):
            raise ConfigError(f"{_FIELD}: {plugin}: {name!r} must be a template name with a function")
    return TemplateRules({name.strip().lower(): _checked(plugin, name, rule) for name, rule in rules.items()})


def _checked(plugin: str, name: str, rule: Rule) -> Rule:
    def call(arguments: Arguments) -> str | None:
        with plugin_errors(plugin, f"template {name}"):
            text = rule(arguments)
        if text is not None and not isinstance(text, str):
            raise PluginError(f"{plugin}: template {name}: returned {text!r:.80}, not a text or None")
        return text

    return call
