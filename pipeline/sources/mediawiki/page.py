"""Parses one ``<page>`` element of a MediaWiki export (schemas 0.3 to 0.11)."""

import re
from dataclasses import dataclass

from pipeline.sources.mediawiki.xml_pages import best_revision

_FIELDS = re.compile(rb"<(title|ns|id|redirect)\b([^<>]*?)(?:/>|>([^<]*)</\1\s*>)")
_ID = re.compile(rb"<id>\s*(\d+)\s*</id>")
_TIMESTAMP = re.compile(rb"<timestamp>\s*([^<]*?)\s*</timestamp>")
_MODEL = re.compile(rb"<model>\s*([^<]*?)\s*</model>")
# Exports that do not name a model may name a format. For a wikitext page it is text/x-wiki.
_FORMAT = re.compile(rb"<format>\s*(?!text/x-wiki)([^<]*?)\s*</format>")
_TEXT = re.compile(rb"<text(?=[\s/>])([^>]*?)(/?)>")
_SIZE = re.compile(rb"""\bbytes\s*=\s*["'][1-9]""")
# Stubs of old exports give only the location of the text.
_STORED = re.compile(rb"""(?<![\w:])(?:id|location)\s*=\s*["']""")
_REVISION = b"<revision>"
_MOST_DIGITS, _MOST_ID = 19, 2**63 - 1
_ENTITY = re.compile(r"&(lt|gt|quot|amp|apos|#x[0-9a-fA-F]{1,6}|#[0-9]{1,7});")


class MalformedPageError(ValueError):
    """A page without an id of at most 63 bits, or with bytes that are not valid UTF-8."""


@dataclass(frozen=True)
class WikiPage:
    """The fields that a reader of articles needs, from the revision with the highest id."""

    page_id: str
    title: str
    namespace: int | None
    """None in exports older than 0.5, which lack the field."""
    redirect: bool
    """Whether the page has a redirect tag."""
    revision: int
    model: str
    """Content model, or empty if the export does not name it."""
    deleted: bool
    """Whether the text of the revision is suppressed."""
    raw_text: bytes
    """Text of the revision, still escaped. See ``text``."""
    timestamp: str = ""
    """Time of the revision, or empty if the export does not give it."""
    lacks_text: bool = False
    """Whether the export omits the text, as on every page of a stub dump."""

    @property
    def text(self) -> str:
        """The wikitext. Raises MalformedPageError when it is not UTF-8."""
        return decoded_text(self.raw_text)

    @property
    def beginning(self) -> str:
        """The first 8192 bytes of the text, to inspect it without decoding all of it."""
        return unescape(self.raw_text[:8192].decode("utf-8", "ignore"))


def decoded_text(raw: bytes) -> str:
    """The wikitext of an escaped text. Raises MalformedPageError when it is not UTF-8."""
    return unescape(_decode(raw))


def parse_page(page: bytes) -> WikiPage:
    """Parses ``page`` (from ``<page>`` to ``</page>``). Raises MalformedPageError."""
    first = page.find(_REVISION)
    head = page if first < 0 else page[:first]
    fields = {match[1]: match[3] or b"" for match in _FIELDS.finditer(head)}
    page_id = fields.get(b"id", b"").strip()
    if not page_id.isdigit():
        raise MalformedPageError("a page without an id")
    namespace = fields.get(b"ns")
    revision = b"" if first < 0 else page[first:]
    if revision.find(_REVISION, 1) >= 0:
        revision = best_revision(revision)
    number = _ID.search(revision)
    timestamp = _TIMESTAMP.search(revision)
    model, attributes, raw_text = _content(revision)
    return WikiPage(
        page_id=str(_identifier(page_id)),
        title=unescape(_decode(fields.get(b"title", b""))).strip(),
        namespace=None if namespace is None else _integer(namespace),
        redirect=b"redirect" in fields,
        revision=_identifier(number[1]) if number else 0,
        model=model,
        deleted=b"deleted=" in attributes,
        raw_text=raw_text,
        timestamp=_decode(timestamp[1]) if timestamp else "",
        lacks_text=not raw_text and _is_left_out(attributes),
    )


def _is_left_out(attributes: bytes) -> bool:
    """Whether the attributes of an empty text element show that the export omits the text."""
    if b"deleted=" in attributes:
        return False
    if b"bytes" in attributes:
        return _SIZE.search(attributes) is not None
    return _STORED.search(attributes) is not None


def _content(revision: bytes) -> tuple[str, bytes, bytes]:
    """Content model, attributes of the main text and the text itself."""
    # Additional slots of a revision (export 0.11) are <content> elements after the main text.
    slots = revision.find(b"<content>")
    main = revision if slots < 0 else revision[:slots]
    opening = _TEXT.search(main)
    if opening is None:
        model = _MODEL.search(main)
        return _decode(model[1]) if model else "", b"", b""
    model = _MODEL.search(main, 0, opening.start())
    if opening[2]:
        end, text = opening.end(), b""
    else:
        end = main.find(b"</text>", opening.end())
        end = len(main) if end < 0 else end
        text = main[opening.end() : end]
    model = model or _MODEL.search(main, end) or _FORMAT.search(main)
    return _decode(model[1]) if model else "", opening[1], text


def _identifier(digits: bytes) -> int:
    if len(digits.lstrip(b"0")) > _MOST_DIGITS or int(digits) > _MOST_ID:
        raise MalformedPageError("an id of more than 63 bits")
    return int(digits)


def _integer(text: bytes) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise MalformedPageError(f"<ns> is {text!r}") from error


def _decode(raw: bytes) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedPageError(f"not UTF-8 text: {error}") from error
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def unescape(text: str) -> str:
    """Decodes the five XML entities and numeric references in a single pass."""
    if "&" not in text:
        return text
    # Splitting once takes less than half the time of one replacement per entity.
    parts = _ENTITY.split(text)
    parts[1::2] = map(_CHARACTERS.__getitem__, parts[1::2])
    return "".join(parts)


class _Characters(dict[str, str]):
    """The character of an entity's name or number. Does not cache numbers, because there are too many."""

    def __missing__(self, reference: str) -> str:
        number = int(reference[2:], 16) if reference[1] == "x" else int(reference[1:])
        return "\ufffd" if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF else chr(number)


_CHARACTERS = _Characters(lt="<", gt=">", quot='"', amp="&", apos="'")
