"""Parses the head of a dump, its root element and ``<siteinfo>``, once during planning."""

import html
import re
from dataclasses import dataclass
from urllib.parse import quote

from pipeline.sources.chunks import looks_like_html
from schemas.errors import InputError

HEAD_BYTES = 1 << 20

_PROJECTS = (
    "wiktionary",
    "wikibooks",
    "wikinews",
    "wikiquote",
    "wikisource",
    "wikiversity",
    "wikivoyage",
    "wiki",
)
_DECLARATION = re.compile(r"\s*<\?xml\b([^>]*)\?>")
_NAMESPACE = re.compile(r'<namespace\b[^>]*?\bkey="(-?\d+)"[^>]*?(?:/>|>([^<]*)</namespace>)')
_ALIAS = re.compile(r'<(?:namespacealias|alias)\b[^>]*?\b(?:key|id)="(-?\d+)"[^>]*>([^<]*)</')
_DUMP_NAME = re.compile(
    r"(?:^|/)([a-z][a-z_]*?)(" + "|".join(_PROJECTS) + r")-[^/]*pages-(?:articles|meta)[^/]*$"
)
_FILE_NAME = re.compile(r"(?:^|/)([a-z][a-z_-]*?)(" + "|".join(_PROJECTS) + r")(?=[-.])")


@dataclass(frozen=True)
class WikiHeader:
    """Facts about the wiki from the head of its dump."""

    lang: str
    dbname: str
    namespaces: tuple[tuple[int, tuple[str, ...]], ...]
    rooted: bool
    """False for bare ``<page>`` elements without a root."""
    page_prefix: str = ""
    """URL of the wiki's pages up to their title, derived from the URL of its main page."""
    notes: tuple[str, ...] = ()
    """A remark for the reader of the plan."""


def head_encoding(head: bytes, uri: str) -> str:
    """Detects the encoding from the byte order mark or XML declaration. Raises InputError if unsupported."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    if head[:1] == b"\0" or head[1:2] == b"\0":
        raise InputError(f"{uri}: byte 0: UTF-16 or UTF-32 text without a byte order mark")
    match = re.match(rb"""(?:\xef\xbb\xbf)?\s*<\?xml[^>]*encoding\s*=\s*["']([^"']+)""", head)
    encoding = match[1].decode("ascii", "replace").lower() if match else "utf-8"
    if encoding in ("utf-8", "utf8", "us-ascii", "ascii"):
        return "utf-8"
    if encoding in ("iso-8859-1", "latin1", "windows-1252"):
        return "windows-1252" if encoding == "windows-1252" else "iso-8859-1"
    raise InputError(f"{uri}: byte 0: encoding {encoding!r} is not supported; use UTF-8")


def parse_header(head: bytes, uri: str, lang: str | None) -> WikiHeader:
    """Parses the header from the first bytes of a dump (UTF-8, at least up to its first page).

    ``lang``, the language from the config, overrides that of the dump. If the file's name and its siteinfo
    belong to different Wikimedia wikis (as in a hand-edited test dump), the parser uses the name, ignores the
    siteinfo's namespaces, and adds a note. Raises InputError if the file is not a dump, has a DOCTYPE (whose
    entities could grow without bound), or does not give its language.
    """
    if not head.strip():
        raise InputError(f"{uri}: empty file (0 bytes of text)")
    text = head.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    page = text.find("<page>")
    text = text if page < 0 else text[: page + len("<page>")]
    if looks_like_html(head):
        raise InputError(f"{uri}: byte 0: an HTML page, not a MediaWiki dump")
    for word in ("<!DOCTYPE", "<!ENTITY"):
        if word in text:
            place = text.index(word)
            raise InputError(f"{uri}: byte {place}: {word} is not allowed: a dump defines no entities")
    body = re.sub(r"<!--.*?-->", "", _DECLARATION.sub("", text, count=1), flags=re.S).lstrip()
    root = re.match(r"<mediawiki\b([^>]*)>", body)
    if root is None and not body.startswith("<page>"):
        raise InputError(f"{uri}: byte 0: not a MediaWiki dump: it starts with {body[:40]!a}")
    dbname, base = _element(body, "dbname"), _element(body, "base")
    notes = [] if root else ["bare <page> elements: truncation between two pages cannot be detected"]
    namespaces = _namespaces(body)
    dump_lang = _language(dbname, base, root[1] if root else "", uri)
    name_match = _DUMP_NAME.search(uri)
    if name_match and dbname and name_match[1] + name_match[2] != dbname and lang is None:
        notes.append(
            f"named {name_match[1]}{name_match[2]}, but its siteinfo is that of {dbname}: using the name"
        )
        base = ""
        dbname, dump_lang, namespaces = name_match[1] + name_match[2], name_match[1].replace("_", "-"), ()
    code = lang or dump_lang
    if code is None:
        raise InputError(f"{uri}: the dump does not give its language; set `lang` of the source")
    return WikiHeader(
        lang=code,
        dbname=dbname or f"{code.replace('-', '_')}wiki",
        namespaces=namespaces,
        rooted=root is not None,
        page_prefix=_page_prefix(base),
        notes=tuple(notes),
    )


def page_url(prefix: str, title: str) -> str | None:
    """The URL of a page. Leaves the same characters unescaped as MediaWiki (wfUrlencode).

    >>> page_url("https://fo.wikipedia.org/wiki/", "Tórshavn (høvuðsstaður)")
    'https://fo.wikipedia.org/wiki/T%C3%B3rshavn_(h%C3%B8vu%C3%B0ssta%C3%B0ur)'
    """
    return prefix + quote(title.replace(" ", "_"), safe=";@$!*(),/~:") if prefix else None


def _page_prefix(base: str) -> str:
    """``https://host/wiki/`` from ``https://host/wiki/Main_Page``, or empty for another form."""
    match = re.match(r"https?://[^/]+/(?:wiki/|(?:[^?]*/)?(?:[^/?]*\?title=)?)", base)
    return match[0] if match else ""


def _element(text: str, name: str) -> str:
    match = re.search(rf"<{name}>([^<]*)</{name}>", text)
    return html.unescape(match[1]).strip() if match else ""


def _language(dbname: str, base: str, root: str, uri: str) -> str | None:
    """The wiki's code from its database, its host, the root element, or the file name."""
    if match := re.fullmatch(rf"(.+?)(?:{'|'.join(_PROJECTS)})", dbname):
        return match[1].replace("_", "-")
    host = re.match(r"https?://([a-z-]+)\.(?:m\.)?wik[a-z]+\.org/", base)
    if host and host[1] != "www":
        return host[1]
    if match := re.search(r'\bxml:lang="([A-Za-z-]+)"', root):
        return match[1].lower()
    if match := _FILE_NAME.search(uri):
        return match[1].replace("_", "-")
    return None


def _namespaces(text: str) -> tuple[tuple[int, tuple[str, ...]], ...]:
    names: dict[int, list[str]] = {}
    for pattern in (_NAMESPACE, _ALIAS):
        for match in pattern.finditer(text):
            name = html.unescape(match[2] or "").strip()
            if name not in names.setdefault(int(match[1]), []):
                names[int(match[1])].append(name)
    return tuple((number, tuple(spellings)) for number, spellings in sorted(names.items()))
