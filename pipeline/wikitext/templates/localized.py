"""Computes parser functions whose text depends on the wiki's language: numbers, dates and plural forms.

Sources: mediawiki.org Help:Magic words (formatnum, plural), Help:Extension:ParserFunctions (#time), CLDR's
plural rules. No function uses the current time. A date that is not fully given is a hole.
"""

import re
from collections.abc import Callable
from datetime import date

from pipeline.text.languages import (
    LAKH_GROUP_LANGUAGES,
    LONG_GROUP_LANGUAGES,
    MONTHS,
    NUMBER_DIGITS,
    number_marks,
)
from pipeline.wikitext.templates.rule import Arguments

_NUMBER = re.compile(r"([-−+]?)([0-9]{1,30})(?:\.([0-9]{1,30}))?")
_WHOLE = re.compile(r"-?[0-9]{1,15}")
_THREES = re.compile(r"(?<=[0-9])(?=(?:[0-9]{3})+$)")
_LAKHS = re.compile(r"(?<=[0-9])(?=(?:[0-9]{2})*[0-9]{3}$)")
_RAW = re.compile(r"[-−+]?[0-9][0-9., \u00a0\u202f’']*")

_ISO_DATE = re.compile(r"([0-9]{4})[-/]([0-9]{1,2})(?:[-/]([0-9]{1,2}))?")
_DAY_FIRST = re.compile(r"(?:([0-9]{1,2})(?:st|nd|rd|th)?\.?\s+)?([A-Za-z]{3,9})\.?,?\s+([0-9]{4})")
_MONTH_FIRST = re.compile(r"([A-Za-z]{3,9})\.?\s+([0-9]{1,2})(?:st|nd|rd|th)?,?\s+([0-9]{4})")
_YEAR = re.compile(r"[0-9]{4}")
_FORMAT = re.compile(r'\\.|"[^"]*"|x[a-zA-Z]|[\s\S]')
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_ENGLISH = ("en", "simple")


def format_number(arguments: Arguments, lang: str) -> str:
    """``{{formatnum:1234567.5}}`` as the wiki's language groups it. With ``R``, the plain number.

    Other text stays unchanged.
    """
    text, how = arguments.get("1"), arguments.get("2").upper()
    group, decimal = number_marks(lang)
    if how == "R":
        return _plain_number(text, lang, group, decimal) if _RAW.fullmatch(_ascii(text, lang)) else text
    found = _NUMBER.fullmatch(text)
    if found is None:
        return text
    sign, whole, part = found.groups()
    if how != "NOSEP" and len(whole) > (4 if lang in LONG_GROUP_LANGUAGES else 3):
        whole = (_LAKHS if lang in LAKH_GROUP_LANGUAGES else _THREES).sub(group, whole)
    return _localized(f"{sign.replace('-', '−')}{whole}" + (f"{decimal}{part}" if part else ""), lang)


def _plain_number(text: str, lang: str, group: str, decimal: str) -> str:
    bare = re.sub(r"\s", "", _ascii(text, lang).replace("−", "-"))
    if not group.isspace():
        bare = bare.replace(group, "")
    return bare.replace(decimal, ".")


def _localized(text: str, lang: str) -> str:
    digits = NUMBER_DIGITS.get(lang)
    return text.translate(str.maketrans("0123456789", digits)) if digits else text


def _ascii(text: str, lang: str) -> str:
    digits = NUMBER_DIGITS.get(lang)
    return text.translate(str.maketrans(digits, "0123456789")) if digits else text


# --- plural forms ---------------------------------------------------------------------------------------


def plural(arguments: Arguments, lang: str) -> str | None:
    """``{{plural:3|page|pages}}``: the form for a number, or None if the language's rules are unknown."""
    number, *forms = arguments.positional()
    if not _WHOLE.fullmatch(number):
        return None
    count = abs(int(number))
    exact = [form.partition("=") for form in forms]
    for before, equals, text in exact:
        if equals and before.strip() == str(count):
            return text.strip()
    forms = [before for before, equals, _ in exact if not equals]
    if not forms:
        return ""
    if len(forms) == 1:
        return forms[0]
    place = _plural_place(count, lang)
    if len(forms) > 2 and lang not in _SLAVIC:
        return None
    return forms[min(place, len(forms) - 1)]


