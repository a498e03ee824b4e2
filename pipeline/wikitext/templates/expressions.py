"""Parses and evaluates the arithmetic of ``{{#expr:}}`` and ``{{#ifexpr:}}``.

Source: mediawiki.org Help:Extension:ParserFunctions (operators and their precedence). Unknown syntax gives
None.
"""

import math
import operator
import re
from collections.abc import Callable

_TOKEN = re.compile(r"\s*(?:([0-9]*\.?[0-9]+(?:e[-+]?[0-9]+)?)|(<>|<=|>=|!=|[-+*/^=<>()−×÷])|([a-z]+))", re.I)
_MAX_LENGTH = 200
_MAX_POWER = 300.0

Number = float


def _divide(left: Number, right: Number) -> Number:
    return left / right


def _power(left: Number, right: Number) -> Number:
    if abs(right) > _MAX_POWER:
        raise OverflowError
    return math.pow(left, right)


def _round(left: Number, right: Number) -> Number:
    return round(left, int(right))


def _compare(test: Callable[[Number, Number], bool]) -> Callable[[Number, Number], Number]:
    return lambda left, right: float(test(left, right))


# Operator -> (precedence, function).
_BINARY: dict[str, tuple[int, Callable[[Number, Number], Number]]] = {
    "or": (1, lambda left, right: float(bool(left) or bool(right))),
    "and": (2, lambda left, right: float(bool(left) and bool(right))),
    "=": (3, _compare(operator.eq)),
    "!=": (3, _compare(operator.ne)),
    "<>": (3, _compare(operator.ne)),
    "<": (3, _compare(operator.lt)),
    ">": (3, _compare(operator.gt)),
    "<=": (3, _compare(operator.le)),
    ">=": (3, _compare(operator.ge)),
    "round": (4, _round),
    "+": (5, operator.add),
    "-": (5, operator.sub),
    "*": (6, operator.mul),
    "/": (6, _divide),
    "div": (6, _divide),
    "mod": (6, math.fmod),
    "^": (8, _power),
}
_UNARY: dict[str, Callable[[Number], Number]] = {
    "-": operator.neg,
    "+": operator.pos,
    "not": lambda value: float(not value),
    "abs": abs,
    "floor": lambda value: float(math.floor(value)),
    "ceil": lambda value: float(math.ceil(value)),
    "trunc": lambda value: float(math.trunc(value)),
}
_UNARY_BINDS = 9
_SAME = {"−": "-", "×": "*", "÷": "/"}


def evaluate(expression: str) -> Number | None:
    """The value of an expression, or None if it is empty, too long, undefined or not arithmetic."""
    tokens = _tokens(expression)
    if not tokens:
        return None
    try:
        value = _parse(tokens, 0)
    except (ArithmeticError, ValueError, IndexError, RecursionError):
        return None
    return value if not tokens and math.isfinite(value) else None


def show(value: Number) -> str:
    """A value as MediaWiki prints it: whole numbers without a point."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:.12g}"


def _tokens(expression: str) -> list[str]:
    """The tokens in reverse order, or [] if the expression contains anything else."""
    text = expression.strip()
    tokens: list[str] = []
    at = 0
    while at < len(text) <= _MAX_LENGTH:
        match = _TOKEN.match(text, at)
        if match is None:
            return []
        token = match.group(match.lastindex or 0).lower()
        tokens.append(_SAME.get(token, token))
        at = match.end()
    return tokens[::-1]


def _parse(tokens: list[str], binds: int) -> Number:
    value = _operand(tokens)
    while tokens and tokens[-1] in _BINARY and _BINARY[tokens[-1]][0] > binds:
        strength, apply = _BINARY[tokens.pop()]
        value = apply(value, _parse(tokens, strength))
    return value


def _operand(tokens: list[str]) -> Number:
    token = tokens.pop()
    if token == "(":
        value = _parse(tokens, 0)
        if tokens.pop() != ")":
            raise ValueError("expected ')'")
        return value
    if token in _UNARY:
        return _UNARY[token](_parse(tokens, _UNARY_BINDS) if token in "+-" else _parse(tokens, 7))
    if token == "pi":
        return math.pi
    return float(token)
