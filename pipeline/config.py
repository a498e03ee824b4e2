"""The config of a corpus build: every field, its default, its range and what it does."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from cluster.jobs.paths import Location
from schemas.plugins import is_plugin_name
from schemas.vocabulary import SPECIAL_TOKENS

SOURCE_READERS: Mapping[str, str] = {
    "wikimedia": "pipeline.sources.mediawiki.dumps:WikimediaReader",
    "wikipedia_parquet": "pipeline.sources.jsonl:RowsReader",
    "bookcorpus": "pipeline.sources.bookcorpus:BookCorpusReader",
    "jsonl": "pipeline.sources.jsonl:RowsReader",
    "text": "pipeline.sources.text:TextReader",
}
"""Built-in kinds of sources and their reader classes."""

Objective = Literal["nsp", "sop", "none"]
Packing = Literal["full_sentences", "doc_sentences"]
MaskUnit = Literal["token", "whole_word", "span", "ngram"]


NOT_OF_THE_CORPUS = {"output", "previous"}
"""Fields of BuildConfig that do not affect the corpus."""


class Section(BaseModel):
    """A part of the config. An unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _plugin_name(name: str) -> str:
    if not is_plugin_name(name):
        raise ValueError(f"{name!r} must have the form package.module:Name")
    return name


def _source_kind(kind: str) -> str:
    if kind not in SOURCE_READERS and not is_plugin_name(kind):
        raise ValueError(
            f"{kind!r} must be one of {', '.join(SOURCE_READERS)}, or package.module:ReaderClass"
        )
    return kind


PluginName = Annotated[str, AfterValidator(_plugin_name)]


class Source(Section):
    """Where raw text comes from. A source may name many files."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]
    """Short name. It is part of every document key and of the report."""
    kind: Annotated[str, AfterValidator(_source_kind)]
    """Reader of the source: wikimedia, wikipedia_parquet, bookcorpus, jsonl, text, or a custom reader
    class as package.module:Class (see pipeline.sources.reader.SourceReader)."""
    paths: Annotated[list[Location], Field(min_length=1)]
    """Files, folders or globs, as paths or URIs. Relative paths start at the working directory."""
    lang: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")] | None = None
    """Language code. The default comes from the data for wikimedia and wikipedia_parquet, and from the field
    lang for jsonl."""
    index: Location | None = None
    """Wikimedia multistream index of a source with one dump. The default is the index next to the dump, if
    it exists."""
    date: Annotated[str, Field(pattern=r"^(\d{4}-\d{2}-\d{2}|latest)$")] | None = None
    """For wikimedia: which Content File Exports to read when the paths have several dates of a wiki:
    YYYY-MM-DD, or latest for the newest complete one of each wiki. Without it, several dates are an error."""
    check_hashes: bool = True
    """For wikimedia: check that Content File Exports are complete and have the hashes listed in their
    SHA256SUMS. false reads the files without these checks."""
    namespaces: Annotated[list[int], Field(min_length=1)] = [0]
    """For wikimedia: namespaces whose pages are read. 0 has the articles."""
    documents: Literal["file", "blank_lines"] = "file"
    """For text: one document per file, or documents separated by blank lines, as in BERT's data script."""
    form: Literal["auto", "books", "rows", "sentences"] = "auto"
    """For bookcorpus: one text file per book, rows with title and text, or one sentence per row without book
    boundaries. auto treats text files as books and distinguishes the other two by their columns."""
    sentences_per_document: Annotated[int, Field(ge=8)] = 256
    """For bookcorpus in the form sentences: mean number of sentences (rows) per document."""
    text_field: str = "text"
    """For jsonl and Parquet: the field with the text. The fields id, title and lang are used if present."""
    options: dict[str, Any] = {}
    """Options for a custom reader class."""

    @model_validator(mode="after")
    def _options_have_a_reader(self) -> "Source":
        if self.options and self.kind in SOURCE_READERS:
            raise ValueError(f"options are for custom reader classes; kind {self.kind} has none")
        return self


def _filter_fields(value: Any) -> Any:
    return {"use": value} if isinstance(value, str) else value


class DocumentFilter(Section):
    """A custom filter."""

    use: PluginName
    """A class as package.module:Class (see pipeline.documents.filters.DocumentFilter)."""
    options: dict[str, Any] = {}
    """Keyword arguments of the class."""


