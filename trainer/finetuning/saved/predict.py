"""Predictions of a fine-tuned model for a file without labels."""

import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch

from cluster import storage
from schemas.errors import ConfigError, InputError
from trainer.distributed.ranks import pick_device, single_rank
from trainer.export.tokenizer_folder import load_tokenizer
from trainer.finetuning.heads.inference import head_outputs
from trainer.finetuning.inputs.encoding import encode_questions, encode_tagged, encode_texts
from trainer.finetuning.inputs.examples import Column, Columns, TaggedExample
from trainer.finetuning.inputs.questions import read_squad
from trainer.finetuning.inputs.sentences import read_table
from trainer.finetuning.inputs.words import read_tagged
from trainer.finetuning.saved.load import LoadedTask
from trainer.finetuning.tasks.answers import best_answers

logger = logging.getLogger(__name__)

Format = Literal["tsv", "jsonl"]
_CHUNK = 4096
"""Examples that are encoded at a time, so that a large file needs no more memory than its text."""


class Predictor:
    """A fine-tuned model ready to predict."""

    def __init__(
        self,
        model: str,
        *,
        text: Column | None = None,
        pair: Column | None = None,
        word: Column | None = None,
        max_length: int | None = None,
        use_gpu: bool = False,
    ) -> None:
        """``model`` is a folder that finetune or transformers saved, or the OUTPUT of finetune.

        The columns are those of the training.

        Raises CheckpointError, InputError, ConfigError.
        """
        nested = storage.join(model, "model")
        is_output = not storage.exists(storage.join(model, "config.json")) and storage.exists(
            storage.join(nested, "config.json")
        )
        uri = nested if is_output else model
        self.task = LoadedTask(uri)
        self.tokenizer = load_tokenizer(uri)
        self.tokenizer.no_padding()
        self.settings = self.task.settings
        self.text: Column = self.settings.text if text is None else text
        self.pair = self.settings.pair if pair is None else pair
        self.word = self.settings.word if word is None else word
        self.length = max_length or self.settings.max_seq_length
        positions = self.task.model.base.config.max_positions
        if self.length > positions:
            raise ConfigError(f"--max-length: {self.length}, but the model has {positions} positions")
        self.ranks = single_rank(pick_device(use_gpu))
        self.dtype = torch.bfloat16 if use_gpu else torch.float32
        self.task.model.to(self.ranks.device)
        self.task.model.base.use_kernel(self.ranks.device, self.dtype)

    def predict(self, file: str) -> Iterator[dict[str, Any]]:
        """A prediction for each example of ``file``, in order.

        Sequences: row, label and the probability of each class, or row and value. Tokens: words and tags.
        Spans: id, answer and score. Raises InputError that names file and row.
        """
        has_examples = False
        for chunk in _chunks(self._examples(file)):
            has_examples = True
            yield from self._predict(chunk)
        if not has_examples:
            raise InputError(f"{file}: contains no example")

    def _examples(self, file: str) -> Iterator[Any]:
        if self.task.kind == "sequence":
            return read_table([file], Columns(self.text, self.pair, None))
        if self.task.kind == "tokens":
            return read_tagged([file], self.word, None)
        return read_squad([file], labeled=False)

    def _predict(self, examples: list[Any]) -> Iterator[dict[str, Any]]:
        if self.task.kind == "sequence":
            return self._sequences(examples)
        return self._tags(examples) if self.task.kind == "tokens" else self._answers(examples)

    def _sequences(self, examples: list[Any]) -> Iterator[dict[str, Any]]:
        labels = self.task.labels
        inputs = encode_texts(self.tokenizer, examples, [0.0] * len(examples), self.length)
        full = sum(len(encoded.ids) == self.length for encoded in inputs)
        if full:
            logger.warning(
                "%d of %d inputs fill %d tokens; longer ones are cut", full, len(inputs), self.length
            )
        for example, output in zip(examples, self._outputs(inputs), strict=True):
            row = example.origin.rpartition(":")[2].removeprefix(" row ")
            if not labels:
                yield {"row": int(row), "value": float(output[0])}
                continue
            shares = output.softmax(-1).tolist()
            best = max(range(len(labels)), key=shares.__getitem__)
            yield {
                "row": int(row),
                "label": labels[best],
                "probabilities": dict(zip(labels, (round(share, 6) for share in shares), strict=True)),
            }

    def _tags(self, sentences: list[TaggedExample]) -> Iterator[dict[str, Any]]:
        """Long sentences are tagged in parts, so that every word gets a tag."""
        default = "O" if "O" in self.task.labels else self.task.labels[0]
        tags = [[default] * len(sentence.words) for sentence in sentences]
        parts = [(number, 0) for number in range(len(sentences))]
        while parts:
            rest = [
                TaggedExample(sentences[n].words[first:], ("O",) * len(sentences[n].words[first:]), "")
                for n, first in parts
            ]
            inputs = encode_tagged(self.tokenizer, rest, ["O"], self.length)
            following = []
            for (number, first), encoded, output in zip(parts, inputs, self._outputs(inputs), strict=True):
                best = output.argmax(-1).tolist()
                for token, word in zip(encoded.targets[0::2], encoded.words, strict=True):
                    tags[number][first + word] = self.task.labels[best[int(token)]]
                end = first + encoded.words[-1] + 1 if encoded.words else len(sentences[number].words)
                if end < len(sentences[number].words) and len(encoded.ids) >= self.length:
                    following.append((number, end))
            parts = following
        for sentence, found in zip(sentences, tags, strict=True):
            yield {"words": list(sentence.words), "tags": found}

    def _answers(self, questions: list[Any]) -> Iterator[dict[str, Any]]:
        settings = self.settings
        inputs = encode_questions(self.tokenizer, questions, self.length, settings.stride)
        outputs = self._outputs(inputs)
        answers = best_answers(
            questions, inputs, outputs, settings.max_answer_tokens, settings.no_answer
        )  # fmt: skip
        for question, (text, score) in zip(questions, answers, strict=True):
            yield {"id": question.key, "answer": text, "score": round(score, 6)}

    def _outputs(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        return head_outputs(self.task.model, inputs, self.ranks, self.dtype)


def _chunks(examples: Iterator[Any]) -> Iterator[list[Any]]:
    chunk: list[Any] = []
    for example in examples:
        chunk.append(example)
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def lines_of(predictions: Iterator[dict[str, Any]], form: Format) -> Iterator[str]:
    """The predictions as lines: JSON objects, or TSV with a header (CoNLL columns for tags).

    Tabs and line ends inside a TSV field become spaces.
    """
    header = False
    for prediction in predictions:
        if form == "jsonl":
            yield json.dumps(prediction, ensure_ascii=False)
        elif "tags" in prediction:
            yield from map("\t".join, zip(prediction["words"], prediction["tags"], strict=True))
            yield ""
        else:
            shares = prediction.pop("probabilities", {})
            fields = prediction | {f"p({label})": share for label, share in shares.items()}
            if not header:
                yield "\t".join(map(_field, fields))
                header = True
            yield "\t".join(map(_field, fields.values()))


def _field(value: object) -> str:
    return " ".join(str(value).split()) if isinstance(value, str) else str(value)
