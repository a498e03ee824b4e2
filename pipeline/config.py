"""The config of a corpus build: every field, its default, its range and what it does."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from schemas.vocabulary import SPECIAL_TOKENS

Objective = Literal["nsp", "sop", "none"]
Packing = Literal["full_sentences", "doc_sentences"]
MaskUnit = Literal["token", "whole_word", "span", "ngram"]


class Section(BaseModel):
    """A part of the config; a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Source(Section):
    """Where raw text comes from. A source may name many files."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]
    """Short name; part of every document key and of the report."""
    kind: Literal["wikimedia", "wikipedia_parquet", "bookcorpus", "jsonl", "text"]
    """Which reader is used."""
    paths: Annotated[list[str], Field(min_length=1)]
    """Files, folders or globs, as paths or URIs; relative paths are relative to the working directory."""
    lang: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")] | None = None
    """Language code; for wikimedia and wikipedia_parquet the default is read from the data, for jsonl
    from the field lang."""
    index: str | None = None
    """Wikimedia multistream index of a source with one dump; the default is the index beside the dump,
    when there is one."""
    namespaces: Annotated[list[int], Field(min_length=1)] = [0]
    """For wikimedia: namespaces whose pages are read; 0 holds the articles."""
    documents: Literal["file", "blank_lines"] = "file"
    """For text: a document per file, or documents parted by empty lines, as BERT's own data script reads."""
    form: Literal["auto", "books", "rows", "sentences"] = "auto"
    """For bookcorpus: a text file per book, rows with title and text, or a sentence per row without
    book boundaries; auto takes text files for books and tells the other two by their columns."""
    sentences_per_document: Annotated[int, Field(ge=8)] = 256
    """For bookcorpus in the form sentences: mean length of the documents into which the rows are cut."""
    text_field: str = "text"
    """For jsonl, Parquet: the field with the text. The fields id, title, lang are used where present."""


class Extraction(Section):
    """Reading and cleaning."""

    unit_bytes: Annotated[int, Field(ge=1 << 16)] = 32 << 20
    """Compressed bytes of one work unit."""
    min_chars: Annotated[int, Field(ge=0)] = 100
    """Pages with less text than this are skipped as too-short."""
    weigh_scripts: bool = True
    """For min_chars: a Chinese character counts 2.5, a Hangul syllable 2, kana 1.5, since they say so much
    more than a letter; false counts every character as one."""
    max_page_chars: Annotated[int, Field(ge=1000)] = 4_000_000
    """Pages with more wikitext than this are skipped as too-large; a longer text file is cut into parts."""
    page_seconds: Annotated[float, Field(gt=0)] = 20.0
    """Processor time of cleaning after which a page is skipped as timeout."""
    max_list_share: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Pages with a larger share of their text in list items are skipped as list-like; 1 keeps all."""
    headings: Literal["keep", "drop"] = "drop"
    """Section headings as paragraphs of their own, or left out."""
    lists: Literal["keep", "drop"] = "keep"
    """List items as paragraphs of their own, or left out."""
    math: Literal["tex", "placeholder"] = "tex"
    """Formulas as their TeX source, or as the placeholder [formula]."""
    drop_holed_sentences: bool = True
    """Drop sentences out of which a template without text was cut."""
    template_rules: str | None = None
    """YAML file with more text-bearing templates."""


class Dedup(Section):
    """Removal of repeated documents."""

    exact: bool = True
    """Drop documents whose text equals that of a document with a smaller key."""
    max_templated: Annotated[int, Field(ge=1)] | None = None
    """So many pages of a language whose text is the same but for names, numbers and words of the title are
    kept (those of the smallest keys), further ones are dropped as bot-stub; null keeps all. cebwiki and its
    like need it."""
    near: bool = False
    """Drop documents that share most of their word 5-grams with one of a smaller key."""
    jaccard: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Similarity from which two documents count as near duplicates."""
    max_paragraph_documents: Annotated[int, Field(ge=1)] | None = None
    """Paragraphs of five words or more that stand in more documents than this are cut out of all of
    them; documents without any other text go. Default: no paragraph is cut out."""
    evaluation: list[str] = []
    """Files or globs of evaluation sets (text, TSV, JSON, JSON lines; .gz, .bz2, .xz or .zst). Documents
    that share a run of 13 words with one of them, or of 40 words or signs where there are signs of scripts
    without spaces, are dropped as contaminated. Texts shorter than that are not compared."""


