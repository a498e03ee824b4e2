"""Readers of labeled files: layouts, compression, and errors with their place."""

import dataclasses
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import InputError
from trainer.finetuning.inputs.examples import Columns
from trainer.finetuning.inputs.questions import read_squad
from trainer.finetuning.inputs.sentences import read_table
from trainer.finetuning.inputs.words import read_conll


def write(folder: Path, text: str, name: str = "file.tsv") -> str:
    path = folder / name
    raw = text.encode()
    packers: dict[str, Callable[[bytes], bytes]] = {".xz": lzma.compress, ".gz": gzip.compress}
    path.write_bytes(packers.get(path.suffix, bytes)(raw))
    return str(path)


@pytest.mark.parametrize("name", ["file.tsv", "file.tsv.xz", "file.tsv.gz"])
def test_columns_by_number(name: str, tmp_path: Path) -> None:
    uri = write(tmp_path, 'gj04\t1\t\tHe said "no.\ngj04\t0\t*\tNo it.\n', name)
    found = list(read_table([uri], Columns(3, None, 1)))
    assert [(one.text, one.label, one.origin) for one in found] == [
        ('He said "no.', "1", f"{uri}:1"),
        ("No it.", "0", f"{uri}:2"),
    ]


def test_columns_by_name(tmp_path: Path) -> None:
    uri = write(tmp_path, "\ufeffsentence1\tsentence2\tgold_label\r\nA\tB\tneutral\r\n")
    (found,) = read_table([uri], Columns("sentence1", "sentence2", "gold_label"))
    assert (found.text, found.pair, found.label) == ("A", "B", "neutral")


def test_bad_rows_are_named_or_passed_over(tmp_path: Path) -> None:
    uri = write(tmp_path, "a\t1\nb\nc\t0\n")
    with pytest.raises(InputError, match=r"file\.tsv:2: 1 fields"):
        list(read_table([uri], Columns(0)))
    assert [one.text for one in read_table([uri], Columns(0, skip_bad_lines=True))] == ["a", "c"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.tsv", None, "no such file"),
        ("bad.tsv.xz", b"not xz", "cannot be read as .xz"),
        ("bad.tsv", b"\xff\xfe\xff", "cannot be read as text"),
    ],
)
def test_unreadable_files_are_refused(name: str, content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=f"{name}: {message}"):
        list(read_table([str(path)], Columns(0)))


def test_missing_column_is_named(tmp_path: Path) -> None:
    uri = write(tmp_path, "a\tb\n1\t2\n")
    with pytest.raises(InputError, match="no column 'label'; the columns are a, b"):
        list(read_table([uri], Columns("a", None, "label")))


def test_one_reading_of_files_with_different_headers(tmp_path: Path) -> None:
    """MultiNLI in the form published with XNLI, and a file of XNLI itself."""
    train = write(tmp_path, "premise\thypo\tlabel\nA\tB\tcontradictory\n", "multinli.tsv")
    xnli = "language\tgold_label\tsentence1\tsentence2\nde\tneutral\tC\tD\nen\tneutral\tE\tF\n"
    columns = Columns(
        ["premise", "sentence1"], ["hypo", "sentence2"], ["label", "gold_label"], group="language",
        same={"contradictory": "contradiction"},
    )  # fmt: skip
    found = list(read_table([train, write(tmp_path, xnli, "xnli.tsv")], columns))
    assert [(one.text, one.pair, one.label, one.group) for one in found] == [
        ("A", "B", "contradiction", ""), ("C", "D", "neutral", "de"), ("E", "F", "neutral", "en"),
    ]  # fmt: skip
    english = dataclasses.replace(columns, only={"language": "en"})
    assert [one.text for one in read_table([train, write(tmp_path, xnli, "xnli.tsv")], english)] == ["A", "E"]


def test_conll_with_spaces_and_documents(tmp_path: Path) -> None:
    uri = write(
        tmp_path, "-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n\nPeter NNP B-NP B-PER\n"
    )
    found = list(read_conll([uri], word=0, tag=3))
    assert [(one.words, one.tags) for one in found] == [
        (("EU", "rejects"), ("B-ORG", "O")),
        (("Peter",), ("B-PER",)),
    ]
    assert found[0].origin == f"{uri}:3"


