"""A work unit becomes rows of documents: read, clean, normalize, split into sentences, count.

Nothing is held but the page in hand and one batch of rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from pipeline.config import BuildConfig
from pipeline.dedup.exact import content_hash
from pipeline.funnel import Funnel
from pipeline.normalize import count_lone_surrogates, normalize_paragraphs, to_nfc
from pipeline.page_policy import document_skip_reason, is_disambiguation, list_share
from pipeline.sentences import split_paragraphs
from pipeline.site import SiteInfo
from pipeline.skip_reasons import DISAMBIGUATION, LIST_LIKE, TIMEOUT, TOO_LARGE
from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.reader import read_unit
from pipeline.time_limit import TimeLimit, TimeLimitError
from pipeline.units import Unit
from pipeline.wikitext.plain_text import WikitextOptions, plain_text
from schemas.documents import DOCUMENTS

BATCH_ROWS = 1024
BATCH_BYTES = 4 << 20


@dataclass(frozen=True)
class Cleaned:
    """A document after cleaning: paragraphs as lists of sentences, and the sentences dropped for a hole."""

    page: RawDocument
    paragraphs: list[list[str]]
    dropped_sentences: int


def extract_unit(unit: Unit, config: BuildConfig, funnel: Funnel) -> Iterator[pa.RecordBatch]:
    """Batches of DOCUMENTS rows, in the order of the file; every page read is counted in ``funnel``.

    Raises InputError that names the file on damaged input, CorpusError when the counts do not balance.
    """
    rows = _Rows()
    with TimeLimit(config.extraction.page_seconds) as limit:
        for one in unit.ranges:
            cleaner = Cleaner(SiteInfo(one.lang, one.dbname, dict(one.site_namespaces)), config)
            for page in read_unit(one, config.extraction.max_page_chars):
                cleaned = _clean(page, cleaner, limit, funnel)
                if cleaned is not None:
                    rows.add(unit.source, cleaned.page, cleaned.paragraphs)
                if rows.full():
                    yield rows.take()
    if len(rows):
        yield rows.take()
    funnel.check(unit.uri)


def _clean(
    page: RawDocument | Skip, cleaner: "Cleaner", limit: TimeLimit, funnel: Funnel
) -> "Cleaned | None":
    """The cleaned page, counted; None when it is left out, also counted."""
    if isinstance(page, Skip):
        funnel.skip(page.lang, page.reason)
        return None
    extra = funnel.of(page.lang).extra
    try:
        extra["raw_bytes"] += len(page.body.encode())
    except UnicodeEncodeError:
        extra["raw_bytes"] += len(page.body.encode("utf-8", "surrogatepass"))
        extra["lone_surrogates"] += count_lone_surrogates(page.body)
    try:
        cleaned = limit.call(cleaner.clean, page)
    except TimeLimitError:
        cleaned = TIMEOUT
    if isinstance(cleaned, str):
        funnel.skip(page.lang, cleaned)
        return None
    funnel.keep(page.lang)
    extra["sentences"] += sum(map(len, cleaned.paragraphs))
    extra["sentences_dropped"] += cleaned.dropped_sentences
    return cleaned


class Cleaner:
    """Cleans the documents of one unit by the settings of a build; holds nothing between them."""

    def __init__(self, site: SiteInfo, config: BuildConfig) -> None:
        self._site = site
        self._settings = config.extraction
        self._options = wikitext_options(config)

    def clean(self, page: RawDocument) -> Cleaned | str:
        """The cleaned document, or the reason to leave it out."""
        dropped = 0
        if len(page.body) > self._settings.max_page_chars:
            return TOO_LARGE
        if page.kind == "wikitext":
            if is_disambiguation(page.title, page.body):
                return DISAMBIGUATION
            if list_share(page.body) > self._settings.max_list_share:
                return LIST_LIKE
            text = plain_text(page.body, self._site, self._options)
            dropped = text.dropped_sentences
            if text.plain:
                paragraphs = list(map(to_nfc, text.paragraphs))
            else:
                paragraphs = normalize_paragraphs(text.paragraphs, page.lang)
        else:
            paragraphs = normalize_paragraphs(page.body.split("\n"), page.lang)
        if reason := document_skip_reason(paragraphs, self._settings):
            return reason
        return Cleaned(page, split_paragraphs(paragraphs, page.lang), dropped)


def wikitext_options(config: BuildConfig) -> WikitextOptions:
    """The options of the markup cleaner that the config asks for."""
    settings = config.extraction
    return WikitextOptions(
        headings=settings.headings,
        lists=settings.lists,
        math=settings.math,
        drop_holed_sentences=settings.drop_holed_sentences,
        template_rules=settings.template_rules,
    )


class _Rows:
    """Columns of the rows of one batch."""

    def __init__(self) -> None:
        self._columns: dict[str, list[object]] = {name: [] for name in DOCUMENTS.names}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._columns["key"])

    def full(self) -> bool:
        return len(self) >= BATCH_ROWS or self._bytes >= BATCH_BYTES

    def add(self, source: str, page: RawDocument, paragraphs: list[list[str]]) -> None:
        sentences = [sentence for paragraph in paragraphs for sentence in paragraph]
        text = " ".join(sentences).encode()
        text_bytes = len(text) - max(0, len(sentences) - 1)
        values = {
            "key": f"{source}/{page.lang}/{page.page_id}/{page.revision}",
            "source": source,
            "lang": page.lang,
            "page_id": page.page_id,
            "revision": page.revision,
            "title": page.title,
            "sentences": sentences,
            "paragraph_sentences": [len(paragraph) for paragraph in paragraphs],
            "text_bytes": text_bytes,
            "content_hash": content_hash(text),
        }
        for name, value in values.items():
            self._columns[name].append(value)
        self._bytes += text_bytes

    def take(self) -> pa.RecordBatch:
        batch = pa.RecordBatch.from_pydict(self._columns, schema=DOCUMENTS)
        self._columns = {name: [] for name in DOCUMENTS.names}
        self._bytes = 0
        return batch
