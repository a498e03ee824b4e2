"""Slow, simple references for the instances, one token at a time, in the order of the documented rules.

`compatible_instances` follows google-research/bert create_pretraining_data draw for draw, even where
bertmill differs (false labels for a single document, words joined across [SEP]).
`policy_instances` follows bertmill's own rules with an ordinary generator. The fast code is compared
with it by distribution, because it draws in another order.
"""

import hashlib
import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
Sentence = list[str]
Document = list[Sentence]

_SPAN_LENGTHS = range(1, 11)
_SPAN_WEIGHTS = list(itertools.accumulate(0.8**k for k in range(10)))
_NGRAM_WEIGHTS = [1.0, 1.0 + 1 / 2, 1.0 + 1 / 2 + 1 / 3]


@dataclass
class Instance:
    tokens: list[str]
    segment_ids: list[int]
    label: int | None
    positions: list[int]
    labels: list[str]
    # How each target was replaced: mask, random or keep.
    kinds: list[str]

    def line(self) -> str:
        parts = (
            self.tokens,
            [str(segment) for segment in self.segment_ids],
            [str(self.label)],
            [str(position) for position in self.positions],
            self.labels,
        )
        return "\t".join(" ".join(part) for part in parts) + "\n"


def golden_hash(instances: Iterable[Instance]) -> str:
    digest = hashlib.sha256()
    for instance in instances:
        digest.update(instance.line().encode())
    return digest.hexdigest()[:32]


def golden_corpus(documents: int) -> list[Document]:
    def token(d: int, s: int, t: int) -> str:
        k = (d + s + t) % 500
        return f"##p{k}" if t % 4 == 3 else f"w{k}"

    return [
        [[token(d, s, t) for t in range(3 + (31 * d + 17 * s) % 40)] for s in range(1 + 7 * d % 30)]
        for d in range(documents)
    ]


def golden_vocabulary() -> list[str]:
    return [*SPECIALS, *(f"w{k}" for k in range(500)), *(f"##p{k}" for k in range(500))]


@dataclass(frozen=True)
class Rules:
    max_seq_length: int = 128
    max_predictions: int = 20
    short_seq_prob: float = 0.1
    whole_word: bool = False
    mask_probability: float = 0.15


# ------------------------------------------------------------------ as google-research/bert


def compatible_instances(
    corpus: list[Document], vocabulary: list[str], rules: Rules, seed: int, passes: int
) -> list[Instance]:
    rng = random.Random(seed)
    documents = list(corpus)
    rng.shuffle(documents)
    instances = [
        instance
        for _ in range(passes)
        for number in range(len(documents))
        for instance in _compatible_document(documents, number, vocabulary, rules, rng)
    ]
    rng.shuffle(instances)
    return instances


def _compatible_document(
    documents: list[Document], number: int, vocabulary: list[str], rules: Rules, rng: random.Random
) -> list[Instance]:
    document = documents[number]
    longest = rules.max_seq_length - 3
    target = longest
    if rng.random() < rules.short_seq_prob:
        target = rng.randint(2, longest)
    instances = []
    chunk: list[Sentence] = []
    place = 0
    while place < len(document):
        chunk.append(document[place])
        if place == len(document) - 1 or sum(map(len, chunk)) >= target:
            a_end = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
            a = [token for sentence in chunk[:a_end] for token in sentence]
            is_random = len(chunk) == 1 or rng.random() < 0.5
            if is_random:
                b = _compatible_random_b(documents, number, target - len(a), rng)
                place -= len(chunk) - a_end
            else:
                b = [token for sentence in chunk[a_end:] for token in sentence]
            _truncate(a, b, longest, rng)
            instances.append(_compatible_instance(a, b, is_random, vocabulary, rules, rng))
            chunk = []
        place += 1
    return instances


def _compatible_random_b(
    documents: list[Document], number: int, wanted: int, rng: random.Random
) -> list[str]:
    other = number
    for _ in range(10):
        other = rng.randint(0, len(documents) - 1)
        if other != number:
            break
    b: list[str] = []
    for sentence in documents[other][rng.randint(0, len(documents[other]) - 1) :]:
        b.extend(sentence)
        if len(b) >= wanted:
            break
    return b


