"""The four kinds of tasks: how their files are read, encoded, trained and measured."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from schemas.errors import InputError
from trainer import task_metrics
from trainer.finetune_config import FinetuneConfig
from trainer.task_data import (
    Columns,
    QuestionExample,
    TaggedExample,
    TextExample,
    read_conll,
    read_squad,
    read_table,
)
from trainer.task_encoding import Encoded, encode_questions, encode_tagged, encode_texts
from trainer.task_model import HeadKind

Figures = dict[str, float]


@dataclass(frozen=True)
class EncodedSet:
    """Inputs made of the examples of one set; an example may have several, or none of its targets."""

    examples: Sequence[TextExample | TaggedExample | QuestionExample]
    inputs: list[Encoded]


class TaskKind(ABC):
    """A task, made from its config and training files."""

    head: HeadKind
    outputs: int
    labels: Sequence[str] = ()
    """Names of the outputs, where they have names."""
    scale: tuple[float, float] = (0.0, 1.0)
    """Mean and deviation of the numbers that the head learns."""

    def __init__(self, config: FinetuneConfig, tokenizer: Tokenizer) -> None:
        self.config, self.tokenizer = config, tokenizer

    @abstractmethod
    def read(self, files: Sequence[str], limit: int | None = None) -> EncodedSet:
        """The examples of ``files``, encoded. Raises InputError that names file and line."""

    def read_test(self, files: Sequence[str]) -> dict[str, EncodedSet]:
        """The parts of a test set that are measured apart, by name; "" for the whole set."""
        return {"": self.read(files)}

    @abstractmethod
    def loss(self, output: Tensor, inputs: Sequence[Encoded]) -> Tensor:
        """Mean loss of a batch, from what the head said about it."""

    @abstractmethod
    def measure(self, found: EncodedSet, outputs: Sequence[Tensor]) -> Figures:
        """The task's metrics; ``outputs`` are fp32, one for each input, in order."""


class _Sentences(TaskKind):
    """Sentences and pairs."""

    head: HeadKind = "sequence"

    def _rows(self, files: Sequence[str], *, test: bool = False) -> list[TextExample]:
        of = self.config.files
        columns = Columns(
            of.text,
            of.pair,
            of.label,
            of.split_test_by if test else None,
            {} if test else of.only,
            of.same_labels,
            of.skip_bad_lines,
        )
        rows = list(read_table(files, columns))
        if not rows:
            raise InputError(f"{files[0]}: no example in it")
        return rows

    def read(self, files: Sequence[str], limit: int | None = None) -> EncodedSet:
        """See TaskKind."""
        return self._encoded(self._rows(files)[:limit])

    def read_test(self, files: Sequence[str]) -> dict[str, EncodedSet]:
        """See TaskKind: a part for each value of the column ``split_test_by``."""
        rows = self._rows(files, test=True)
        names = sorted({row.group for row in rows})
        return {name: self._encoded([row for row in rows if row.group == name]) for name in names}

    def _encoded(self, rows: list[TextExample]) -> EncodedSet:
        targets = [self._target(row) for row in rows]
        return EncodedSet(rows, encode_texts(self.tokenizer, rows, targets, self.config.max_seq_length))

    @abstractmethod
    def _target(self, row: TextExample) -> float:
        """What the head is to say. Raises InputError that names file and line."""


class Classification(_Sentences):
    """Classes are the labels of the training files, in sorted order."""

    def __init__(self, config: FinetuneConfig, tokenizer: Tokenizer) -> None:
        super().__init__(config, tokenizer)
        self.labels = sorted({row.label for row in self._rows(config.files.train)})
        self._number_of = {label: number for number, label in enumerate(self.labels)}
        self.outputs = len(self.labels)

    def _target(self, row: TextExample) -> float:
        if row.label not in self._number_of:
            raise InputError(f"{row.origin}: label {row.label!r} is not in the training files")
        return self._number_of[row.label]

    def loss(self, output: Tensor, inputs: Sequence[Encoded]) -> Tensor:
        """See TaskKind."""
        targets = torch.tensor([int(one.targets[0]) for one in inputs], device=output.device)
        return torch.nn.functional.cross_entropy(output.float(), targets)

    def measure(self, found: EncodedSet, outputs: Sequence[Tensor]) -> Figures:
        """See TaskKind; f1 is that of the second class, in sorted order."""
        expected = np.array([int(one.targets[0]) for one in found.inputs])
        guessed = torch.stack(list(outputs)).argmax(-1).numpy()
        return {
            "accuracy": task_metrics.accuracy(expected.tolist(), guessed.tolist()),
            "matthews": task_metrics.matthews(expected, guessed),
            "f1": task_metrics.f1(expected, guessed),
            "macro_f1": task_metrics.macro_f1(expected, guessed),
        }


