"""The areas of ``bertmill explain``. Each area shows what one transform does to a text.

Each area takes a record (a JSON object) and returns the fields of its answer. It raises KeyError for a
missing field and InputError for a wrong one. `bertmill.cli.corpus.explain` turns both into an answer with
``error``.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.config import Extraction
from pipeline.dedup.exact import page_removals
from pipeline.instances.bucket import BucketDocuments
from pipeline.instances.make_instances import InstanceSettings, make_instances
from pipeline.sources.documents import RawDocument, Skip
from pipeline.sources.mediawiki.dumps import plan_dump, read_dump
from pipeline.text.normalize import normalize_text
from pipeline.text.sentences.split import split_sentences
from pipeline.wikitext.plain_text import NO_TEMPLATES, TemplateTable, WikitextOptions, plain_text
from pipeline.wikitext.site import SiteInfo
from pipeline.wikitext.template_analysis import learn_templates
from pipeline.wikitext.templates.transclusion import included, template_name
from pipeline.wordpiece.tokenization import WordPieceTokenizer
from pipeline.wordpiece.vocabulary import load_vocabulary
from schemas.errors import InputError
from schemas.instance_counts import InstanceCounts
from schemas.masking.targets import MaskingRule, MaskingVocabulary, offsets_of
from schemas.skip_reasons import DUPLICATE
from schemas.vocabulary import CLS, SEP, SPECIAL_TOKENS, UNK

Record = dict[str, Any]
Explainer = Callable[[Record], Record]


def wikitext(record: Record) -> Record:
    """The text that a reader of a page sees, one paragraph per line.

    Fields: ``lang``, ``wikitext``, and, if known, ``namespaces`` (number -> names), the page's ``title``, and
    ``templates`` (name -> the wikitext of its page), which are learned like those of a dump.

    >>> wikitext({"lang": "en", "wikitext": "{{a|1}} is old.", "templates": {"a": "No. {{{1}}}"}})
    {'output': 'No. 1 is old.'}
    """
    site = SiteInfo.from_names(record["lang"], record.get("namespaces") or {})
    title = record.get("title") or ""
    if not isinstance(title, str):
        raise InputError(f"title: expected a text, got {title!r}")
    templates = _template_table(record.get("templates") or {}, site)
    text = plain_text(record["wikitext"], site, WikitextOptions(), templates, title)
    return {"output": "\n".join(text.paragraphs)}


def _template_table(pages: object, site: SiteInfo) -> TemplateTable:
    if not isinstance(pages, dict) or not all(isinstance(page, str) for page in pages.values()):
        raise InputError("templates: expected an object that maps names to wikitext")
    if not pages:
        return NO_TEMPLATES
    included_text = {template_name(name, site): included(page, site) for name, page in pages.items()}
    return learn_templates(included_text, dict.fromkeys(included_text, 1), site).table


def normalize(record: Record) -> Record:
    r"""The text after Unicode cleaning. Fields: ``lang``, ``text``.

    >>> normalize({"lang": "en", "text": "caf\u0065\u0301"})
    {'output': 'café'}
    """
    return {"output": normalize_text(record["text"], record["lang"])}


def sentences(record: Record) -> Record:
    """The sentences of a text. Fields: ``lang``, ``text``.

    >>> sentences({"lang": "en", "text": "One. Two."})
    {'output': ['One.', 'Two.']}
    """
    return {"output": split_sentences(record["text"], record["lang"])}


def tokens(vocabulary_uri: str) -> Explainer:
    """The explainer of a vocabulary's tokenizer: the pieces of a text and their ids.

    Its fields: ``text``, ``cased``. Raises CorpusError for a damaged vocab.txt.
    """
    load_vocabulary(vocabulary_uri, cased=True)

    @cache
    def tokenizer(cased: bool) -> WordPieceTokenizer:
        return WordPieceTokenizer(load_vocabulary(vocabulary_uri, cased=cased))

    def explain(record: Record) -> Record:
        chosen = tokenizer(bool(record["cased"]))
        ids = chosen.encode(record["text"])
        return {"output": [chosen.vocabulary.pieces[token_id] for token_id in ids], "ids": ids}

    return explain


def dump(files: list[str]) -> Record:
    """Pages seen, pages kept (id, title) and pages skipped by reason, over all files together.

    Raises InputError that names the file when one is missing, damaged, truncated or not a dump.
    """
    kept: list[RawDocument] = []
    skipped: Counter[str] = Counter()
    for uri in files:
        for page in _pages(uri):
            if isinstance(page, Skip):
                skipped[page.reason] += 1
            else:
                kept.append(replace(page, body=""))
    pages_seen = len(kept) + skipped.total()
    older = _older(kept)
    if older:
        skipped[DUPLICATE] += len(older)
    pages = [
        {"id": int(page.page_id), "title": page.title}
        for number, page in enumerate(kept)
        if number not in older
    ]
    return {"pages_seen": pages_seen, "kept": pages, "skipped": dict(sorted(skipped.items()))}


def _pages(uri: str) -> Iterator[RawDocument | Skip]:
    settings = Extraction()
    try:
        units = plan_dump(source="dump", uri=uri, name=uri, unit_bytes=settings.unit_bytes)
    except FileNotFoundError as error:
        raise InputError(f"{uri}: no such file") from error
    for unit in units:
        yield from read_dump(unit, settings.max_page_chars)


def _older(pages: list[RawDocument]) -> set[int]:
    """Indices of the ``pages`` that also occur in a higher revision, or twice."""
    table = pa.table(
        {
            "key": [f"dump/{page.lang}/{page.page_id}/{page.revision}" for page in pages],
            "source": ["dump"] * len(pages),
            "lang": [page.lang for page in pages],
            "page_id": [page.page_id for page in pages],
            "revision": pa.array([page.revision for page in pages], pa.int64()),
            "row": pa.array(range(len(pages)), pa.int64()),
        }
    )
    return set(page_removals(table)["row"].to_pylist())


_CHOICES = {
    "objective": ("nsp", "sop", "none"),
    "packing": ("full_sentences", "doc_sentences"),
    "masking": ("token", "whole_word", "span", "ngram"),
}
_MAXIMUM = {"max_seq_length": 1 << 17, "max_predictions": 1 << 17}


def instances(record: Record) -> Record:
    """The rows for ``documents`` (sentences of pieces), and the number of tokens in no row.

    Fields: documents, max_seq_length, max_predictions, objective, masking, seed. Optional: packing,
    short_seq_prob, pass, and langs (one code per document). Raises InputError that names a wrong field.
    """
    documents = _documents(record)
    distinct_pieces = _distinct(
        piece for document in documents for sentence in document for piece in sentence
    )
    pieces = [*SPECIAL_TOKENS, *distinct_pieces]
    if len(pieces) == len(SPECIAL_TOKENS):
        return {"output": {"instances": [], "tokens_dropped": 0}}
    settings = _settings(record, pieces)
    seed, pass_number = _field(record, "seed", int, 0), _field(record, "pass", int, 0)
    bucket = make_instances(_bucket(record, documents, pieces), settings, seed, pass_number)
    total = InstanceCounts()
    for counts in bucket.counts.values():
        total.add(counts)
    rows = [_readable(row, pieces, settings.objective) for row in bucket.table.to_pylist()]
    return {"output": {"instances": rows, "tokens_dropped": total.tokens_unseen}}


def _documents(record: Record) -> list[list[list[str]]]:
    documents: list[list[list[str]]] = _field(record, "documents", list)
    for number, document in enumerate(documents):
        fits = isinstance(document, list) and all(isinstance(sentence, list) for sentence in document)
        if not fits or not all(isinstance(piece, str) for sentence in document for piece in sentence):
            raise InputError(f"documents: number {number} must be a list of sentences, each a list of pieces")
    return documents


def _field(record: Record, name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
    value = record.get(name, default)
    if not isinstance(value, kind):
        raise InputError(f"{name}: missing or of the wrong type: {value!r:.60}")
    if isinstance(value, int) and name in _MAXIMUM and value > _MAXIMUM[name]:
        raise InputError(f"{name}: {value} must be at most {_MAXIMUM[name]}")
    if name in _CHOICES and value not in _CHOICES[name]:
        raise InputError(f"{name}: {value!r} must be one of {', '.join(_CHOICES[name])}")
    return value


def _distinct(pieces: Iterable[str]) -> list[str]:
    return [piece for piece in dict.fromkeys(pieces) if piece not in SPECIAL_TOKENS]


def _settings(record: Record, pieces: list[str]) -> InstanceSettings:
    rule = MaskingRule(
        unit=_field(record, "masking", str, "whole_word"),
        max_predictions=_field(record, "max_predictions", int, 20),
    )
    return InstanceSettings(
        vocabulary=MaskingVocabulary.from_pieces(pieces),
        cls_id=pieces.index(CLS),
        sep_id=pieces.index(SEP),
        unknown_id=pieces.index(UNK),
        max_seq_length=_field(record, "max_seq_length", int, 128),
        objective=_field(record, "objective", str, "nsp"),
        packing=_field(record, "packing", str, "full_sentences"),
        short_seq_prob=float(_field(record, "short_seq_prob", (int, float), 0.1)),
        masking=rule,
    )


def _bucket(record: Record, documents: list[list[list[str]]], pieces: list[str]) -> BucketDocuments:
    ids_of = {piece: index for index, piece in enumerate(pieces)}
    flat = [sentence for document in documents for sentence in document]
    ids = [ids_of[piece] for sentence in flat for piece in sentence]
    languages = record.get("langs") or ["und"] * len(documents)
    if len(languages) != len(documents) or not all(isinstance(lang, str) for lang in languages):
        raise InputError("langs: must have one language code for each document")
    return BucketDocuments(
        token_ids=np.array(ids, np.int32),
        sentence_offsets=offsets_of(np.array([len(sentence) for sentence in flat], np.int64)),
        document_offsets=offsets_of(np.array([len(doc) for doc in documents], np.int64)),
        languages=languages,
        keys=[f"document/{index}" for index in range(len(documents))],
        copies=np.zeros(len(documents), np.int64),
    )


def _readable(row: Record, pieces: list[str], objective: str) -> Record:
    first = row["segment_a_length"]
    return {
        "tokens": [pieces[index] for index in row["input_ids"]],
        "segment_ids": [0] * first + [1] * (row["length"] - first),
        "label": None if objective == "none" else row["next_sentence_label"],
        "masked_positions": row["masked_positions"],
        "masked_labels": [pieces[index] for index in row["masked_ids"]],
        "document": row["document_key"],
    }
