"""A custom document filter: drop documents that are mostly numbers, such as tables of results.

A build config names it, from the folder that contains this file's folder:

    extraction:
      filters:
        - use: examples.digit_filter:MaxDigits
          options: {share: 0.2}
"""

from pipeline.documents.filters import Document


class MaxDigits:
    """Drops documents with a larger share of digits than ``share``, counted as too-many-digits."""

    def __init__(self, share: float = 0.2) -> None:
        self.share = share

    def filter(self, document: Document) -> bool | tuple[bool, str]:
        """Whether the document stays, and the reason under which a dropped one is counted."""
        digits = sum(map(str.isdigit, document.text))
        return digits <= self.share * len(document.text), "too-many-digits"
