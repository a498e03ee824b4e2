"""A training run as one HTML page without external assets."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from typing import Any, TypeVar

from pipeline.report.line_chart import Line, Mark, line_chart
from trainer.monitoring.history import History
from trainer.monitoring.records import AnyEvent, Evaluated, LogRecord, PretrainingMetrics, Started, StepRecord

_R = TypeVar("_R", bound=LogRecord)
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:1em 0}th,td{padding:.25em .8em;border-bottom:1px solid #ddd}
td{text-align:right;font-variant-numeric:tabular-nums}td:first-child,th{text-align:left}
th{vertical-align:bottom}.wide{overflow-x:auto}pre{overflow-x:auto}
.label{font-size:12px;fill:#222}h2{margin-top:2em}.note{color:#666}
"""
# A chart shows at most this many languages: those with the most held-out or trained targets.
_MOST_LINES = 10
_EVENT_COLORS = {"started": "#d1605e", "skipped": "#e49444", "stopped": "#8a6bb1", "finished": "#5a9e6f"}
_QUIET = ("saving", "ready")
# Title, name of the line, field: a chart for runs whose log has the field.
_IF_MEASURED = (
    ("MFU: share of the devices' peak FLOP/s", "MFU", "mfu"),
    ("Seconds of the last checkpoint", "checkpoint", "checkpoint_seconds"),
)
_DETAILS = (
    "step", "world_size", "device", "checkpoint", "changes", "grad_norm", "text", "row_ids",
    "total_seconds", "process_seconds", "load_seconds", "seek_seconds", "compile_seconds",
    "first_step_seconds", "graphs_compiled", "graphs_from_cache",
)  # fmt: skip


def report_page(history: History) -> str:
    """Renders the page. The common axis of all charts is the time since the first start, with pauses."""
    time = _TimeAxis(history)

    def chart(**columns: Callable[[StepRecord], float | None]) -> str:
        lines = [
            Line(name.replace("_", " "), time.points(history.steps, column))
            for name, column in columns.items()
        ]
        return time.chart([line for line in lines if line.points])

    sections = [
        _section("Summary", _summary(history)),
        _section("Loss", chart(loss=_field("loss"), MLM=_field("mlm_loss"), NSP=_field("nsp_loss"))),
        _section("Accuracy", chart(MLM=_field("mlm_accuracy"), NSP=_field("nsp_accuracy"))),
        _section("MLM accuracy by language", _by_language(history, time)),
        _section("Held-out rows", _held_out(history, time)),
        _section("Learning rate", chart(lr=_field("lr"))),
        _section("Gradient norm", chart(norm=_field("grad_norm"))),
        _section("Tokens per second", chart(tokens=_field("tokens_per_second"))),
        *(
            _section(title, chart(**{name: _field(field)}))
            for title, name, field in _IF_MEASURED
            if any(getattr(record, field) is not None for record in history.steps)
        ),
        _section(
            "Data wait and unused micro-batch capacity",
            chart(waiting=_field("data_wait_share"), room=lambda record: 1 - record.packing_efficiency),
        ),
        _section("Steps", chart(step=_field("step"))),
        _section("Events", _events(history, time)),
        _section("Config", f"<pre>{escape(_config(history))}</pre>"),
    ]
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Training report</title>"
        f"<style>{_STYLE}</style><h1>Training report</h1>"
        f"<p class=note>Vertical lines: starts and resumes (red), skipped steps (orange), stops (violet), "
        f"the end (green). The time axis includes pauses between attempts.</p>{''.join(sections)}</html>\n"
    )


class _TimeAxis:
    """The time of a run from its first record to its last, in a unit that suits its length."""

    def __init__(self, history: History) -> None:
        times = [record.time for record in (*history.events, *history.steps, *history.held_out)]
        self._begin, end = min(times, default=0.0), max(times, default=0.0)
        lengths = (("hours", 3600.0), ("minutes", 60.0))
        self.unit, self._length = next(
            (one for one in lengths if end - self._begin >= 2 * one[1]), ("seconds", 1.0)
        )
        self._span = (0.0, (end - self._begin) / self._length)
        self._marks = [self._mark(event) for event in history.events if event.event not in _QUIET]
        self._breaks = [self.of(event) for event in history.events if isinstance(event, Started)]

    def of(self, record: LogRecord) -> float:
        """When ``record`` was written."""
        return (record.time - self._begin) / self._length

    def points(
        self, records: Sequence[_R], column: Callable[[_R], float | None]
    ) -> list[tuple[float, float]]:
        """The values of ``column`` that are not None."""
        values = [(self.of(record), column(record)) for record in records]
        return sorted((when, value) for when, value in values if value is not None)

    def chart(self, lines: list[Line]) -> str:
        """Draws the lines with the marks of all events. Lines break at each start."""
        return line_chart(lines, self.unit, self._marks, span=self._span, breaks=self._breaks)

    def _mark(self, event: AnyEvent) -> Mark:
        text = f"{event.event} {_details(event)}"
        return Mark(self.of(event), text, _EVENT_COLORS.get(event.event, "#bbb"))


