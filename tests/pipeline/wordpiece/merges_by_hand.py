"""A slow and simple byte-pair encoding over lists that recounts all pairs before each merge."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise


def merged_by_hand(counts: Mapping[str, int], alphabet: Sequence[str], wanted: int) -> list[str]:
    """The alphabet and the merged pieces, up to ``wanted`` in total."""
    pieces = list(alphabet)
    words = [([word[0], *("##" + char for char in word[1:])], count) for word, count in counts.items()]
    while len(pieces) < wanted:
        pairs: Counter[tuple[str, str]] = Counter()
        for symbols, count in words:
            for pair in pairwise(symbols):
                pairs[pair] += count
        if not pairs:
            break
        order = pieces.index
        first, second = min(pairs, key=lambda pair: (-pairs[pair], order(pair[0]), order(pair[1])))
        name = first + second.removeprefix("##")
        if name not in pieces:
            pieces.append(name)
        for symbols, _ in words:
            at = 0
            while at < len(symbols) - 1:
                if (symbols[at], symbols[at + 1]) == (first, second):
                    symbols[at : at + 2] = [name]
                at += 1
    return pieces