class Extraction(Section):
    """Reading and cleaning."""

    unit_bytes: Annotated[int, Field(ge=1 << 16)] = 32 << 20
    """Compressed bytes of one work unit."""
    min_chars: Annotated[int, Field(ge=0)] = 100
    """Pages with fewer characters of text than this are skipped as too-short."""
    weigh_scripts: bool = True
    """For min_chars: a Chinese character counts as 2.5, a Hangul syllable as 2 and a kana as 1.5, because
    they carry more text than a letter. false counts every character as 1."""
    max_page_chars: Annotated[int, Field(ge=1000)] = 4_000_000
    """Pages with more wikitext than this are skipped as too-large. A longer text file is cut into parts."""
    page_seconds: Annotated[float, Field(gt=0)] = 20.0
    """CPU seconds of cleaning after which a page is skipped as timeout."""
    max_list_share: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Pages with a larger share of their text in list items are skipped as list-like. 1 keeps all pages."""
    headings: Literal["keep", "drop"] = "drop"
    """Whether section headings become separate paragraphs or are dropped."""
    lists: Literal["keep", "drop"] = "keep"
    """Whether list items become separate paragraphs or are dropped."""
    math: Literal["inline", "tex", "placeholder"] = "inline"
    """Formulas as their TeX source (inline, tex) or as the placeholder [formula]. Paragraphs that consist
    only of formulas are dropped and counted, except with tex."""
    back_matter: Literal["keep", "drop"] = "drop"
    """Whether sections of references, external links, related pages and books are kept, or dropped with
    their headings."""
    drop_holed_sentences: bool = True
    """Drop sentences with a hole, which marks a template whose text is unknown."""
    learn_templates: bool = True
    """Learn the templates of a wiki from its own dump before reading the articles. Without learning, only
    your rules and the built-in ones decide what a template shows."""
    template_rules: Location | None = None
    """YAML file with rules for templates. They take precedence over learned and built-in rules."""
    template_functions: PluginName | None = None
    """Template rules in Python as package.module:NAME, a mapping of template names to functions (see
    pipeline.wikitext.python_rules). They take precedence over all other rules."""
    filters: list[Annotated[DocumentFilter, BeforeValidator(_filter_fields)]] = []
    """Custom filters, applied to cleaned documents in this order. Each is package.module:Class, or a
    mapping with use and options. A dropped document counts as skipped under the filter's reason."""