def _field(name: str) -> Callable[[StepRecord], float | None]:
    return lambda record: getattr(record, name)


def _by_language(history: History, time: _TimeAxis) -> str:
    targets: dict[str, int] = {}
    for record in history.steps:
        for language, figures in record.languages.items():
            targets[language] = targets.get(language, 0) + figures.masked_tokens
    chosen = sorted(targets, key=lambda language: (-targets[language], language))[:_MOST_LINES]
    lines = [
        Line(
            language,
            time.points(
                history.steps,
                partial(_trained_accuracy, language),
            ),
        )
        for language in chosen
    ]
    note = f"<p class=note>The {len(chosen)} of {len(targets)} languages with the most targets.</p>"
    return (note if len(targets) > len(chosen) else "") + time.chart(lines)


def _trained_accuracy(language: str, record: StepRecord) -> float | None:
    return _accuracy(record.languages.get(language))


def _held_out_accuracy(group: str, record: Evaluated) -> float | None:
    return _accuracy(record.held_out.get(group))


def _accuracy(figures: PretrainingMetrics | None) -> float | None:
    """MLM accuracy, or None if the record lacks the language."""
    return None if figures is None else figures.mlm_accuracy


def _held_out(history: History, time: _TimeAxis) -> str:
    if not history.held_out:
        return "<p>None; set <code>evaluation</code> in the config to measure them.</p>"
    last = history.held_out[-1].held_out
    chosen = sorted(last, key=lambda name: (name != "all", -last[name].masked_tokens, name))[:_MOST_LINES]
    lines = [
        Line(
            name,
            time.points(
                history.held_out,
                partial(_held_out_accuracy, name),
            ),
        )
        for name in chosen
    ]
    values = {name: figures.model_dump(exclude_none=True) for name, figures in last.items()}
    columns = list(dict.fromkeys(column for figures in values.values() for column in figures))
    rows = [[name, *(_number(figures.get(column)) for column in columns)] for name, figures in values.items()]
    header = ["", *(column.replace("_", " ") for column in columns)]
    step = history.held_out[-1].step
    return f"<p>MLM accuracy:</p>{time.chart(lines)}<p>After step {step:,}:</p>{_table(header, rows)}"


def _summary(history: History) -> str:
    starts = [event for event in history.events if isinstance(event, Started)]
    rows = [["attempts", f"{len(starts):,}"]]
    if starts:
        rows.append(["parameters", _number(starts[-1].parameters)])
        rows.append(["steps planned", _number(starts[-1].total_steps)])
    if history.steps:
        last = history.steps[-1]
        names = ("step", "tokens", "loss", "mlm_accuracy", "nsp_accuracy", "skipped_steps")
        values = {name: getattr(last, name) for name in names}
        rows += [
            [name.replace("_", " "), _number(value)] for name, value in values.items() if value is not None
        ]
    return _table(["", ""], rows)


def _events(history: History, time: _TimeAxis) -> str:
    rows = [
        [
            f"{time.of(event):.2f}",
            str(event.attempt),
            event.event,
            _details(event),
        ]
        for event in history.events
    ]
    return _table([f"{time.unit} since the start", "attempt", "event", ""], rows)


def _details(event: AnyEvent) -> str:
    fields = event.details()
    parts = [
        f"{name.replace('_', ' ')} {fields[name]}" for name in _DETAILS if fields.get(name) not in (None, [])
    ]
    return ", ".join(part if len(part) < 120 else part[:117] + "..." for part in parts)


def _config(history: History) -> str:
    starts = [event for event in history.events if isinstance(event, Started)]
    return json.dumps(starts[-1].config, indent=1, ensure_ascii=False) if starts else ""


def _section(title: str, body: str) -> str:
    return f"<h2>{escape(title)}</h2>{body}"


def _table(header: list[str], rows: list[list[Any]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<div class=wide><table><tr>{head}</tr>{body}</table></div>"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