class Regression(_Sentences):
    """Labels are numbers; they are scaled to mean 0 and deviation 1 of the training files."""

    outputs = 1

    def __init__(self, config: FinetuneConfig, tokenizer: Tokenizer) -> None:
        super().__init__(config, tokenizer)
        values = np.array([self._number(row) for row in self._rows(config.files.train)])
        self.scale = (float(values.mean()), float(values.std()) or 1.0)

    @staticmethod
    def _number(row: TextExample) -> float:
        try:
            return float(row.label)
        except ValueError as error:
            raise InputError(f"{row.origin}: label {row.label!r} is not a number") from error

    def _target(self, row: TextExample) -> float:
        return (self._number(row) - self.scale[0]) / self.scale[1]

    def loss(self, output: Tensor, inputs: Sequence[Encoded]) -> Tensor:
        """See TaskKind."""
        targets = torch.tensor([one.targets[0] for one in inputs], device=output.device)
        return torch.nn.functional.mse_loss(output.float().squeeze(-1), targets)

    def measure(self, found: EncodedSet, outputs: Sequence[Tensor]) -> Figures:
        """See TaskKind."""
        expected = np.array([one.targets[0] for one in found.inputs])
        guessed = torch.stack(list(outputs)).squeeze(-1).numpy()
        return {
            "pearson": task_metrics.pearson(expected, guessed),
            "spearman": task_metrics.spearman(expected, guessed),
        }