class Dedup(Section):
    """Removal of duplicate documents."""

    exact: bool = True
    """Remove documents with the same text as a document with a smaller key."""
    max_templated: Annotated[int, Field(ge=1)] | None = None
    """Of the pages of a language whose text differs only in names, numbers and words of the title, keep at
    most this many (those with the smallest keys), and remove the others as bot-stub. null keeps all. Wikis
    such as cebwiki need it."""
    near: bool = False
    """Remove documents that share most of their word 5-grams with a document with a smaller key."""
    jaccard: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Minimum Jaccard similarity of near duplicates."""
    max_paragraph_documents: Annotated[int, Field(ge=1)] | None = None
    """Cut paragraphs of five or more words that occur in more documents than this from all documents.
    Documents without other text are removed. null cuts no paragraphs."""
    evaluation: list[Location] = []
    """Files or globs of evaluation sets (text, TSV, JSON, JSON Lines; .gz, .bz2, .xz or .zst). Documents that
    share a run of 13 words with one of them are removed as contaminated. With characters of scripts without
    spaces, the run is 40 words or characters. Shorter texts are not compared."""


class Vocabulary(Section):
    """The WordPiece vocabulary."""

    path: Location | None = None
    """Use this vocab.txt, or this tokenizer.json of Hugging Face (WordPiece, BPE or Unigram, such as
    XLM-RoBERTa's), instead of training a vocabulary. A tokenizer.json keeps its own rules, the build copies
    the files next to it, and the other fields of this section have no effect."""
    size: Annotated[int, Field(ge=300, le=2_000_000)] = 30_522
    """Number of subwords, special tokens included."""
    cased: bool = True
    """Keep the case of letters."""
    accents: Literal["keep", "strip", "strip_letters"] | None = None
    """keep keeps accents. strip removes every combining mark as BERT's uncased models do, which costs Indic
    scripts their vowel signs. strip_letters removes only the diacritics of Latin, Greek and Cyrillic letters.
    The default is keep for a cased vocabulary, strip_letters for an uncased one, and strip for an uncased one
    from a file."""
    smoothing: Annotated[float, Field(gt=0, le=1)] = 0.7
    """Exponent on each language's share of words (mBERT)."""
    min_count: Annotated[int, Field(ge=1)] = 1
    """Minimum occurrences of a word for use in training. Single characters, words of scripts without spaces
    (which rarely repeat), and one word for each letter that occurs only in rarer words are always used."""
    max_words: Annotated[int, Field(ge=1000)] = 500_000
    """Maximum number of distinct words of each language for training: the most frequent ones, and one word
    for each letter that occurs only in rarer words."""
    max_letters: Annotated[int, Field(ge=1_000_000, le=2_000_000_000)] = 24_000_000
    """Maximum number of letters of all distinct words for training, from the most frequent words of all
    languages. Each letter takes about 30 bytes of memory. The build reports what it leaves out."""
    unused: Annotated[int, Field(ge=0)] = 99
    """Number of [unusedN] slots after the special tokens."""

    @model_validator(mode="after")
    def _letters_fit(self) -> "Vocabulary":
        if self.path is None and self.size <= len(SPECIAL_TOKENS) + self.unused:
            raise ValueError(f"size {self.size} leaves no room for subwords with {self.unused} unused slots")
        return self


class Masking(Section):
    """Masked LM targets."""

    unit: MaskUnit = "whole_word"
    """Unit of masking."""
    probability: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the tokens that become targets."""
    mask_share: Annotated[float, Field(ge=0, le=1)] = 0.8
    """Share of the targets replaced by [MASK]."""
    random_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of the targets replaced by a random subword. The rest stays unchanged."""
    predict_unknown: bool = False
    """Whether [UNK] may be a target."""
    words: Location | None = None
    """Text file with one word per line, for scripts without spaces between words. Subwords that spell one of
    these words are masked together. Without the file, every subword of such a script counts as a word."""

    @model_validator(mode="after")
    def _shares_fit(self) -> "Masking":
        if self.mask_share + self.random_share > 1:
            raise ValueError("mask_share and random_share add up to more than 1")
        return self


class SequenceLength(Section):
    """A maximum length. The build makes a set of sequences for each one."""

    max_seq_length: Annotated[int, Field(ge=16, le=8192)]
    """Maximum number of tokens in a sequence, special tokens included."""
    max_predictions: Annotated[int, Field(ge=1)]
    """Maximum number of masked LM targets in a sequence."""


class Instances(Section):
    """Pairs and masks."""

    objective: Objective = "nsp"
    """Next sentence prediction, sentence order prediction, or none."""
    packing: Packing = "full_sentences"
    """For objective none: whether a sequence may cross documents (full_sentences) or not (doc_sentences)."""
    lengths: Annotated[list[SequenceLength], Field(min_length=1)] = [
        SequenceLength(max_seq_length=128, max_predictions=20),
        SequenceLength(max_seq_length=512, max_predictions=80),
    ]
    """The sets to make. Each contains every document."""
    passes: Annotated[int, Field(ge=1, le=100)] = 1
    """Passes over the corpus, each with new boundaries, partners and masks."""
    short_seq_prob: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of sequences with a random shorter target length."""
    masking: Masking = Masking()
    """Masked LM targets."""
    bucket_bytes: Annotated[int, Field(ge=1 << 14)] = 64 << 20
    """Bytes of text in one shuffle bucket, which becomes one shard of each set."""
    validation_share: Annotated[float, Field(ge=0, lt=0.5)] = 0.01
    """Share of the documents to hold out for validation, chosen by content hash."""
    smoothing: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Exponent on each language's share of the text. 1 keeps the shares. mBERT used 0.7."""


class Publish(Section):
    """What to write besides the sequences."""

    documents: bool = False
    """Write the kept documents as a dataset to OUTPUT/documents, with the columns id, revision, timestamp,
    url, title, lang, text and key. Each language is a config (load_dataset("OUTPUT/documents", "en"))."""


class BuildConfig(Section):
    """A corpus build, from raw sources to shards."""

    output: Location
    """Folder or URI of the corpus."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 12345
    """Seed of every random choice."""
    sources: Annotated[list[Source], Field(min_length=1)]
    """The sources to read."""
    extraction: Extraction = Extraction()
    """Reading and cleaning."""
    dedup: Dedup = Dedup()
    """Removal of duplicate documents."""
    vocabulary: Vocabulary = Vocabulary()
    """The WordPiece vocabulary."""
    instances: Instances = Instances()
    """Pairs and masks."""
    publish: Publish = Publish()
    """What to write besides the sequences."""
    previous: Location | None = None
    """Folder or URI of an earlier corpus. The build reuses its text of unchanged Wikimedia pages, and the
    signatures of these texts for near dedup. The resulting corpus has the same bytes with or without this
    field, and you can resume the build with or without it."""

    @model_validator(mode="after")
    def _names_differ(self) -> "BuildConfig":
        names = [source.name for source in self.sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"sources: the name {twice[0]!r} is used twice")
        return self