class Vocabulary(Section):
    """The WordPiece vocabulary."""

    path: str | None = None
    """Use this vocab.txt instead of training one."""
    size: Annotated[int, Field(ge=300, le=2_000_000)] = 30_522
    """Pieces in all, special tokens included."""
    cased: bool = True
    """Keep the case of letters."""
    accents: Literal["keep", "strip", "strip_letters"] | None = None
    """Keep accents; strip every combining mark as BERT's uncased models do, which costs Indic scripts
    their vowel signs; or strip the diacritics of Latin, Greek and Cyrillic letters only. Default: keep
    for a cased vocabulary, strip_letters for an uncased one, strip for an uncased one from a file."""
    smoothing: Annotated[float, Field(gt=0, le=1)] = 0.7
    """Exponent on the languages' shares of words (mBERT)."""
    min_count: Annotated[int, Field(ge=1)] = 1
    """Words seen less often are not used for training; single characters always are, words of scripts
    without spaces, which seldom come twice, and a word for each letter that only rarer words have."""
    max_words: Annotated[int, Field(ge=1000)] = 500_000
    """Distinct words of each language that are used for training, the most frequent ones, and beside them a
    word for each letter that only rarer words have."""
    max_letters: Annotated[int, Field(ge=1_000_000, le=2_000_000_000)] = 24_000_000
    """Letters of the distinct words that the trainer works on, the most frequent words of all languages; each
    takes some 30 bytes. What is left out is reported."""
    unused: Annotated[int, Field(ge=0)] = 99
    """Number of [unusedN] slots after the special tokens."""

    @model_validator(mode="after")
    def _letters_fit(self) -> "Vocabulary":
        if self.path is None and self.size <= len(SPECIAL_TOKENS) + self.unused:
            raise ValueError(f"size {self.size} leaves no piece beside {self.unused} unused slots")
        return self


class Masking(Section):
    """Masked LM targets."""

    unit: MaskUnit = "whole_word"
    """What is masked together."""
    probability: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the tokens that become targets."""
    mask_share: Annotated[float, Field(ge=0, le=1)] = 0.8
    """Share of the targets replaced by [MASK]."""
    random_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of the targets replaced by a random piece; the rest stays as it is."""
    predict_unknown: bool = False
    """Whether [UNK] may be a target."""
    words: str | None = None
    """Text file with one word on each line, for scripts without spaces between words: pieces that spell
    one of them are masked together. Without it every piece of such a script is a word of its own."""

    @model_validator(mode="after")
    def _shares_fit(self) -> "Masking":
        if self.mask_share + self.random_share > 1:
            raise ValueError("mask_share and random_share add up to more than 1")
        return self


class SequenceLength(Section):
    """One set of instances."""

    max_seq_length: Annotated[int, Field(ge=16, le=8192)]
    """Tokens in a sequence, special tokens included."""
    max_predictions: Annotated[int, Field(ge=1)]
    """Masked tokens in a sequence at most."""


class Instances(Section):
    """Pairs and masks."""

    objective: Objective = "nsp"
    """Next sentence prediction, sentence order prediction, or none."""
    packing: Packing = "full_sentences"
    """For objective none: may a sequence cross documents?"""
    lengths: Annotated[list[SequenceLength], Field(min_length=1)] = [
        SequenceLength(max_seq_length=128, max_predictions=20),
        SequenceLength(max_seq_length=512, max_predictions=80),
    ]
    """The sets to make; each has every document."""
    passes: Annotated[int, Field(ge=1, le=100)] = 1
    """Passes over the corpus with fresh boundaries, partners and masks."""
    short_seq_prob: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of sequences that aim at a random shorter length."""
    masking: Masking = Masking()
    """Masked LM targets."""
    bucket_bytes: Annotated[int, Field(ge=1 << 14)] = 64 << 20
    """Text of one shuffle bucket, which becomes one shard of each set."""
    validation_share: Annotated[float, Field(ge=0, lt=0.5)] = 0.01
    """Share of the documents held out, chosen by content hash."""
    smoothing: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Exponent on the languages' shares of documents; 1 keeps them as they are, mBERT used 0.7."""


class BuildConfig(Section):
    """A corpus build, from raw sources to shards."""

    output: str
    """Where the corpus goes: a folder or a URI."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 12345
    """Seed of every random choice."""
    sources: Annotated[list[Source], Field(min_length=1)]
    """What is read."""
    extraction: Extraction = Extraction()
    """Reading and cleaning."""
    dedup: Dedup = Dedup()
    """Removal of repeated documents."""
    vocabulary: Vocabulary = Vocabulary()
    """The WordPiece vocabulary."""
    instances: Instances = Instances()
    """Pairs and masks."""

    @model_validator(mode="after")
    def _names_differ(self) -> "BuildConfig":
        names = [source.name for source in self.sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"sources: the name {twice[0]!r} is used twice")
        return self