def _truncate(a: list[str], b: list[str], longest: int, rng: random.Random) -> None:
    while len(a) + len(b) > longest:
        longer = a if len(a) > len(b) else b
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


def _compatible_instance(
    a: list[str], b: list[str], is_random: bool, vocabulary: list[str], rules: Rules, rng: random.Random
) -> Instance:
    tokens = ["[CLS]", *a, "[SEP]", *b, "[SEP]"]
    segment_ids = [0] * (len(a) + 2) + [1] * (len(b) + 1)
    groups: list[list[int]] = []
    for position, token in enumerate(tokens):
        if token in ("[CLS]", "[SEP]"):
            continue
        if rules.whole_word and groups and token.startswith("##"):
            groups[-1].append(position)
        else:
            groups.append([position])
    rng.shuffle(groups)
    wanted = min(rules.max_predictions, max(1, round(len(tokens) * rules.mask_probability)))
    masked: dict[int, tuple[str, str]] = {}
    shown = list(tokens)
    for group in groups:
        if len(masked) >= wanted:
            break
        if len(masked) + len(group) > wanted:
            continue
        for position in group:
            if rng.random() < 0.8:
                kind, shown[position] = "mask", "[MASK]"
            elif rng.random() < 0.5:
                kind = "keep"
            else:
                kind, shown[position] = "random", vocabulary[rng.randint(0, len(vocabulary) - 1)]
            masked[position] = (tokens[position], kind)
    positions = sorted(masked)
    return Instance(
        tokens=shown,
        segment_ids=segment_ids,
        label=int(is_random),
        positions=positions,
        labels=[masked[position][0] for position in positions],
        kinds=[masked[position][1] for position in positions],
    )


# ------------------------------------------------------------------ by bertmill's rules


def policy_instances(
    corpus: list[Document], vocabulary: list[str], rules: Rules, seed: int, unit: str = "token"
) -> list[Instance]:
    """Next sentence prediction over one language. Every sentence must be shorter than the length."""
    rng = random.Random(seed)
    return [
        policy_masks(["[CLS]", *a, "[SEP]", *b, "[SEP]"], len(a) + 2, label, vocabulary, rules, rng, unit)
        for number in range(len(corpus))
        for a, b, label in _policy_pairs(corpus, number, rules, rng)
    ]


def _policy_pairs(
    corpus: list[Document], number: int, rules: Rules, rng: random.Random
) -> list[tuple[list[str], list[str], int]]:
    document = corpus[number]
    longest = rules.max_seq_length - 3
    pairs = []
    place = 0
    while place < len(document):
        target = rng.randint(2, longest) if rng.random() < rules.short_seq_prob else longest
        stop, size = place, 0
        while stop < len(document) and (size < target or stop - place < 2):
            size += len(document[stop])
            stop += 1
        a_end = rng.randint(place + 1, stop - 1) if stop - place > 1 else stop
        is_random = len(corpus) > 1 and (rng.random() < 0.5 or len(document) == 1)
        first = place
        if is_random:
            other = rng.choice([index for index in range(len(corpus)) if index != number])
            a = _join(document[place:a_end])
            b = _run(corpus[other], rng.randrange(len(corpus[other])), target - len(a))
            place = a_end
        elif stop - place == 1:
            if len(document) == 1:
                break
            a, b = list(document[first - 1]), list(document[first])
            place = stop
        else:
            a, b = _join(document[place:a_end]), _join(document[a_end:stop])
            place = stop
        _truncate(a, b, longest, rng)
        pairs.append((a, b, int(is_random)))
    return pairs


def _join(sentences: list[Sentence]) -> list[str]:
    return [token for sentence in sentences for token in sentence]


def _run(document: Document, start: int, wanted: int) -> list[str]:
    found: list[str] = []
    for sentence in document[start:]:
        found.extend(sentence)
        if len(found) >= wanted:
            break
    return found


