"""Counts what happens to the tokens of one language in one set of sequences, and checks the sums."""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import Field

from schemas.errors import CorpusError
from schemas.tallies import add_fields

LENGTH_BINS = 16
SENTENCE_BINS = 16

Count = Annotated[int, Field(ge=0, le=1 << 53)]
"""A count in a manifest: far above any corpus, and within the exact integers of every JSON reader."""


@dataclass
class InstanceCounts:
    """Counts of one language in one set of sequences. `add` merges those of another bucket.

    The counts must balance: tokens_in = tokens_used + tokens_cut + the sum of left_over.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    documents: Count = 0
    """Documents, copies included."""
    empty_documents: Count = 0
    """Documents without a token."""
    sentences: Count = 0
    """Input sentences, empty ones included."""
    document_sentences: list[Count] = field(default_factory=lambda: [0] * SENTENCE_BINS)
    """Documents with text by number of sentences (1, 2-3, 4-7, 8-15 ...), after long sentences are cut."""
    sentences_cut: Count = 0
    """Sentences that were longer than the maximum length and were cut into parts."""
    sentence_parts: Count = 0
    """Parts that the long sentences were cut into."""
    tokens_in: Count = 0
    """Input tokens."""
    tokens_used: Count = 0
    """Tokens in their own sequence."""
    tokens_cut: Count = 0
    """Tokens cut from their sequence to fit the maximum length."""
    left_over: dict[str, Count] = field(default_factory=dict)
    """Reason -> tokens that got no sequence."""
    tokens_unseen: Count = 0
    """Tokens cut or left over that appear in no other sequence."""
    tokens_reused: Count = 0
    """Tokens that appear in a second sequence: a random B, a repeated A."""
    tokens_unknown: Count = 0
    """[UNK] among the input tokens."""
    words_in: Count = 0
    """Input words: tokens without ``##``. A long run without spaces counts once for each stretch."""
    sequences: Count = 0
    sequence_tokens: Count = 0
    """Lengths of all sequences, special tokens included."""
    labels: dict[str, Count] = field(default_factory=dict)
    """next_sentence_label -> sequences."""
    events: dict[str, Count] = field(default_factory=dict)
    """Event -> how often it happened: no_random_partner, one_sentence_documents, repeated_a."""
    masked: Count = 0
    """Masked LM targets."""
    masked_by_mask: Count = 0
    """Targets replaced by [MASK]."""
    masked_unchanged: Count = 0
    """Targets left unchanged. A random replacement may equal the original too."""
    lengths: list[Count] = field(default_factory=lambda: [0] * LENGTH_BINS)
    """Sequences by sixteenths of the maximum length."""

    def add(self, other: "InstanceCounts") -> None:
        """Adds the counts of ``other``."""
        add_fields(self, other)

    def check(self, origin: str) -> None:
        """Raises CorpusError that names ``origin`` if the counts do not balance."""
        out = self.tokens_used + self.tokens_cut + self.tokens_left_over
        if out != self.tokens_in:
            raise CorpusError(f"{origin}: {self.tokens_in} tokens in, but {out} used, cut or left over")

    @property
    def tokens_left_over(self) -> int:
        """Tokens that got no sequence, for any reason."""
        return sum(self.left_over.values())

    @property
    def median_sentences(self) -> int:
        """Lower bound of the median document's number of sentences (1, 2, 4, 8 ...). 0 without documents."""
        half, seen = sum(self.document_sentences) / 2, 0
        for power, documents in enumerate(self.document_sentences):
            seen += documents
            if seen >= half > 0:
                return 1 << power
        return 0
