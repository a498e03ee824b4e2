"""Computes the text of templates (units, numbers, Roman numerals) and of MediaWiki's parser functions.

Sources: en.wikipedia.org Template:Convert (ranges, composite units), mediawiki.org
Help:Extension:ParserFunctions and Help:Magic words.
Arithmetic has a separate parser. Today's date and the page's metadata become holes.
"""

import re
from collections.abc import Callable

from pipeline.wikitext.markup import ASIDE, FORMULA_CLOSE, FORMULA_OPEN, SUPERSCRIPT
from pipeline.wikitext.markup import HOLE as HOLE_MARK
from pipeline.wikitext.templates.expressions import evaluate, show
from pipeline.wikitext.templates.localized import format_number, format_time, plural
from pipeline.wikitext.templates.rule import Arguments, Rule

_PLAIN_NUMBER = re.compile(r"[-+]?[0-9]{1,15}(?:\.[0-9]{1,15})?")
_WHOLE_NUMBER = re.compile("-?[0-9]{1,3}")
_RANGE_WORDS = {
    "-": "–", "–": "–", "to": " to ", "to(-)": " to ", "and": " and ", "and(-)": " and ", "or": " or ",
    "x": " × ", "×": " × ", "*": " × ", "xx": " × ", "by": " by ", "by(x)": " by ", "+/-": " ± ", "±": " ± ",
    "to about": " to about ", "+": " + ", "/": "/", ",": ", ", "et": " et ", "à": " à ", "y": " y ",
    "bis": " bis ",
}  # fmt: skip
_UNIT_NAMES = {
    "c": "°C", "f": "°F", "sqmi": "sq mi", "sqft": "sq ft", "sqin": "sq in", "sqkm": "km2", "sqm": "m2",
    "cuft": "cu ft", "cuyd": "cu yd", "cumi": "cu mi", "hp": "hp", "lbf": "lbf", "nmi": "nmi",
    "acre": "acres", "mph": "mph", "kn": "kn", "ftin": "ft in",
    "usgal": "US gal", "impgal": "imp gal",
    "lt": "long tons", "st": "st", "oz": "oz", "pd/sqmi": "/sq mi", "pd/km2": "/km2", "km/h": "km/h",
    "kph": "km/h",
}  # fmt: skip
_NUMBER = re.compile(r"[-−+]?[0-9][0-9.,/+ ]*(?:e[-+]?[0-9]+)?")


def convert(arguments: Arguments) -> str | None:
    """``{{convert|48|m|ft}}`` -> "48 m", the original value. Includes ranges and composite units."""
    values = [text for text in arguments.positional() if text]
    if not values:
        return None
    converted, at = values[0], 1
    while at + 1 < len(values) and values[at].lower() in _RANGE_WORDS:
        converted += _RANGE_WORDS[values[at].lower()] + values[at + 1]
        at += 2
    if at < len(values):
        converted = f"{converted} {_UNIT_NAMES.get(values[at].lower(), values[at])}"
        while (
            at + 2 < len(values)
            and _NUMBER.fullmatch(values[at + 1])
            and not _NUMBER.fullmatch(values[at + 2])
        ):
            converted += f" {values[at + 1]} {_UNIT_NAMES.get(values[at + 2].lower(), values[at + 2])}"
            at += 2
    return converted


def fraction(arguments: Arguments) -> str | None:
    """``{{frac|1|2}}`` -> "1/2", ``{{frac|3|1|2}}`` -> "3 1/2"."""
    values = [text for text in arguments.positional() if text]
    if len(values) == 1:
        return f"1/{values[0]}"
    return f"{' '.join(values[:-1][:-1])} {values[-2]}/{values[-1]}".strip() if values else None


def height(arguments: Arguments) -> str | None:
    """``{{height|m=1.83}}`` and ``{{height|ft=6|in=1}}``."""
    parts = [f"{value} {unit}" for unit in ("m", "cm", "ft", "in") if (value := arguments.get(unit))]
    return " ".join(parts) or convert(arguments)