class Tokens(TaskKind):
    """Tags of words."""

    head: HeadKind = "tokens"

    def __init__(self, config: FinetuneConfig, tokenizer: Tokenizer) -> None:
        super().__init__(config, tokenizer)
        self.labels = sorted({tag for one in self._sentences(config.files.train) for tag in one.tags})
        self.outputs = len(self.labels)

    def _sentences(self, files: Sequence[str]) -> list[TaggedExample]:
        found = list(read_conll(files, self.config.files.word, self.config.files.tag))
        if not found:
            raise InputError(f"{files[0]}: no sentence in it")
        return found

    def read(self, files: Sequence[str], limit: int | None = None) -> EncodedSet:
        """See TaskKind. A tag that training does not have is measured, and never found."""
        examples = self._sentences(files)[:limit]
        known = [*self.labels, *sorted({tag for one in examples for tag in one.tags} - set(self.labels))]
        return EncodedSet(
            examples, encode_tagged(self.tokenizer, examples, known, self.config.max_seq_length)
        )

    def loss(self, output: Tensor, inputs: Sequence[Encoded]) -> Tensor:
        """See TaskKind; the mean is over words."""
        places: list[int] = []
        targets: list[int] = []
        start = 0
        for one in inputs:
            places += [start + int(token) for token in one.targets[0::2]]
            targets += [int(tag) for tag in one.targets[1::2]]
            start += len(one.ids)
        chosen = output[torch.tensor(places, dtype=torch.int64, device=output.device)].float()
        losses = torch.nn.functional.cross_entropy(
            chosen, torch.tensor(targets, dtype=torch.int64, device=output.device), reduction="sum"
        )
        return losses / max(len(targets), 1)

    def measure(self, found: EncodedSet, outputs: Sequence[Tensor]) -> Figures:
        """See TaskKind; words that were cut off, or have no piece, count as O."""
        expected, guessed = [], []
        for one, output in zip(found.inputs, outputs, strict=True):
            example = found.examples[one.example]
            if not isinstance(example, TaggedExample):
                raise TypeError("token heads are measured on sentences of words")
            tags = ["O"] * len(example.tags)
            best = output.argmax(-1).tolist()
            for token, word in zip(one.targets[0::2], self._words(one, example), strict=True):
                tags[word] = self.labels[best[int(token)]]
            expected.append(example.tags)
            guessed.append(tags)
        flat = [tag for tags in expected for tag in tags]
        return {
            "entity_f1": task_metrics.entity_f1(expected, guessed),
            "accuracy": task_metrics.accuracy(flat, [tag for tags in guessed for tag in tags]),
        }

    def _words(self, one: Encoded, example: TaggedExample) -> list[int]:
        """The word of each target: all of them in order, unless a word has no piece."""
        if len(one.targets) == 2 * len(example.words):
            return list(range(len(example.words)))
        encoding = self.tokenizer.encode(list(example.words), is_pretokenized=True)
        words = [word for word in encoding.word_ids if word is not None]
        return list(dict.fromkeys(words))[: len(one.targets) // 2]


class Spans(TaskKind):
    """Answers as spans of a context, or none (SQuAD 2.0)."""

    head: HeadKind = "spans"
    outputs = 2

    def read(self, files: Sequence[str], limit: int | None = None) -> EncodedSet:
        """See TaskKind."""
        examples = list(read_squad(files))[:limit]
        if not examples:
            raise InputError(f"{files[0]}: no question in it")
        config = self.config
        return EncodedSet(
            examples, encode_questions(self.tokenizer, examples, config.max_seq_length, config.stride)
        )

    def loss(self, output: Tensor, inputs: Sequence[Encoded]) -> Tensor:
        """See TaskKind; the mean of start and end, each a choice among the tokens of its window."""
        losses = []
        windows = torch.split(output, [len(one.ids) for one in inputs])
        for logits, one in zip(windows, inputs, strict=True):
            targets = torch.tensor([int(place) for place in one.targets], device=output.device)
            losses.append(torch.nn.functional.cross_entropy(logits.float().T, targets))
        return torch.stack(losses).mean()

    def measure(self, found: EncodedSet, outputs: Sequence[Tensor]) -> Figures:
        """See TaskKind."""
        best: dict[int, tuple[float, str]] = {}
        null: dict[int, float] = {}
        for one, output in zip(found.inputs, outputs, strict=True):
            example = found.examples[one.example]
            if not isinstance(example, QuestionExample):
                raise TypeError("span heads are measured on questions")
            score, low, high = self._best_span(output, one)
            null[one.example] = min(null.get(one.example, np.inf), float(output[0].sum()))
            if score > best.get(one.example, (-np.inf, ""))[0]:
                best[one.example] = (score, example.context[low:high])
        exact, f1 = [], []
        may_be_empty = any(isinstance(e, QuestionExample) and not e.answers for e in found.examples)
        for number, example in enumerate(found.examples):
            if isinstance(example, QuestionExample):
                score, text = best.get(number, (-np.inf, ""))
                text = "" if may_be_empty and null.get(number, np.inf) > score else text
                exact.append(task_metrics.exact_answer(text, example.answers))
                f1.append(task_metrics.answer_f1(text, example.answers))
        return {"answer_f1": float(np.mean(f1)), "exact": float(np.mean(exact))}

    def _best_span(self, output: Tensor, one: Encoded) -> tuple[float, int, int]:
        """Score, first and one past the last character of the best answer within the context."""
        inside = torch.tensor([low >= 0 for low, _ in one.offsets])
        start = output[:, 0].masked_fill(~inside, -torch.inf)
        end = output[:, 1].masked_fill(~inside, -torch.inf)
        size = len(start)
        reach = torch.ones(size, size, dtype=torch.bool).triu().tril(self.config.max_answer_tokens - 1)
        scores = (start[:, None] + end[None, :]).masked_fill(~reach, -torch.inf)
        place = int(scores.argmax())
        first, last = divmod(place, size)
        return float(scores.flatten()[place]), one.offsets[first][0], one.offsets[last][1]


KINDS: dict[str, type[TaskKind]] = {
    "classification": Classification,
    "regression": Regression,
    "tokens": Tokens,
    "spans": Spans,
}
