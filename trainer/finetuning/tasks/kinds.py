"""The four kinds of tasks: how to read, encode, train and evaluate them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from schemas.errors import ConfigError, InputError
from trainer.finetuning.config import METRICS, FinetuneConfig, Metric
from trainer.finetuning.heads.model import HeadKind
from trainer.finetuning.inputs.encoding import Encoded, encode_questions, encode_tagged, encode_texts
from trainer.finetuning.inputs.examples import Columns, QuestionExample, TaggedExample, TextExample
from trainer.finetuning.inputs.label_checks import (
    check_answers,
    check_classes,
    check_tags,
    is_first_row,
    number_of,
)
from trainer.finetuning.inputs.questions import read_squad
from trainer.finetuning.inputs.sentences import read_table
from trainer.finetuning.inputs.words import read_tagged
from trainer.finetuning.tasks import metrics as task_metrics
from trainer.finetuning.tasks.answers import best_answers

Metrics = dict[str, float]


@dataclass(frozen=True)
class EncodedSet:
    """The examples of one set and their inputs. An example may have several inputs."""

    examples: Sequence[TextExample | TaggedExample | QuestionExample]
    inputs: list[Encoded]


class TaskKind(ABC):
    """A task, set up from its config and training files."""

    head: HeadKind
    outputs: int
    labels: Sequence[str] = ()
    """Names of the outputs, empty if they have none."""
    scale: tuple[float, float] = (0.0, 1.0)
    """Mean and standard deviation of the labels. The head learns normalized numbers."""
    no_answer = False
    """spans: whether questions of the training files may have no answer."""

    def __init__(self, config: FinetuneConfig, tokenizer: Tokenizer) -> None:
        self.config, self.tokenizer = config, tokenizer

    @property
    def metric(self) -> Metric:
        """The metric that chooses the best epoch."""
        return self.config.metric or METRICS[self.config.task][0]

    @abstractmethod
    def read(self, files: Sequence[str], limit: int | None = None) -> EncodedSet:
        """The examples of ``files``, encoded. Raises InputError that names file and line."""

    def read_test(self, files: Sequence[str], limit: int | None = None) -> dict[str, EncodedSet]:
        """The parts of a test set that are evaluated separately, by name. "" is the whole set."""
        return {"": self.read(files, limit)}

    @abstractmethod
    def loss(self, output: Tensor, inputs: Sequence[Encoded]) -> Tensor:
        """The sum of the losses of all targets, from the outputs of the head."""

    def weight(self, inputs: Sequence[Encoded]) -> int:
        """The number of targets. The loss of a batch is the mean over them."""
        return len(inputs)

    @abstractmethod
    def measure(self, data: EncodedSet, outputs: Sequence[Tensor]) -> Metrics:
        """The metrics of the task. ``outputs`` are fp32, one for each input, in order."""


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
            raise InputError(f"{files[0]}: contains no example")
        return rows

    def read(self, files: Sequence[str], limit: int | None = None) -> EncodedSet:
        """See TaskKind."""
        return self._encoded(self._rows(files)[:limit])

    def read_test(self, files: Sequence[str], limit: int | None = None) -> dict[str, EncodedSet]:
        """See TaskKind: a part for each value of the column ``split_test_by``."""
        rows = self._rows(files, test=True)
        names = sorted({row.group for row in rows})
        return {name: self._encoded([row for row in rows if row.group == name][:limit]) for name in names}

    def _encoded(self, rows: list[TextExample]) -> EncodedSet:
        targets = [self._target(row) for row in rows]
        return EncodedSet(rows, encode_texts(self.tokenizer, rows, targets, self.config.max_seq_length))

    @abstractmethod
    def _target(self, row: TextExample) -> float:
        """The target of the head. Raises InputError that names file and line."""


class Classification(_Sentences):
    """Classes are the labels of the training files, in sorted order."""

    def __init__(self, config: FinetuneConfig, tokenizer: Tokenizer) -> None:
        super().__init__(config, tokenizer)
        self.labels = check_classes(self._rows(config.files.train), config.min_class_examples)
        self._number_of = {label: number for number, label in enumerate(self.labels)}
        self.outputs = len(self.labels)

    def _target(self, row: TextExample) -> float:
        if row.label not in self._number_of:
            hint = "; is the line a header? Give the columns by name" if is_first_row(row.origin) else ""
            raise InputError(f"{row.origin}: label {row.label!r} is not in the training files{hint}")
        return self._number_of[row.label]

    def loss(self, output: Tensor, inputs: Sequence[Encoded]) -> Tensor:
        """See TaskKind."""
        targets = torch.tensor([int(encoded.targets[0]) for encoded in inputs], device=output.device)
        return torch.nn.functional.cross_entropy(output.float(), targets, reduction="sum")

    def measure(self, data: EncodedSet, outputs: Sequence[Tensor]) -> Metrics:
        """See TaskKind. f1 is that of the second class, in sorted order."""
        expected = np.array([int(encoded.targets[0]) for encoded in data.inputs])
        guessed = torch.stack(list(outputs)).argmax(-1).numpy()
        return {
            "accuracy": task_metrics.accuracy(expected.tolist(), guessed.tolist()),
            "matthews": task_metrics.matthews(expected, guessed),
            "f1": task_metrics.f1(expected, guessed),
            "macro_f1": task_metrics.macro_f1(expected, guessed),
        }


class Regression(_Sentences):
    """Labels are numbers, normalized with the mean and standard deviation of the training files."""

    outputs = 1

    def __init__(self, config: FinetuneConfig, tokenizer: Tokenizer) -> None:
        super().__init__(config, tokenizer)
        values = np.array([number_of(row) for row in self._rows(config.files.train)])
        self.scale = (float(values.mean()), float(values.std()) or 1.0)

    def _target(self, row: TextExample) -> float:
        return (number_of(row) - self.scale[0]) / self.scale[1]

    def loss(self, output: Tensor, inputs: Sequence[Encoded]) -> Tensor:
        """See TaskKind."""
        targets = torch.tensor([encoded.targets[0] for encoded in inputs], device=output.device)
        return torch.nn.functional.mse_loss(output.float().squeeze(-1), targets, reduction="sum")

    def measure(self, data: EncodedSet, outputs: Sequence[Tensor]) -> Metrics:
        """See TaskKind."""
        expected = np.array([encoded.targets[0] for encoded in data.inputs])
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
        self.labels = sorted(
            {tag for sentence in self._sentences(config.files.train) for tag in sentence.tags}
        )
        self.outputs = len(self.labels)
        self._has_entities = task_metrics.has_entities(self.labels)
        if config.metric == "entity_f1" and not self._has_entities:
            raise ConfigError(
                "metric: entity_f1 needs tags that start with B, I, E or S, but the tags are"
                f" {', '.join(self.labels)[:80]}; set metric to accuracy"
            )

    @property
    def metric(self) -> Metric:
        """See TaskKind: accuracy for tags that are not entities, such as parts of speech."""
        return self.config.metric or ("entity_f1" if self._has_entities else "accuracy")

    def _sentences(self, files: Sequence[str]) -> list[TaggedExample]:
        sentences = list(read_tagged(files, self.config.files.word, self.config.files.tag))
        if not sentences:
            raise InputError(f"{files[0]}: contains no sentence")
        check_tags(sentences)
        return sentences

    def read(self, files: Sequence[str], limit: int | None = None) -> EncodedSet:
        """See TaskKind. A tag that the training files lack counts in the metrics and is never predicted."""
        examples = self._sentences(files)[:limit]
        known = [
            *self.labels,
            *sorted({tag for example in examples for tag in example.tags} - set(self.labels)),
        ]
        return EncodedSet(
            examples, encode_tagged(self.tokenizer, examples, known, self.config.max_seq_length)
        )

    def loss(self, output: Tensor, inputs: Sequence[Encoded]) -> Tensor:
        """See TaskKind. The targets are the words."""
        places: list[int] = []
        targets: list[int] = []
        start = 0
        for encoded in inputs:
            places += [start + int(token) for token in encoded.targets[0::2]]
            targets += [int(tag) for tag in encoded.targets[1::2]]
            start += len(encoded.ids)
        chosen = output[torch.tensor(places, dtype=torch.int64, device=output.device)].float()
        return torch.nn.functional.cross_entropy(
            chosen, torch.tensor(targets, dtype=torch.int64, device=output.device), reduction="sum"
        )

    def weight(self, inputs: Sequence[Encoded]) -> int:
        """See TaskKind: words, at least one."""
        return max(sum(len(encoded.targets) // 2 for encoded in inputs), 1)

    def measure(self, data: EncodedSet, outputs: Sequence[Tensor]) -> Metrics:
        """See TaskKind. Truncated words, and words without a subword, count as O."""
        expected, guessed = [], []
        for encoded, output in zip(data.inputs, outputs, strict=True):
            example = data.examples[encoded.example]
            if not isinstance(example, TaggedExample):
                raise TypeError("token heads are evaluated on sentences of words")
            tags = ["O"] * len(example.tags)
            best = output.argmax(-1).tolist()
            for token, word in zip(encoded.targets[0::2], encoded.words, strict=True):
                tags[word] = self.labels[best[int(token)]]
            expected.append(example.tags)
            guessed.append(tags)
        flat = [tag for tags in expected for tag in tags]
        metrics = {"accuracy": task_metrics.accuracy(flat, [tag for tags in guessed for tag in tags])}
        if self._has_entities:
            metrics["entity_f1"] = task_metrics.entity_f1(expected, guessed)
        return metrics


class Spans(TaskKind):
    """Answers as spans of a context, or no answer (SQuAD 2.0)."""

    head: HeadKind = "spans"
    outputs = 2

    def __init__(self, config: FinetuneConfig, tokenizer: Tokenizer) -> None:
        super().__init__(config, tokenizer)
        self.no_answer = any(not example.answers for example in read_squad(config.files.train))

    def read(self, files: Sequence[str], limit: int | None = None) -> EncodedSet:
        """See TaskKind."""
        examples = list(read_squad(files))[:limit]
        if not examples:
            raise InputError(f"{files[0]}: contains no question")
        check_answers(examples, files)
        config = self.config
        return EncodedSet(
            examples, encode_questions(self.tokenizer, examples, config.max_seq_length, config.stride)
        )

    def loss(self, output: Tensor, inputs: Sequence[Encoded]) -> Tensor:
        """See TaskKind. A window's loss is the mean cross-entropy of start and end over its tokens."""
        losses = []
        windows = torch.split(output, [len(encoded.ids) for encoded in inputs])
        for logits, encoded in zip(windows, inputs, strict=True):
            targets = torch.tensor([int(place) for place in encoded.targets], device=output.device)
            losses.append(torch.nn.functional.cross_entropy(logits.float().T, targets))
        return torch.stack(losses).sum()

    def measure(self, data: EncodedSet, outputs: Sequence[Tensor]) -> Metrics:
        """See TaskKind."""
        questions = [example for example in data.examples if isinstance(example, QuestionExample)]
        answers = best_answers(questions, data.inputs, outputs, self.config.max_answer_tokens, self.no_answer)
        pairs = [(text, question.answers) for (text, _), question in zip(answers, questions, strict=True)]
        return {
            "answer_f1": float(np.mean([task_metrics.answer_f1(text, right) for text, right in pairs])),
            "exact": float(np.mean([task_metrics.exact_answer(text, right) for text, right in pairs])),
        }


KINDS: dict[str, type[TaskKind]] = {
    "classification": Classification,
    "regression": Regression,
    "tokens": Tokens,
    "spans": Spans,
}