def policy_masks(
    tokens: list[str],
    a_length: int,
    label: int | None,
    vocabulary: list[str],
    rules: Rules,
    rng: random.Random,
    unit: str,
) -> Instance:
    words = _words(tokens, whole=unit != "token")
    present = sum(len(word) for word in words)
    wanted = min(rules.max_predictions, max(1, round(len(tokens) * rules.mask_probability)), present)
    chooser = {
        "token": _choose_words,
        "whole_word": _choose_words,
        "span": _choose_spans,
        "ngram": _choose_ngrams,
    }
    groups = chooser[unit](words, wanted, rng)
    if not groups and words:
        order = rng.sample(words, len(words))
        fitting = [word for word in order if len(word) <= rules.max_predictions]
        groups = [(fitting or [order[0][: rules.max_predictions]])[0]]
    shown, kinds = list(tokens), {}
    for group in groups:
        shared = rng.random()
        for position in group:
            point = shared if unit == "span" else rng.random()
            if point < 0.8:
                kinds[position], shown[position] = "mask", "[MASK]"
            elif point < 0.9:
                kinds[position], shown[position] = "random", _piece(vocabulary, rng)
            else:
                kinds[position] = "keep"
    positions = sorted(kinds)
    return Instance(
        tokens=shown,
        segment_ids=[0] * a_length + [1] * (len(tokens) - a_length),
        label=label,
        positions=positions,
        labels=[tokens[position] for position in positions],
        kinds=[kinds[position] for position in positions],
    )


def _piece(vocabulary: list[str], rng: random.Random) -> str:
    while (piece := rng.choice(vocabulary)) in SPECIALS:
        pass
    return piece


def _in_random_order(count: int, rng: random.Random) -> Iterator[int]:
    """0 to ``count`` in random order, drawn only as far as it is used."""
    left = list(range(count))
    while left:
        place = int(rng.random() * len(left))
        left[place], left[-1] = left[-1], left[place]
        yield left.pop()


def _words(tokens: list[str], whole: bool) -> list[list[int]]:
    words: list[list[int]] = []
    for position, token in enumerate(tokens):
        if token in SPECIALS:
            continue
        joined = whole and token.startswith("##") and words and words[-1][-1] == position - 1
        if joined:
            words[-1].append(position)
        else:
            words.append([position])
    return words


def _choose_words(words: list[list[int]], wanted: int, rng: random.Random) -> list[list[int]]:
    groups: list[list[int]] = []
    left = wanted
    for number in _in_random_order(len(words), rng):
        word = words[number]
        if len(word) <= left:
            groups.append(word)
            left -= len(word)
        if left == 0:
            break
    return groups


def _choose_spans(words: list[list[int]], wanted: int, rng: random.Random) -> list[list[int]]:
    groups: list[list[int]] = []
    covered: set[int] = set()
    left = wanted
    for start in _in_random_order(len(words), rng):
        length = rng.choices(_SPAN_LENGTHS, cum_weights=_SPAN_WEIGHTS)[0]
        group: list[int] = []
        over_budget = False
        for index in range(start, min(start + length, len(words))):
            if index > start and words[index][0] != words[index - 1][-1] + 1:
                break
            if index in covered:
                break
            if len(words[index]) > left:
                over_budget = True
                break
            covered.add(index)
            group.extend(words[index])
            left -= len(words[index])
        if group:
            groups.append(group)
        if left == 0 or (over_budget and left < wanted):
            break
    return groups


def _choose_ngrams(words: list[list[int]], wanted: int, rng: random.Random) -> list[list[int]]:
    groups: list[list[int]] = []
    covered: set[int] = set()
    left = wanted
    for start in _in_random_order(len(words), rng):
        if left == 0:
            break
        room = 1
        while (
            room < 3
            and start + room < len(words)
            and words[start + room][0] == words[start + room - 1][-1] + 1
        ):
            room += 1
        length = rng.choices(_SPAN_LENGTHS[:room], cum_weights=_NGRAM_WEIGHTS[:room])[0]
        while length and sum(len(word) for word in words[start : start + length]) > left:
            length -= 1
        chosen = range(start, start + length)
        if length == 0 or covered & set(chosen):
            continue
        covered |= set(chosen)
        group = [position for index in chosen for position in words[index]]
        groups.append(group)
        left -= len(group)
    return groups
