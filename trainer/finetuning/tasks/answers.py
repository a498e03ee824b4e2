"""The best answer to each question, from the scores of a span head over all windows of its context."""

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.finetuning.inputs.encoding import Encoded
from trainer.finetuning.inputs.examples import QuestionExample


def best_answers(
    questions: Sequence[QuestionExample],
    inputs: Sequence[Encoded],
    outputs: Sequence[Tensor],
    max_tokens: int,
    may_be_empty: bool,
) -> list[tuple[str, float]]:
    """Text and score of the best span of at most ``max_tokens`` tokens, for each question.

    ``outputs`` are [length, 2] for each of the ``inputs``: scores of start and end. With ``may_be_empty``
    the answer is "" where the lowest score of [CLS] over the windows is higher (SQuAD 2.0).
    """
    best: dict[int, tuple[str, float]] = {}
    null: dict[int, float] = {}
    for encoded, output in zip(inputs, outputs, strict=True):
        number = encoded.example
        score, low, high = _best_span(output, encoded, max_tokens)
        null[number] = min(null.get(number, torch.inf), float(output[0].sum()))
        if score > best.get(number, ("", -torch.inf))[1]:
            best[number] = (questions[number].context[low:high], score)
    answers = []
    for number in range(len(questions)):
        text, score = best.get(number, ("", -torch.inf))
        empty = may_be_empty and null.get(number, torch.inf) > score
        answers.append(("", null[number]) if empty else (text, score))
    return answers


def _best_span(output: Tensor, encoded: Encoded, max_tokens: int) -> tuple[float, int, int]:
    """Score, first character, and one past the last character of the best answer in the context."""
    inside = torch.tensor([low >= 0 for low, _ in encoded.offsets])
    start = output[:, 0].masked_fill(~inside, -torch.inf)
    end = output[:, 1].masked_fill(~inside, -torch.inf)
    size = len(start)
    reach = torch.ones(size, size, dtype=torch.bool).triu().tril(max_tokens - 1)
    scores = (start[:, None] + end[None, :]).masked_fill(~reach, -torch.inf)
    place = int(scores.argmax())
    first, last = divmod(place, size)
    return float(scores.flatten()[place]), encoded.offsets[first][0], encoded.offsets[last][1]
