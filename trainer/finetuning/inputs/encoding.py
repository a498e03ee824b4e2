"""Labeled examples as packed token ids, for the three kinds of heads."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Encoding, Tokenizer

from schemas.errors import InputError
from schemas.labels import NO_LABEL
from trainer.finetuning.inputs.examples import QuestionExample, TaggedExample, TextExample
from trainer.model.microbatch import MicroBatch


@dataclass(frozen=True)
class Encoded:
    """One input of the model, and its targets.

    ``targets`` of a sequence head are the class or the number. Those of a token head are (token, tag) pairs
    in a flat tuple. Those of a span head are the first and last token of the answer, or (0, 0), the [CLS], if
    the answer is not in this window.
    """

    ids: list[int]
    type_ids: list[int]
    targets: tuple[float, ...]
    example: int
    """Index of its example."""
    offsets: tuple[tuple[int, int], ...] = ()
    """For span heads: the range of characters of each token in the context, or (-1, -1) outside of it."""
    words: tuple[int, ...] = ()
    """For token heads: the word of each target."""


def encode_texts(
    tokenizer: Tokenizer, examples: Sequence[TextExample], targets: Sequence[float], max_length: int
) -> list[Encoded]:
    """Sentences and pairs. Truncation shortens the longer of the two."""
    tokenizer.enable_truncation(max_length, strategy="longest_first")
    texts = [example.text if example.pair is None else (example.text, example.pair) for example in examples]
    encodings = tokenizer.encode_batch(texts)
    return [
        Encoded(encoding.ids, encoding.type_ids, (target,), number)
        for number, (encoding, target) in enumerate(zip(encodings, targets, strict=True))
    ]


def encode_tagged(
    tokenizer: Tokenizer, examples: Sequence[TaggedExample], tags: Sequence[str], max_length: int
) -> list[Encoded]:
    """Sentences of words. As in BERT, a word's tag is the target of its first subword.

    Words beyond the length, and words without a subword, get no target.
    """
    tokenizer.enable_truncation(max_length)
    number_of = {tag: number for number, tag in enumerate(tags)}
    encodings = tokenizer.encode_batch([list(example.words) for example in examples], is_pretokenized=True)
    encoded = []
    for number, (example, encoding) in enumerate(zip(examples, encodings, strict=True)):
        targets: list[int] = []
        firsts = first_subwords(encoding)
        for token, word in firsts:
            targets += [token, number_of[example.tags[word]]]
        words = tuple(word for _, word in firsts)
        encoded.append(Encoded(encoding.ids, encoding.type_ids, tuple(targets), number, words=words))
    return encoded


def first_subwords(encoding: Encoding) -> list[tuple[int, int]]:
    """(token, word) for the first subword of each word of a pre-split sentence."""
    firsts, last = [], None
    for token, word in enumerate(encoding.word_ids):
        if word is not None and word != last:
            firsts.append((token, word))
        last = word
    return firsts


def encode_questions(
    tokenizer: Tokenizer, examples: Sequence[QuestionExample], max_length: int, stride: int
) -> list[Encoded]:
    """Questions with overlapping windows of their contexts. ``stride`` is the overlap in tokens.

    Raises InputError for a question that leaves no room for its context.
    """
    tokenizer.no_truncation()
    for example in examples:
        used = len(tokenizer.encode(example.question).ids) + 1
        if max_length - used <= stride:
            raise InputError(
                f"{example.origin}: a question of {used} tokens is too long for max_seq_length {max_length};"
                " raise it, or remove the question"
            )
    tokenizer.enable_truncation(max_length, stride=stride, strategy="only_second")
    pairs = [(example.question, example.context) for example in examples]
    encoded = []
    for number, first in enumerate(tokenizer.encode_batch(pairs)):
        windows = (first, *first.overflowing)
        encoded += [_window(window, examples[number], number) for window in windows]
    return encoded


def _window(encoding: Encoding, example: QuestionExample, number: int) -> Encoded:
    inside = [part == 1 for part in encoding.sequence_ids]
    offsets = tuple(place if here else (-1, -1) for place, here in zip(encoding.offsets, inside, strict=True))
    targets: tuple[float, ...] = (0, 0)
    if example.answers:
        end = example.start + len(example.answers[0])
        first = [i for i, (low, high) in enumerate(offsets) if low <= example.start < high]
        last = [i for i, (low, high) in enumerate(offsets) if low < end <= high]
        if first and last:
            targets = (first[0], last[-1])
    return Encoded(encoding.ids, encoding.type_ids, targets, number, offsets)


def pack_encoded(inputs: Sequence[Encoded]) -> MicroBatch:
    """The inputs, one after another, without masked positions or pair labels."""
    lengths = [len(encoded.ids) for encoded in inputs]
    count = len(inputs)
    none = torch.zeros(0, dtype=torch.int64)
    return MicroBatch(
        input_ids=torch.tensor([token for encoded in inputs for token in encoded.ids]),
        token_type_ids=torch.tensor([segment for encoded in inputs for segment in encoded.type_ids]),
        position_ids=torch.cat([torch.arange(length) for length in lengths]),
        cu_seqlens=torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
        max_seqlen=max(lengths),
        masked_index=none,
        masked_ids=none,
        next_sentence_labels=torch.full((count,), NO_LABEL),
        sample_ids=torch.tensor([encoded.example for encoded in inputs]),
        lang_ids=torch.zeros(count, dtype=torch.int64),
    )
