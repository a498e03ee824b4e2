"""``bertmill fetch``: downloads dumps of Wikimedia's wikis and checks them."""

import argparse
import os
import re
import sys

from bertmill.cli.argument_types import Commands, natural
from bertmill.fetching.dumps import DUMPS_URL
from bertmill.fetching.fetch import Fetcher, FetchPlan
from bertmill.fetching.wikis import STATISTICS_URL, database_name, wikipedias
from cluster import storage
from cluster.storage.http import CONTACT_VARIABLE
from schemas.errors import ConfigError

_CONTACT = re.compile(r"[^\s@()]+@[^\s@()]+\.[^\s@()]+|https?://[^\s()]+")
_DATE = re.compile(r"(\d{4})-?(\d{2})-?(\d{2})")


def add_parser(commands: Commands) -> None:
    """Adds ``fetch`` to the console command."""
    parser = commands.add_parser(
        "fetch",
        help="download dumps of Wikimedia's wikis and check them",
        description="Copies the dumps of wikis to TARGET/<wiki>/<date>/: the MediaWiki Content File Exports, "
        "or pages-articles-multistream of a wiki that has none. Files are checked by the published hashes. "
        "_SUCCESS is written last. The same command resumes, and skips what is complete.",
    )
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--wikis", metavar="LIST", help="language codes or database names: fo,is,simplewiki")
    chosen.add_argument("--all", action="store_true", help="all Wikipedias; see --min-articles")
    parser.add_argument(
        "--min-articles", type=natural, metavar="N", help="with --all: Wikipedias with at least N articles"
    )
    parser.add_argument(
        "--date", default="latest", metavar="DATE", help="YYYY-MM-DD, or latest, the newest complete dump"
    )
    parser.add_argument("--to", required=True, metavar="TARGET", help="folder, or URI of a store (s3://…)")
    parser.add_argument(
        "--contact",
        metavar="WHO",
        help="your e-mail address or web page, which Wikimedia requires programs to send with each request "
        f"(default: the variable {CONTACT_VARIABLE})",
    )
    parser.add_argument(
        "--base-url", default=DUMPS_URL, metavar="URL", help=f"a mirror (default: {DUMPS_URL})"
    )
    parser.add_argument(
        "--statistics-url",
        default=STATISTICS_URL,
        metavar="URL",
        help="with --all: CSV table of the Wikipedias with the columns prefix and good "
        "(default: the one of wikistats.wmcloud.org)",
    )
    parser.add_argument(
        "--scratch", metavar="DIR", help="folder for partial files of a remote TARGET (default: below TMPDIR)"
    )
    parser.set_defaults(execute=run)


def run(arguments: argparse.Namespace) -> int:
    """Returns 0 when every dump is complete, and raises an error otherwise."""
    # Every request of this process reads the variable, as in a build.
    os.environ[CONTACT_VARIABLE] = _contact(arguments.contact)
    if arguments.min_articles is not None and not arguments.all:
        raise ConfigError("--min-articles is for --all")
    for option in ("base_url", "statistics_url"):
        if storage.scheme(getattr(arguments, option)) not in ("http", "https"):
            raise ConfigError(f"--{option.replace('_', '-')} must start with https:// or http://")
    if storage.scheme(arguments.to) in ("http", "https"):
        raise ConfigError(f"--to {arguments.to}: must be a folder or a store that can be written")
    plan = FetchPlan(
        wikis=_wikis(arguments),
        date=_date(arguments.date),
        base_url=arguments.base_url,
        target=arguments.to,
        scratch=arguments.scratch,
        all_or_nothing=not arguments.all,
    )
    try:
        Fetcher(plan, _print_line).run()
    except KeyboardInterrupt:
        _print_line("interrupted; the same command resumes")
        return 130
    return 0


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _wikis(arguments: argparse.Namespace) -> tuple[str, ...]:
    if arguments.all:
        return tuple(wikipedias(arguments.statistics_url, arguments.min_articles or 0))
    names = [database_name(wiki) for wiki in arguments.wikis.split(",") if wiki.strip()]
    if not names:
        raise ConfigError("--wikis must name at least one wiki")
    return tuple(dict.fromkeys(names))


def _contact(option: str | None) -> str:
    contact = (option if option is not None else os.environ.get(CONTACT_VARIABLE, "")).strip()
    if not _CONTACT.fullmatch(contact) or not contact.isascii():
        wrong = f"{contact!r} is not" if contact else "is missing:"
        raise ConfigError(
            f"--contact {wrong} an e-mail address or a web page (https://…); Wikimedia requires one in the "
            "user agent and blocks programs without it"
        )
    return contact


def _date(text: str) -> str | None:
    if text == "latest":
        return None
    match = _DATE.fullmatch(text)
    if match is None:
        raise ConfigError(f"--date {text}: must be latest or YYYY-MM-DD")
    return "-".join(match.groups())