_ROMAN = ((1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"),
          (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"))  # fmt: skip


def roman(arguments: Arguments) -> str | None:
    """``{{rom|14}}`` -> "XIV". A Roman numeral stays unchanged."""
    text = arguments.get("1")
    if not text.isascii() or not text.isdigit() or not 0 < int(text[:5]) < 4000 or len(text) > 4:
        return text or None
    rest, numeral = int(text), ""
    for value, sign in _ROMAN:
        numeral += sign * (rest // value)
        rest %= value
    return numeral


def unicode_character(arguments: Arguments) -> str | None:
    """``{{unichar|2014}}`` -> "U+2014 —"."""
    code = arguments.get("1")
    try:
        number = int(code, 16)
    except ValueError:
        return None
    return f"U+{code} {chr(number)}" if 32 <= number < 0xD800 or 0xE000 <= number < 0x110000 else f"U+{code}"


def siglo(arguments: Arguments) -> str | None:
    """Spanish ``{{siglo|XIX||s}}`` -> "siglo XIX". Without the "s", only the numeral."""
    numeral = arguments.get("1")
    return f"siglo {numeral}" if numeral and arguments.get("3").lower() == "s" else numeral or None


def harvtxt(arguments: Arguments) -> str | None:
    """``{{harvtxt|Boolos|Jeffrey|1974}}`` -> "Boolos & Jeffrey (1974)"."""
    values = [text for text in arguments.positional() if text]
    if len(values) < 2:
        return None
    *authors, year = values
    names = authors[0] if len(authors) == 1 else f"{', '.join(authors[:-1])} & {authors[-1]}"
    return f"{names} et al. ({year})" if len(authors) > 3 else f"{names} ({year})"


_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
           "November", "December")  # fmt: skip
_MONTHS_ES = ("enero", "febrero", "marzo", "abril", "mayo", "junio", "julio", "agosto", "septiembre",
              "octubre", "noviembre", "diciembre")  # fmt: skip
_MONTHS_FR = ("janvier", "février", "mars", "avril", "mai", "juin", "juillet", "août", "septembre",
              "octobre", "novembre", "décembre")  # fmt: skip
_MONTHS_PT = ("janeiro", "fevereiro", "março", "abril", "maio", "junho", "julho", "agosto", "setembro",
              "outubro", "novembro", "dezembro")  # fmt: skip


def _month(text: str, names: tuple[str, ...]) -> str:
    return names[int(text) - 1] if text.isascii() and text.isdigit() and 1 <= int(text[:3]) <= 12 else text


def english_date(arguments: Arguments) -> str | None:
    """``{{birth date|1950|1|2}}`` -> "January 2, 1950", or "2 January 1950" with ``df``."""
    year, month, day = (arguments.get(place).lstrip("0") for place in "123")
    month = _month(month, _MONTHS)
    if not (month and day):
        return f"{month} {year}".strip() or None
    return f"{day} {month} {year}" if arguments.get("df") else f"{month} {day}, {year}"


def portuguese_date(arguments: Arguments) -> str | None:
    """``{{dtlink|2|1|1950}}`` -> "2 de janeiro de 1950"."""
    return _day_month_year(arguments, _MONTHS_PT, " de ")


def _day_month_year(arguments: Arguments, months: tuple[str, ...], between: str) -> str | None:
    day, month, year = (arguments.get(place).lstrip("0") for place in "123")
    return between.join(filter(None, (day, _month(month, months), year))) or None


def french_date(arguments: Arguments) -> str | None:
    """``{{date|2|1|1950}}`` or ``{{date|2|janvier|1950}}`` -> "2 janvier 1950"."""
    return _day_month_year(arguments, _MONTHS_FR, " ")


def spanish_date(arguments: Arguments) -> str | None:
    """``{{fecha|2|1|1950}}`` -> "2 de enero de 1950"."""
    return _day_month_year(arguments, _MONTHS_ES, " de ")


def as_of(arguments: Arguments) -> str | None:
    """``{{as of|2020|5}}`` -> "As of May 2020", or "as of" with ``lc``."""
    year, month, day = (arguments.get(place) for place in "123")
    if arguments.get("alt"):
        return arguments.get("alt")
    words = "as of" if arguments.get("lc") else "As of"
    date = " ".join(filter(None, (day, _month(month, _MONTHS), year)))
    return f"{words} {date}" if date else None


_MUSIC_SIGNS = {
    "flat": "♭", "b": "♭", "♭": "♭", "sharp": "♯", "#": "♯", "♯": "♯", "natural": "♮", "n": "♮",
    "doubleflat": "𝄫", "bb": "𝄫", "doublesharp": "𝄪", "##": "𝄪", "x": "𝄪",
}  # fmt: skip


def music(arguments: Arguments) -> str | None:
    """``{{music|flat}}`` -> "♭". Signs without a Unicode character are holes."""
    return _MUSIC_SIGNS.get(arguments.get("1").lower())


def coordinates(arguments: Arguments) -> str:
    """``{{coord|48|N|3|W|display=title}}`` shows nothing in the text. Otherwise it is an aside."""
    return "" if arguments.get("display").lower() in ("title", "t") else ASIDE


def superscript(arguments: Arguments) -> str:
    """``10{{sup|9}}`` is a power, like ``10<sup>9</sup>``."""
    return SUPERSCRIPT + (arguments.get("1") or arguments.get("text"))


def unsubst(arguments: Arguments) -> str:
    """``{{#invoke:Unsubst||$B=...}}`` shows its argument $B."""
    return arguments.get("$B")


def separated(arguments: Arguments) -> str:
    """``{{#invoke:Separated entries|main|a|b|separator=, }}`` -> "a, b"."""
    return (arguments.given("separator") or "").join(filter(None, arguments.positional()))


FUNCTIONS: dict[str, Rule] = {
    "coordinates": coordinates,
    "as_of": as_of,
    "english_date": english_date,
    "french_date": french_date,
    "harvtxt": harvtxt,
    "music": music,
    "portuguese_date": portuguese_date,
    "separated": separated,
    "siglo": siglo,
    "superscript": superscript,
    "unsubst": unsubst,
    "spanish_date": spanish_date,
    "convert": convert,
    "fraction": fraction,
    "height": height,
    "roman": roman,
    "unichar": unicode_character,
}
"""The functions for ``function NAME`` in rule files."""


# --- parser functions: the text after the colon is argument 1 -------------------------------------------

ERROR = HOLE_MARK + FORMULA_OPEN + FORMULA_CLOSE
"""The result of ``{{#expr:}}`` for an invalid expression: a hole and an empty formula. Pages never contain
the latter, so ``{{#iferror:}}`` recognizes it."""


def _first(arguments: Arguments) -> str:
    return arguments.get("1")


def _unknown(text: str) -> bool:
    """Whether a condition contains only holes."""
    return bool(text) and not text.strip(f"{HOLE_MARK} ")


def _if(arguments: Arguments) -> str | None:
    condition = arguments.get("1")
    if _unknown(condition):
        return None
    return arguments.get("2") if condition else arguments.get("3")


def _if_equal(arguments: Arguments) -> str | None:
    left, right = arguments.get("1"), arguments.get("2")
    if HOLE_MARK in left or HOLE_MARK in right:
        return None
    return arguments.get("3") if _same(left, right) else arguments.get("4")


def _same(left: str, right: str) -> bool:
    """Whether both are equal as texts or as numbers."""
    if left == right:
        return True
    return _PLAIN_NUMBER.fullmatch(left) is not None and (
        _PLAIN_NUMBER.fullmatch(right) is not None and float(left) == float(right)
    )


def _if_error(arguments: Arguments) -> str | None:
    tested = arguments.get("1")
    if ERROR in tested:
        return arguments.get("2")
    if _unknown(tested):
        return None
    return arguments.get("3") if len(arguments.names()) > 2 else tested


def _expression(arguments: Arguments) -> str | None:
    expression = arguments.get("1")
    if not expression:
        return ""
    value = evaluate(expression)
    if value is not None:
        return show(value)
    return None if HOLE_MARK in expression else ERROR


def _if_expression(arguments: Arguments) -> str | None:
    condition = arguments.get("1")
    value = evaluate(condition)
    if value is None and condition:
        return None
    return arguments.get("2") if value else arguments.get("3")


def _switch(arguments: Arguments) -> str | None:
    names = arguments.names()
    value = arguments.at(0) if names else ""
    if HOLE_MARK in value:
        return None
    default, falls_through, default_follows = -1, False, False
    for place, name in enumerate(names[1:], 1):
        if name is None:
            text = arguments.at(place)
            falls_through = falls_through or _same(text, value)
            if place == len(names) - 1:
                return text
            default_follows = default_follows or text == "#default"
        elif falls_through or _same(name, value):
            return arguments.at(place)
        elif name == "#default" or default_follows:
            default, default_follows = place, False
    return arguments.at(default) if default > 0 else ""


def _tag(arguments: Arguments) -> str:
    """``{{#tag:ref|...}}`` shows nothing. Other tags show their text if they contain words."""
    return arguments.get("2") if arguments.get("1").lower() in ("poem", "nowiki", "span", "q") else ""


def _title_parts(arguments: Arguments) -> str | None:
    """Returns parts of a title between slashes: argument 2 is their number, argument 3 the first one.

    Negative numbers count from the end.
    """
    parts = arguments.get("1").split("/")
    count, first = arguments.get("2") or "0", arguments.get("3") or "1"
    if not (_WHOLE_NUMBER.fullmatch(count) and _WHOLE_NUMBER.fullmatch(first)):
        return None
    start = int(first) - 1 if int(first) > 0 else int(first)
    parts = parts[start:] if start >= 0 or -start < len(parts) else parts
    return "/".join(parts[: int(count)] if int(count) else parts)


def _padded(arguments: Arguments, left: bool) -> str:
    """``{{padleft:7|3|0}}`` -> "007"."""
    text, width, fill = arguments.get("1"), arguments.get("2"), arguments.get("3") or "0"
    missing = int(width) - len(text) if width.isascii() and width.isdigit() and len(width) < 4 else 0
    padding = (fill * max(0, missing))[: max(0, missing)]
    return padding + text if left else text + padding


PARSER_FUNCTIONS: dict[str, Rule] = {
    "#if": _if,
    "#ifeq": _if_equal,
    "#iferror": _if_error,
    "#expr": _expression,
    "#ifexpr": _if_expression,
    "#ifexist": lambda arguments: arguments.get("2"),
    "#switch": _switch,
    "#tag": _tag,
    "lc": lambda arguments: arguments.get("1").lower(),
    "uc": lambda arguments: arguments.get("1").upper(),
    "lcfirst": lambda arguments: arguments.get("1")[:1].lower() + arguments.get("1")[1:],
    "ucfirst": lambda arguments: arguments.get("1")[:1].upper() + arguments.get("1")[1:],
    "gender": lambda arguments: arguments.get("2"),
    "ns": lambda arguments: arguments.get("1").removeprefix("0"),
    "nse": lambda arguments: arguments.get("1").removeprefix("0"),
    "#dateformat": _first,
    "#formatdate": _first,
    "#titleparts": _title_parts,
    "padleft": lambda arguments: _padded(arguments, True),
    "padright": lambda arguments: _padded(arguments, False),
}
"""Parser functions by English name whose text is the same in all languages."""
LOCALIZED_FUNCTIONS: dict[str, Callable[[Arguments, str], str | None]] = {
    "formatnum": format_number,
    "plural": plural,
    "#time": format_time,
}
"""Parser functions whose text depends on the language of the wiki."""
NAMED_FUNCTIONS = frozenset([_switch])
"""Parser functions whose arguments after the first may have names."""
SILENT_PARSER_FUNCTIONS = frozenset(
    "#babel #coordinates #lst #lsth #section #seo anchorencode canonicalurl defaultsort displaytitle "
    "filepath fullurl int localurl urlencode".split()
)
"""Parser functions that show nothing. All others are holes, because they depend on the time, page or code."""
