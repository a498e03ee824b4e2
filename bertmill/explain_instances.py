"""``bertmill explain instances``: one small bucket of tokenized documents to its training rows."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from pipeline.instances.bucket import BucketDocuments
from pipeline.instances.counts import InstanceCounts
from pipeline.instances.make_instances import InstanceSettings, make_instances
from schemas.errors import InputError
from schemas.masking import MaskingRule, MaskingVocabulary, offsets_of
from schemas.vocabulary import CLS, SEP, SPECIAL_TOKENS, UNK

_CHOICES = {
    "objective": ("nsp", "sop", "none"),
    "packing": ("full_sentences", "doc_sentences"),
    "masking": ("token", "whole_word", "span", "ngram"),
}


_MOST = {"max_seq_length": 1 << 17, "max_predictions": 1 << 17}


def explain(record: dict[str, Any]) -> dict[str, Any]:
    """The rows for ``documents`` (sentences of pieces), and how many tokens are in none of them.

    Fields: documents, max_seq_length, max_predictions, objective, masking, seed; also packing,
    short_seq_prob, pass, and langs (one code a document). Raises InputError that names a wrong field.
    """
    documents = _documents(record)
    sentences = [sentence for document in documents for sentence in document]
    pieces = [*SPECIAL_TOKENS, *_distinct(piece for sentence in sentences for piece in sentence)]
    if len(pieces) == len(SPECIAL_TOKENS):
        return {"output": {"instances": [], "tokens_dropped": 0}}
    settings = _settings(record, pieces)
    seed, pass_number = _field(record, "seed", int, 0), _field(record, "pass", int, 0)
    made = make_instances(_bucket(record, documents, pieces), settings, seed, pass_number)
    total = InstanceCounts()
    for counts in made.counts.values():
        total.add(counts)
    rows = [_readable(row, pieces, settings.objective) for row in made.table.to_pylist()]
    return {"output": {"instances": rows, "tokens_dropped": total.tokens_unseen}}


def _documents(record: dict[str, Any]) -> list[list[list[str]]]:
    documents: list[list[list[str]]] = _field(record, "documents", list)
    for number, document in enumerate(documents):
        fits = isinstance(document, list) and all(isinstance(sentence, list) for sentence in document)
        if not fits or not all(isinstance(piece, str) for sentence in document for piece in sentence):
            raise InputError(f"documents: number {number} is not a list of sentences of pieces")
    return documents


def _field(record: dict[str, Any], name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
    value = record.get(name, default)
    if not isinstance(value, kind):
        raise InputError(f"{name}: missing, or of another type than it should be: {value!r:.60}")
    if isinstance(value, int) and name in _MOST and value > _MOST[name]:
        raise InputError(f"{name}: {value} is above {_MOST[name]}")
    if name in _CHOICES and value not in _CHOICES[name]:
        raise InputError(f"{name}: {value!r} is none of {', '.join(_CHOICES[name])}")
    return value


def _distinct(pieces: Iterable[str]) -> list[str]:
    return [piece for piece in dict.fromkeys(pieces) if piece not in SPECIAL_TOKENS]


def _settings(record: dict[str, Any], pieces: list[str]) -> InstanceSettings:
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


def _bucket(record: dict[str, Any], documents: list[list[list[str]]], pieces: list[str]) -> BucketDocuments:
    number = {piece: index for index, piece in enumerate(pieces)}
    sentences = [sentence for doc in documents for sentence in doc]
    ids = [number[piece] for sentence in sentences for piece in sentence]
    languages = record.get("langs") or ["und"] * len(documents)
    if len(languages) != len(documents) or not all(isinstance(lang, str) for lang in languages):
        raise InputError("langs: one code for each document")
    return BucketDocuments(
        token_ids=np.array(ids, np.int32),
        sentence_offsets=offsets_of(np.array([len(sentence) for sentence in sentences], np.int64)),
        document_offsets=offsets_of(np.array([len(doc) for doc in documents], np.int64)),
        languages=languages,
        keys=[f"document/{index}" for index in range(len(documents))],
        copies=np.zeros(len(documents), np.int64),
    )


def _readable(row: dict[str, Any], pieces: list[str], objective: str) -> dict[str, Any]:
    first = row["segment_a_length"]
    return {
        "tokens": [pieces[index] for index in row["input_ids"]],
        "segment_ids": [0] * first + [1] * (row["length"] - first),
        "label": None if objective == "none" else row["next_sentence_label"],
        "masked_positions": row["masked_positions"],
        "masked_labels": [pieces[index] for index in row["masked_ids"]],
        "document": row["document_key"],
    }
