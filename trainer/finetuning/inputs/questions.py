"""Questions with contexts and answers from SQuAD JSON, and from tables with its columns."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from schemas.errors import InputError
from schemas.json_text import parse_json
from trainer.finetuning.inputs.cells import place_of, structure_of, text_of
from trainer.finetuning.inputs.examples import QuestionExample
from trainer.finetuning.inputs.tables import is_structured, open_table
from trainer.finetuning.inputs.text_files import plain_suffix, read_text


def read_squad(uris: Sequence[str], *, labeled: bool = True) -> Iterator[QuestionExample]:
    """Questions of SQuAD 1.1 and 2.0 files, and of tables with SQuAD's columns.

    A table has the columns question, context and (if ``labeled``) answers, and may have id. Raises
    InputError that names file and place.
    """
    for uri in uris:
        squad = None
        if plain_suffix(uri) == ".json" or not is_structured(uri):
            with suppress(ValueError):
                squad = parse_json(read_text(uri))
        if is_structured(uri) and not _is_squad(squad):
            yield from _question_rows(uri, labeled=labeled)
            continue
        try:
            if squad is None:
                squad = parse_json(read_text(uri))
            articles = squad["data"]
            for a, article in enumerate(articles):
                for p, paragraph in enumerate(article["paragraphs"]):
                    for question in paragraph["qas"]:
                        origin = f"{uri}: data.{a}.paragraphs.{p}: {question.get('id')}"
                        context = text_of(paragraph["context"], origin, "context")
                        row = {**question, "answers": _answers(question.get("answers"), origin)}
                        yield _question(row, context, origin)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{uri}: not in the format of SQuAD: {error!r}") from error


def _is_squad(content: object) -> bool:
    """Whether a JSON file has SQuAD's nested form. Files without a "data" are tables, or nothing."""
    articles = content.get("data") if isinstance(content, dict) else None
    return isinstance(articles, list) and any(isinstance(a, dict) and "paragraphs" in a for a in articles)


def _question_rows(uri: str, *, labeled: bool) -> Iterator[QuestionExample]:
    table = open_table(uri, header=True)
    names = ("question", "context", "answers") if labeled else ("question", "context")
    places = [place_of(uri, table.names, name) or 0 for name in names]
    key = table.names.index("id") if "id" in table.names else None
    for number, (origin, fields) in enumerate(table.rows):
        if max(places) >= len(fields):
            raise InputError(f"{origin}: {len(fields)} fields are too few for SQuAD's columns")
        question, context = (
            text_of(fields[place], origin, name) for place, name in zip(places[:2], names, strict=False)
        )
        row = {
            "id": str(number) if key is None else fields[key],
            "question": question,
            "answers": _answers(fields[places[2]], origin) if labeled else [],
        }
        yield _question(row, context, origin)


def _answers(value: Any, origin: str) -> list[dict[str, Any]]:
    """Answers as SQuAD's list, from that list, a mapping of lists (datasets), texts, or one text.

    In text, a list or a mapping is JSON or Python's form of it.
    """
    if isinstance(value, str) and value.lstrip().startswith(("[", "{")):
        value = structure_of(value)
    if value is None or value == "":
        return []
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        texts, starts = value["text"], value.get("answer_start") or [None] * len(value["text"])
        if len(texts) != len(starts):
            raise InputError(f"{origin}: {len(texts)} answers, but {len(starts)} places of answers")
        value = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    answers: list[dict[str, Any]] = [
        {"text": each} if isinstance(each, str) else each
        for each in (value if isinstance(value, list) else [value])
    ]
    for answer in answers:
        if not isinstance(answer, dict) or not isinstance(answer.get("text"), str) or not answer["text"]:
            raise InputError(f"{origin}: answers must have texts, got {answer!r:.60}")
        if not isinstance(answer.get("answer_start"), int):
            answer["answer_start"] = -1  # its text is searched for
    return answers


def _question(question: dict[str, Any], context: str, origin: str) -> QuestionExample:
    answers = question["answers"]
    texts = tuple(answer["text"] for answer in answers)
    start = int(answers[0]["answer_start"]) if texts else -1
    if texts and (start < 0 or context[start : start + len(texts[0])] != texts[0]):
        # Some files count in a context with other white space, so search for the answer's text.
        place = context.find(texts[0])
        if place < 0:
            raise InputError(f"{origin}: the answer {texts[0]!r} is not in the context")
        start = place
    asked = text_of(question["question"], origin, "question")
    return QuestionExample(str(question["id"]), asked, context, texts, start, origin)
