"""Tagged words from CoNLL columns, and from tables with lists of words and tags."""

import re
from collections.abc import Iterator, Sequence

from schemas.errors import InputError
from trainer.finetuning.inputs.cells import list_of, place_of, spelling_of, text_of
from trainer.finetuning.inputs.examples import Column, TaggedExample
from trainer.finetuning.inputs.tables import is_structured, open_table
from trainer.finetuning.inputs.text_files import read_text


def read_tagged(uris: Sequence[str], word: Column, tag: Column | None) -> Iterator[TaggedExample]:
    """Sentences of column files (see `read_conll`) and of tables with a list of words and one of tags.

    CSV, JSON, JSON Lines, Parquet and datasets are tables. A list in CSV is JSON, a list of Python, or its
    parts with spaces between them. All tags are O if ``tag`` is None. Raises InputError that names file and
    row.
    """
    for uri in uris:
        if is_structured(uri):
            yield from _tagged_rows(uri, word, tag)
        elif isinstance(word, int) and (tag is None or isinstance(tag, int)):
            yield from read_conll([uri], word, tag)
        else:
            raise InputError(f"{uri}: its columns have no names; give files.word and files.tag as numbers")


def _tagged_rows(uri: str, word: Column, tag: Column | None) -> Iterator[TaggedExample]:
    table = open_table(uri, header=True)
    word_place = place_of(uri, table.names, word)
    tag_place = place_of(uri, table.names, tag)
    for origin, fields in table.rows:
        if max(word_place or 0, tag_place or 0) >= len(fields):
            raise InputError(f"{origin}: {len(fields)} fields are too few for the columns in the config")
        words = [text_of(value, origin, word) for value in list_of(fields[word_place or 0], origin, word)]
        tags = ["O"] * len(words)
        if tag_place is not None:
            tags = [spelling_of(value) for value in list_of(fields[tag_place], origin, tag)]
        if len(words) != len(tags):
            raise InputError(f"{origin}: {len(words)} words, but {len(tags)} tags")
        if "" in tags:
            raise InputError(f"{origin}: word {tags.index('') + 1} has no tag")
        if words:
            yield TaggedExample(tuple(words), tuple(tags), origin)


def read_conll(uris: Sequence[str], word: int, tag: int | None) -> Iterator[TaggedExample]:
    """Sentences of column files (CoNLL, IOB2, CoNLL-U): one word per line, a blank line after a sentence.

    All tags are O if ``tag`` is None.

    Columns are separated by tabs, or by spaces in a line without tabs. Other white space is part of a word.
    Comments, and the ranges and empty nodes of CoNLL-U (ids like 3-4, 5.1), are skipped. A line that starts
    with # and has the columns of a word counts as a word. Raises InputError that names file and line.
    """
    for uri in uris:
        words: list[str] = []
        tags: list[str] = []
        first = 1
        last = word if tag is None else max(word, tag)
        width = last + 1
        for number, ended in enumerate([*read_text(uri).split("\n"), ""], start=1):
            line = ended.rstrip("\r")
            if not line.strip(" \t"):
                if words:
                    yield TaggedExample(tuple(words), tuple(tags), f"{uri}:{first}")
                words, tags = [], []
                first = number + 1
                continue
            fields = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
            hash_word = word == 0 and len(fields) == width
            if line.startswith("-DOCSTART-") or _is_range(fields, word):
                continue
            if line.startswith(("# ", "#\t")) and not hash_word:
                continue
            if last >= len(fields):
                read = f"column {word}" if tag is None else f"columns {word} and {tag}"
                raise InputError(f"{uri}:{number}: {len(fields)} columns, but the config reads {read}")
            width = len(fields)
            words.append(fields[word])
            tags.append("O" if tag is None else fields[tag])


def _is_range(fields: list[str], word: int) -> bool:
    return word > 0 and any(mark in fields[0] for mark in "-.") and fields[0].strip("0123456789-.") == ""
