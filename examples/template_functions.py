"""Custom template rules in Python: a mapping of template names to functions.

A build config names it, from the folder that contains this file's folder:

    extraction:
      template_functions: examples.template_functions:RULES
"""

from pipeline.wikitext.templates.rule import Arguments


def temperature(arguments: Arguments) -> str | None:
    """``{{temperature|21|F}}`` shows "21 °F". Without a value, the text is unknown."""
    value = arguments.get("1")
    return f"{value} °{arguments.get('2') or 'C'}" if value else None


def nothing(_: Arguments) -> str:
    """A template that shows no text."""
    return ""


RULES = {"temperature": temperature, "weather box*": nothing}
