"""Sentences and pairs from tables."""

from collections.abc import Iterator, Sequence

from schemas.errors import InputError
from trainer.finetuning.inputs.cells import place_of, spelling_of, text_of
from trainer.finetuning.inputs.examples import Columns, TextExample
from trainer.finetuning.inputs.tables import check_width, open_table


def read_table(uris: Sequence[str], columns: Columns) -> Iterator[TextExample]:
    """Rows of tables (see trainer/finetuning/inputs/tables.py), with a header when a column is given by name.

    Raises InputError that names file and row for a column that is missing or duplicate, a value that is
    missing, and, unless ``columns`` skips them, a row with too few fields or with more than the header.
    """
    fields_used = (columns.text, columns.pair, columns.label)
    named = columns.group is not None or any(isinstance(column, str | list) for column in fields_used)
    for uri in uris:
        table = open_table(uri, header=named)
        names = table.names
        text, pair, label = (place_of(uri, names, column) for column in fields_used)
        group = names.index(columns.group) if columns.group in names else None
        only = [(names.index(name), value) for name, value in columns.only.items() if name in names]
        last = max(place for place in (text, pair, label, group, *(p for p, _ in only)) if place is not None)
        width = len(names)
        for origin, fields in table.rows:
            width = width or len(fields)
            if not columns.skip_bad_lines:
                check_width(origin, fields, width, header=bool(names))
            elif names and len(fields) > width:
                continue
            if last >= len(fields):
                if columns.skip_bad_lines:
                    continue
                raise InputError(f"{origin}: {len(fields)} fields are too few for the columns in the config")
            if any(spelling_of(fields[place]) != value for place, value in only):
                continue
            if label is not None and isinstance(fields[label], list | dict):
                raise InputError(f"{origin}: a label must be a text or a number, got {fields[label]!r:.60}")
            spelling = "" if label is None else spelling_of(fields[label])
            if not spelling and label is not None:
                raise InputError(f"{origin}: has no label")
            yield TextExample(
                text=text_of(fields[text or 0], origin, columns.text),
                pair=None if pair is None else text_of(fields[pair], origin, columns.pair),
                label=columns.same.get(spelling, spelling),
                origin=origin,
                group="" if group is None else spelling_of(fields[group]),
            )
