"""Pages that a program wrote: one sentence pattern with other names and numbers in it, thousands of times.

Whole Wikipedias consist mostly of such pages. They are told by their skeleton, the text without what
varies: words with a capital letter or a digit, and words of the title. Ordinary pages share no skeleton.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence

MAX_CHARS = 3000
_SLOT = "\0"


def skeleton(title: str, paragraphs: Sequence[str]) -> bytes:
    """Hash of the text with names, numbers and words of the title taken out."""
    names = {word.strip("().,;:!?").casefold() for word in title.split()}
    kept: list[str] = []
    for paragraph in paragraphs:
        for token in paragraph.split():
            word = token.strip("().,;:!?\"'«»„“”")
            varies = word[:1].isupper() or word.casefold() in names or any(map(str.isdigit, word))
            if not varies:
                kept.append(word)
            elif not kept or kept[-1] != _SLOT:
                kept.append(_SLOT)
        kept.append("\n")
    return hashlib.blake2b(" ".join(kept).encode("utf-8", "surrogatepass"), digest_size=8).digest()


class StubLimit:
    """Lets so many pages of one skeleton pass, in the order in which they come, and no more."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._seen: Counter[bytes] = Counter()

    def exceeded(self, title: str, paragraphs: Sequence[str]) -> bool:
        """Whether enough pages like this one have passed; counts it. Long pages always pass."""
        if self._limit is None or sum(map(len, paragraphs)) > MAX_CHARS:
            return False
        key = skeleton(title, paragraphs)
        self._seen[key] += 1
        return self._seen[key] > self._limit
