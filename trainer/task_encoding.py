"""Labelled examples as packed token ids, for the three kinds of heads."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Encoding, Tokenizer

from cluster import storage
from schemas.errors import InputError
from schemas.shards import NO_LABEL
from trainer.microbatch import MicroBatch
from trainer.task_data import QuestionExample, TaggedExample, TextExample


@dataclass(frozen=True)
class Encoded:
    """One input of the model and what it is trained on.

    ``targets`` is the class or number for a sequence head; (token, tag) pairs, flat, for a token head;
    first and last token of the answer for a span head, (0, 0), the [CLS], when it is not in here.
    """

    ids: list[int]
    type_ids: list[int]
    targets: tuple[float, ...]
    example: int
    """Number of the example it comes from."""
    offsets: tuple[tuple[int, int], ...] = ()
    """For span heads: characters of the context at each token; (-1, -1) outside of the context."""


def load_tokenizer(uri: str) -> Tokenizer:
    """The tokenizer.json in the folder ``uri``. Raises InputError."""
    file = storage.join(uri, "tokenizer.json")
    try:
        raw = storage.read_bytes(file)
    except FileNotFoundError as error:
        raise InputError(f"{file}: no such file; say where the tokenizer is") from error
    tokenizer: Tokenizer = Tokenizer.from_str(raw.decode())
    tokenizer.no_padding()
    return tokenizer


def encode_texts(
    tokenizer: Tokenizer, examples: Sequence[TextExample], targets: Sequence[float], max_length: int
) -> list[Encoded]:
    """Sentences and pairs; what is too long is cut from the longer of the two."""
    tokenizer.enable_truncation(max_length, strategy="longest_first")
    texts = [one.text if one.pair is None else (one.text, one.pair) for one in examples]
    encodings = tokenizer.encode_batch(texts)
    return [
        Encoded(one.ids, one.type_ids, (target,), number)
        for number, (one, target) in enumerate(zip(encodings, targets, strict=True))
    ]


def encode_tagged(
    tokenizer: Tokenizer, examples: Sequence[TaggedExample], tags: Sequence[str], max_length: int
) -> list[Encoded]:
    """Sentences of words; a word's tag stands at its first piece, as in BERT.

    Words beyond the length, and words without a piece, get no target.
    """
    tokenizer.enable_truncation(max_length)
    number_of = {tag: number for number, tag in enumerate(tags)}
    encodings = tokenizer.encode_batch([list(one.words) for one in examples], is_pretokenized=True)
    encoded = []
    for number, (example, one) in enumerate(zip(examples, encodings, strict=True)):
        targets: list[int] = []
        for token, word in first_pieces(one):
            targets += [token, number_of[example.tags[word]]]
        encoded.append(Encoded(one.ids, one.type_ids, tuple(targets), number))
    return encoded


def first_pieces(encoding: Encoding) -> list[tuple[int, int]]:
    """(token, word) for the first piece of each word of a pre-split sentence."""
    found, last = [], None
    for token, word in enumerate(encoding.word_ids):
        if word is not None and word != last:
            found.append((token, word))
        last = word
    return found


def encode_questions(
    tokenizer: Tokenizer, examples: Sequence[QuestionExample], max_length: int, stride: int
) -> list[Encoded]:
    """Questions with windows of their contexts, ``stride`` tokens of which are in the next one too.

    Raises InputError for a question that leaves no room for its context.
    """
    tokenizer.no_truncation()
    for example in examples:
        used = len(tokenizer.encode(example.question).ids) + 1
        if max_length - used <= stride:
            raise InputError(f"{example.origin}: a question of {used} tokens leaves no room in {max_length}")
    tokenizer.enable_truncation(max_length, stride=stride, strategy="only_second")
    pairs = [(example.question, example.context) for example in examples]
    encoded = []
    for number, first in enumerate(tokenizer.encode_batch(pairs)):
        encoded += [_window(one, examples[number], number) for one in (first, *first.overflowing)]
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
    lengths = [len(one.ids) for one in inputs]
    count = len(inputs)
    none = torch.zeros(0, dtype=torch.int64)
    return MicroBatch(
        input_ids=torch.tensor([token for one in inputs for token in one.ids]),
        token_type_ids=torch.tensor([kind for one in inputs for kind in one.type_ids]),
        position_ids=torch.cat([torch.arange(length) for length in lengths]),
        cu_seqlens=torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
        max_seqlen=max(lengths),
        masked_index=none,
        masked_ids=none,
        next_sentence_labels=torch.full((count,), NO_LABEL),
        sample_ids=torch.tensor([one.example for one in inputs]),
        lang_ids=torch.zeros(count, dtype=torch.int64),
    )