_EAST_SLAVIC = ("ru", "uk", "be", "be-tarask", "be-x-old", "rue", "sr", "hr", "bs", "sh")
_WEST_SLAVIC = ("cs", "sk")
_SLAVIC = (*_EAST_SLAVIC, *_WEST_SLAVIC, "pl")
_ZERO_IS_ONE = ("fr", "pt", "hy", "am", "hi", "bn", "fa", "gu", "kn", "zu", "ln", "mg", "oc", "wa")
_ONE_FORM = ("ja", "zh", "ko", "th", "vi", "id", "ms", "my", "km", "lo", "bo", "jv", "yue", "zh-yue", "wuu")


def _plural_place(count: int, lang: str) -> int:
    if lang in _EAST_SLAVIC or lang == "pl":
        if (count == 1) if lang == "pl" else (count % 10 == 1 and count % 100 != 11):
            return 0
        return 1 if count % 10 in (2, 3, 4) and count % 100 not in (12, 13, 14) else 2
    if lang in _WEST_SLAVIC:
        return 0 if count == 1 else 1 if count in (2, 3, 4) else 2
    if lang in _ONE_FORM:
        return 0
    return 0 if count == 1 or (count == 0 and lang in _ZERO_IS_ONE) else 1


# --- dates ----------------------------------------------------------------------------------------------


def format_time(arguments: Arguments, lang: str) -> str | None:
    """``{{#time:j F Y|1990-05-02}}`` -> "2 May 1990". None for a date that depends on the current time."""
    when = _parse_date(arguments.get("2"))
    if when is None:
        return None
    lang = arguments.get("3") or lang
    pieces: list[str] = []
    for token in _FORMAT.findall(arguments.get("1")):
        if token[0] in '\\"' and len(token) > 1:
            pieces.append(token[1:] if token[0] == "\\" else token[1:-1])
            continue
        shown = _date_part(token, when, lang) if token[0].isascii() and token[0].isalpha() else token
        if shown is None:
            return None
        pieces.append(shown)
    return "".join(pieces)


_When = tuple[int, int | None, int | None]
"""Year, month and day. None for each part that depends on the current time."""


def _parse_date(text: str) -> _When | None:
    if _YEAR.fullmatch(text):
        return int(text), None, None
    if match := _ISO_DATE.fullmatch(text):
        year, month, day = int(match[1]), int(match[2]), int(match[3] or 1)
    elif match := _DAY_FIRST.fullmatch(text):
        year, month, day = int(match[3]), _month_number(match[2]), int(match[1] or 1)
    elif match := _MONTH_FIRST.fullmatch(text):
        year, month, day = int(match[3]), _month_number(match[1]), int(match[2])
    else:
        return None
    try:
        date(year, month, day)
    except ValueError:
        return None
    return year, month, day


def _month_number(name: str) -> int:
    """The number (1 to 12) of an English month name or its first letters, or 0 for any other word."""
    for number, month in enumerate(MONTHS["en"], 1):
        if month.lower().startswith(name.lower()):
            return number
    return 0


def _date_part(token: str, when: _When, lang: str) -> str | None:
    year, month, day = when
    if token in "Yy":
        return _localized(f"{year:04d}" if token == "Y" else f"{year % 100:02d}", lang)
    if month is None or day is None:
        return None
    if token in "FMlD":
        return _name(token, date(year, month, day), lang)
    render = _NUMBER_PARTS.get(token)
    return None if render is None else _localized(render(date(year, month, day)), lang)


def _name(token: str, when: date, lang: str) -> str | None:
    """The name of the month or the day of the week. Short forms and days are in English only."""
    names = MONTHS["en"] if lang in _ENGLISH else MONTHS.get(lang) if token == "F" else None
    if names is None:
        return None
    name = names[when.month - 1] if token in "FM" else _WEEKDAYS[when.weekday()]
    return name if token in "Fl" else name[:3]


_NUMBER_PARTS: dict[str, Callable[[date], str]] = {
    "d": lambda when: f"{when.day:02d}",
    "j": lambda when: str(when.day),
    "m": lambda when: f"{when.month:02d}",
    "n": lambda when: str(when.month),
    "N": lambda when: str(when.isoweekday()),
    "w": lambda when: str(when.isoweekday() % 7),
    "z": lambda when: str(when.timetuple().tm_yday - 1),
}
