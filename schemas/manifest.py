"""The corpus manifest as typed classes. Only this module reads and writes manifests.

Readers follow the manifest and never list a folder. Files that it does not name do not belong to the corpus.
A separate table names the shards of each set (`schemas.shard_tables`). The manifest contains no time, host or
path outside the corpus, so equal builds write equal bytes.
"""

import hashlib
import json
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from schemas.attribute_docs import DescribedJsonSchema
from schemas.errors import CorpusError, reason_of
from schemas.instance_counts import Count, InstanceCounts
from schemas.json_text import parse_json
from schemas.vocabulary import SPECIAL_TOKENS

MANIFEST_NAME = "manifest.json"
MANIFEST_FORMAT: Final = "bertmill-corpus"
MANIFEST_VERSION: Final = 3

SequenceTokens = Annotated[int, Field(ge=1, le=1 << 17)]
RowGroupRows = Annotated[int, Field(ge=1, le=1 << 53)]
Share = Annotated[float, Field(ge=0, le=1)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Record(BaseModel):
    """A part of the manifest. It accepts no unknown field and converts no type."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        regex_engine="python-re",
    )


RelativePath = Annotated[str, Field(pattern=r"^(?!/)(?!.*(^|/)\.\.(/|$))[^\\\x00:]+$")]
"""A path below the manifest's folder. It is not absolute and has no ``..``."""


class ShardTableFile(Record):
    """The table of a set's shards, a Parquet file (columns: schemas.columns.shard_table.SHARD_TABLE)."""

    path: RelativePath
    sha256: Sha256
    count: Count
    """Shards of the set."""
    prefix: RelativePath
    """Prefix of the path of a shard. Its number with at least five digits and ``.parquet`` follow."""
    row_group_rows: RowGroupRows
    """Rows of every row group of a shard, except the last, which has the rest."""


class SequenceSet(Record):
    """The sequences of one maximum length, one side of the split, and one pass over the corpus."""

    name: Annotated[str, Field(min_length=1)]
    split: Literal["train", "validation"]
    max_seq_length: Annotated[SequenceTokens, Field(ge=8)]
    max_predictions: SequenceTokens
    pass_number: Count
    rows: Count
    tokens: Count
    """Lengths of all rows together."""
    bytes: Count
    """Total bytes of all shards."""
    languages: dict[str, Count]
    """Rows by language code."""
    shards: ShardTableFile

    @property
    def label(self) -> str:
        """The key of the set in ``counts.by_set``: name/split/pass."""
        return f"{self.name}/{self.split}/{self.pass_number}"


class WordListFile(Record):
    """The word list that defines the words of scripts without spaces for masking."""

    path: RelativePath
    sha256: Sha256


class DocumentFile(Record):
    """One Parquet file of the kept documents (columns: schemas.columns.published_documents)."""

    path: RelativePath
    lang: str
    split: Literal["train", "validation"]
    rows: Count
    bytes: Count
    sha256: Sha256


class MaskingRecord(Record):
    """How the masked LM targets were chosen."""

    unit: Literal["token", "whole_word", "span", "ngram"]
    probability: Annotated[float, Field(gt=0, lt=1)]
    mask_share: Share
    random_share: Share
    predict_unknown: bool = False
    word_list: WordListFile | None = None


class VocabularyFile(Record):
    """The vocabulary that the token ids refer to."""

    path: RelativePath
    size: Annotated[int, Field(ge=6, le=2_000_000)]
    sha256: Sha256
    cased: bool
    special_ids: dict[str, Count]
    """Special token -> id."""

    @field_validator("special_ids")
    @classmethod
    def _has_all(cls, special_ids: dict[str, int]) -> dict[str, int]:
        missing = [token for token in SPECIAL_TOKENS if token not in special_ids]
        if missing:
            raise ValueError(f"{missing[0]} is missing")
        return special_ids


class LanguageCounts(Record):
    """What a build read and wrote in one language.

    pages_seen = pages_skipped + removed + documents; documents = train_documents + validation_documents.
    """

    pages_seen: Count
    pages_skipped: Count
    skipped: dict[str, Count]
    """Reason -> pages that extraction skipped."""
    text_counts: dict[str, Count]
    """Other counts of extraction: raw_bytes, sentences, sentences_dropped ..."""
    removed: Count
    """Extracted documents that deduplication removed."""
    removals: dict[str, Count]
    """Reason -> documents that deduplication removed."""
    documents: Count
    train_documents: Count
    train_bytes: Count
    """UTF-8 bytes of the training documents, before documents are repeated."""
    validation_documents: Count
    validation_bytes: Count
    copies: Annotated[float, Field(ge=0)]
    """Mean number of copies of a training document in a pass. 0 without training documents."""
    sequences: Count
    """Rows of all sets."""
    tokens: Count
    """Tokens of all sets, special tokens included."""
    words: Count
    """Input words of one maximum length, over all passes and both sides of the split, copies included."""
    subwords: Count
    """Subwords of these words."""
    unknown: Count
    """[UNK] among these subwords."""


class PageCounts(Record):
    """pages_seen = kept + the sum of skipped."""

    pages_seen: Count
    kept: Count
    skipped: dict[str, Count]
    """Reason -> pages."""


class TokenCounts(Record):
    """tokens_in = tokens_used + tokens_cut + tokens_left_over, over all sets."""

    tokens_in: Count
    tokens_used: Count
    tokens_cut: Count
    tokens_left_over: Count

    @classmethod
    def of(cls, counts: InstanceCounts) -> "TokenCounts":
        """The token counts in ``counts``."""
        return cls(
            tokens_in=counts.tokens_in,
            tokens_used=counts.tokens_used,
            tokens_cut=counts.tokens_cut,
            tokens_left_over=counts.tokens_left_over,
        )


class VocabularyCounts(Record):
    """What the vocabulary was trained on, and what it left out."""

    words_by_language: dict[str, Count]
    """Language -> words of the training documents."""
    languages_losing_marks: list[str]
    """Languages that lose vowel signs because accents are stripped."""
    distinct: Count
    """Distinct words."""
    frequent: Count
    """Distinct words that occur often enough."""
    left_out: Count
    """Words beyond ``vocabulary.max_words`` of their language."""
    words: Count
    """Distinct words that the vocabulary was trained on."""
    words_pruned: Count
    """Distinct words beyond ``vocabulary.max_letters``."""
    pruned_share: Share
    """Their share of all words."""
    words_too_long: Count
    """Distinct words that the tokenizer replaces by [UNK] because of their length."""
    alphabet: Count
    """Subwords of a single character."""
    characters_left_out: Count
    """Distinct characters without a subword."""
    left_out_share: Share
    """Their share of all characters."""


class CorpusCounts(Record):
    """What a build read and wrote, over all languages."""

    pages: PageCounts
    removals: dict[str, Count]
    """Reason -> documents that deduplication removed."""
    documents: Count
    """Documents after deduplication."""
    vocabulary: VocabularyCounts | None = None
    """None when the config names a vocabulary."""
    tokens: TokenCounts
    by_set: dict[str, InstanceCounts]
    """Set label (name/split/pass) -> counts."""


class Manifest(Record):
    """Everything that a reader of a corpus needs. Paths are relative to the manifest's folder."""

    format: Literal["bertmill-corpus"] = MANIFEST_FORMAT
    version: Literal[3] = MANIFEST_VERSION
    objective: Literal["nsp", "sop", "none"]
    label_convention: dict[str, str]
    """next_sentence_label -> meaning."""
    masking: MaskingRecord
    vocabulary: VocabularyFile
    languages: dict[str, LanguageCounts]
    sets: Annotated[list[SequenceSet], Field(min_length=1)]
    documents: list[DocumentFile] = []
    """The kept documents, if the config publishes them (publish.documents)."""
    counts: CorpusCounts
    config: dict[str, Any]
    """The build's resolved config, without its output."""
    config_hash: Sha256
    """Hash of the config, of the files that it names, and of the versions of the formats."""
    code_version: str
    """Version of bertmill that built the corpus."""
    plugins: dict[str, Sha256] = {}
    """Plug-in (package.module:Name) -> SHA-256 of its source."""
    libraries: dict[str, str]
    """Versions of the libraries that can change a byte of the output."""
    sha256: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""
    """SHA-256 of the manifest without this field. `dump_manifest` sets it."""


def manifest_schema() -> dict[str, Any]:
    """The JSON Schema of a manifest, derived from the classes."""
    schema = Manifest.model_json_schema(schema_generator=DescribedJsonSchema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def dump_manifest(manifest: Manifest) -> bytes:
    """The manifest as UTF-8 JSON with its hash, sorted keys and a newline at the end."""
    # The text is made once. A file of published documents (256 MiB of text) adds about 220 bytes to it.
    raw = _canonical(manifest.model_dump(mode="json") | {"sha256": ""})
    unsealed = raw.replace(_seal_line(""), b"", 1)
    return raw.replace(_seal_line(""), _seal_line(hashlib.sha256(unsealed).hexdigest()), 1)


def seal(body: dict[str, Any]) -> str:
    """SHA-256 of a manifest's JSON without its field ``sha256``. An edited manifest does not match it."""
    return hashlib.sha256(_canonical({k: v for k, v in body.items() if k != "sha256"})).hexdigest()


def _seal_line(digest: str) -> bytes:
    """The line of the field ``sha256`` at the top level, where lines are indented by one space."""
    return f'\n "sha256": "{digest}",'.encode()


def _canonical(body: dict[str, Any]) -> bytes:
    return (json.dumps(body, ensure_ascii=False, sort_keys=True, indent=1) + "\n").encode()


def parse_manifest(raw: bytes, origin: str) -> Manifest:
    """The manifest in ``raw``.

    Raises CorpusError that names ``origin`` and the first wrong field, or says that the manifest was edited
    or has another version.
    """
    manifest = validate_manifest(raw, origin)
    if not _matches_seal(raw, manifest.sha256) and manifest.sha256 != seal(parse_json(raw)):
        raise CorpusError(
            f"{origin}: the file was edited or damaged after it was written (its sha256 differs)"
        )
    return manifest


def validate_manifest(raw: bytes, origin: str) -> Manifest:
    """`parse_manifest` without the check of the manifest's own hash."""
    try:
        # Pydantic accepts NaN in the free-form ``config``. Python's parser can refuse it.
        if b"NaN" in raw or b"Infinity" in raw:
            parse_json(raw, constants=False)
        header = _Header.model_validate_json(raw)
    except ValueError as error:
        what = _first_problem(error) if isinstance(error, ValidationError) else f"not JSON: {error}"
        raise CorpusError(f"{origin}: {what}") from error
    if (header.format, header.version) != (MANIFEST_FORMAT, MANIFEST_VERSION):
        raise CorpusError(
            f"{origin}: format {header.format!r} version {header.version!r}; this bertmill reads "
            f"{MANIFEST_FORMAT} version {MANIFEST_VERSION}; build the corpus again, or use the bertmill that "
            f"built it"
        )
    try:
        return Manifest.model_validate_json(raw)
    except ValidationError as error:
        raise CorpusError(f"{origin}: {_first_problem(error)}") from error


class _Header(BaseModel):
    """The two fields that decide how to read the others."""

    format: Any = None
    version: Any = None


def _first_problem(error: ValidationError) -> str:
    """``$.sets[0].rows: Input should be ...``."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    return f"${place}: {reason_of(first)[:300]}"


def _matches_seal(raw: bytes, digest: str) -> bool:
    """Whether ``raw`` without its ``sha256`` line has this digest, as in every manifest that a build writes.

    False for other layouts of the same content. This check avoids serializing a large manifest again at every
    start.
    """
    before, separator, after = raw.partition(_seal_line(digest))
    if not separator:
        return False
    hashed = hashlib.sha256(before)
    hashed.update(after)
    return hashed.hexdigest() == digest
