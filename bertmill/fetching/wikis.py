"""Which wikis to fetch: database names from language codes, and all Wikipedias of a size."""

import csv
import re

from cluster import storage
from schemas.errors import ConfigError, InputError

STATISTICS_URL = "https://wikistats.wmcloud.org/api.php?action=dump&table=wikipedias&format=csv"
"""A CSV table of all Wikipedias. Its column ``prefix`` has the code, ``good`` the number of articles."""

_DATABASE = re.compile(
    r"[a-z0-9_]+(?:wiki|wiktionary|wikibooks|wikinews|wikiquote|wikisource|wikiversity|wikivoyage)"
)
_CODE = re.compile(r"[a-z]{2,}(?:[-_][a-z]+)*")
# https://meta.wikimedia.org/wiki/Special_language_codes
_OLD_CODES = {
    "be-tarask": "be_x_old",
    "gsw": "als",
    "lzh": "zh_classical",
    "nan": "zh_min_nan",
    "nb": "no",
    "rup": "roa_rup",
    "sgs": "bat_smg",
    "vro": "fiu_vro",
    "yue": "zh_yue",
}


def database_name(wiki: str) -> str:
    """The database name of a wiki that is given by it or by the language code of a Wikipedia.

    Raises ConfigError for a text that is neither.

    >>> database_name("fo"), database_name("simplewiki"), database_name("be-tarask")
    ('fowiki', 'simplewiki', 'be_x_oldwiki')
    """
    name = wiki.strip().lower()
    if _DATABASE.fullmatch(name):
        return name
    if not _CODE.fullmatch(name):
        raise ConfigError(f"--wikis: {wiki!r} must be a language code (fo) or a database name (fowiki)")
    return f"{_OLD_CODES.get(name, name.replace('-', '_'))}wiki"


def wikipedias(statistics_url: str, min_articles: int) -> list[str]:
    """Database names of the Wikipedias with at least this many articles, the largest first.

    Raises InputError when the table does not have the columns of STATISTICS_URL.
    """
    rows = csv.DictReader(storage.read_bytes(statistics_url).decode("utf-8", "replace").splitlines())
    try:
        articles = {database_name(row["prefix"]): int(row["good"]) for row in rows}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{statistics_url}: not a table of wikis with the columns prefix and good: {error}"
        ) from error
    if not articles:
        raise InputError(f"{statistics_url}: the table of wikis is empty; name them with --wikis")
    chosen = [wiki for wiki, count in articles.items() if count >= min_articles]
    return sorted(chosen, key=lambda wiki: (-articles[wiki], wiki))