def test_conllu_without_ranges_and_comments(tmp_path: Path) -> None:
    text = "# text = a # b\n1-2\tim\t_\t_\n1\tin\tin\tADP\n2\tdem\tder\tDET\n2.1\tx\tx\tX\n3\t#\t#\tSYM\n"
    (found,) = read_conll([write(tmp_path, text)], word=1, tag=3)
    assert found.words == ("in", "dem", "#")
    assert found.tags == ("ADP", "DET", "SYM")


def test_conll_line_with_too_few_columns(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"file\.tsv:2: 1 columns, but the config reads columns 0 and 1"):
        list(read_conll([write(tmp_path, "a O\nb\n")], 0, 1))


def squad(folder: Path, questions: list[dict[str, object]], context: str = "The cat sat.") -> str:
    return write(
        folder, json.dumps({"data": [{"paragraphs": [{"context": context, "qas": questions}]}]}), "q.json"
    )


def test_squad_answers_and_questions_without_one(tmp_path: Path) -> None:
    uri = squad(
        tmp_path,
        [
            {"id": 1, "question": "Who?", "answers": [{"text": "cat", "answer_start": 4}]},
            {"id": "b", "question": "Why?", "answers": [], "is_impossible": True},
            {"id": "c", "question": "Off by one?", "answers": [{"text": "cat", "answer_start": 5}]},
        ],
    )
    found = list(read_squad([uri]))
    assert [(one.key, one.answers, one.start) for one in found] == [
        ("1", ("cat",), 4), ("b", (), -1), ("c", ("cat",), 4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not in the format of SQuAD"), ('{"data": [{}]}', "not in the format of SQuAD: KeyError")],
)
def test_files_in_another_layout_are_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        list(read_squad([write(tmp_path, text)]))


def test_answer_that_is_not_there_is_refused(tmp_path: Path) -> None:
    uri = squad(tmp_path, [{"id": 7, "question": "?", "answers": [{"text": "dog", "answer_start": 0}]}])
    with pytest.raises(
        InputError, match=r"data\.0\.paragraphs\.0: 7: the answer 'dog' is not in the context"
    ):
        list(read_squad([uri]))


def test_words_of_column_files_keep_what_is_part_of_them(tmp_path: Path) -> None:
    """The word #, a no-break space, and line separators that only Python's splitlines handles."""
    spaced = write(
        tmp_path, "# O\nno\u00a01 B\na\u2028b I\n# O\n\n# a comment of words\nx\u0085y O\r\n", "a.conll"
    )
    tabbed = write(tmp_path, "#\tO\n# text = y\ny\tB\n", "b.conll")
    numbered = write(tmp_path, "# newdoc\n1\t#\t_\tSYM\n", "c.conllu")
    assert [one.words for one in read_conll([spaced], 0, 1)] == [
        ("#", "no\u00a01", "a\u2028b", "#"), ("x\u0085y",),
    ]  # fmt: skip
    assert [one.words for one in read_conll([tabbed], 0, 1)] == [("#", "y")]
    assert [one.words for one in read_conll([numbered], 1, 3)] == [("#",)]


@pytest.mark.parametrize(
    ("paragraph", "message"),
    [
        ({"context": None}, "column 'context' must be a text, got None"),
        ({"question": None}, "column 'question' must be a text, got None"),
        ({"answers": [{"text": "", "answer_start": 0}]}, "answers must have texts"),
        ({"answers": [{"text": None, "answer_start": 0}]}, "answers must have texts"),
        ({"answers": [3]}, "answers must have texts, got 3"),
    ],
)
def test_questions_without_their_texts_name_the_place(
    paragraph: dict[str, Any], message: str, tmp_path: Path
) -> None:
    whole = {"context": "a b", "question": "q", "answers": [], **paragraph}
    context = whole.pop("context")
    path = tmp_path / "squad.json"
    path.write_text(
        json.dumps({"data": [{"paragraphs": [{"context": context, "qas": [{"id": 1, **whole}]}]}]})
    )
    with pytest.raises(InputError, match=rf"squad.json: data.0.paragraphs.0: 1: {message}"):
        list(read_squad([str(path)]))
