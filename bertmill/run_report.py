"""``bertmill report``: a training run as one HTML page without external assets."""

import argparse
import json
from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from typing import Any

from bertmill.charts import Line, Mark, line_chart
from cluster import storage
from trainer.history import History, Record, read_history

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:1em 0}th,td{padding:.25em .8em;border-bottom:1px solid #ddd}
td{text-align:right;font-variant-numeric:tabular-nums}td:first-child,th{text-align:left}
th{vertical-align:bottom}.wide{overflow-x:auto}pre{overflow-x:auto}
.label{font-size:12px;fill:#222}h2{margin-top:2em}.note{color:#666}
"""
# Languages drawn in one chart at most: those with the most held-out or trained targets.
_MOST_LINES = 10
_EVENT_COLOURS = {"started": "#d1605e", "skipped": "#e49444", "stopped": "#8a6bb1", "finished": "#5a9e6f"}
_QUIET = ("saving", "ready")
# Title, name of the line, field: drawn for runs whose log has the field.
_IF_MEASURED = (
    ("Share of the devices' peak arithmetic", "MFU", "mfu"),
    ("Seconds of the last checkpoint", "checkpoint", "checkpoint_seconds"),
)
_DETAILS = (
    "step", "world_size", "device", "checkpoint", "changes", "gradient_norm", "reason", "rows",
    "total_seconds", "process_seconds", "load_seconds", "seek_seconds", "compile_seconds",
    "first_step_seconds", "graphs_compiled", "graphs_from_cache",
)  # fmt: skip


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds ``report`` to the console command."""
    parser = commands.add_parser(
        "report",
        help="write a training run as an HTML page",
        description="Loss, accuracy by language, learning rate, throughput, faults and resumes of a run, on "
        "one time axis, from the log of all its attempts.",
    )
    parser.add_argument("run", metavar="RUN", help="the run's folder or URI")
    parser.add_argument("--to", metavar="FILE", help="where the page goes (default: RUN/report.html)")
    parser.set_defaults(execute=_execute)


def _execute(arguments: argparse.Namespace) -> int:
    target = arguments.to or storage.join(arguments.run, "report.html")
    storage.put_bytes(target, report_page(read_history(arguments.run)).encode())
    print(f"written to {target}")
    return 0


def report_page(history: History) -> str:
    """The page. Charts have the time since the first start as their common axis, pauses included."""
    time = _TimeAxis(history)

    def chart(**columns: Callable[[Record], float | None]) -> str:
        lines = [
            Line(name.replace("_", " "), time.points(history.figures, column))
            for name, column in columns.items()
        ]
        return time.chart([line for line in lines if line.points])

    sections = [
        _section("Summary", _summary(history)),
        _section(
            "Loss", chart(loss=_field("loss"), masked_LM=_field("token_loss"), pairs=_field("pair_loss"))
        ),
        _section("Accuracy", chart(masked_LM=_field("token_accuracy"), pairs=_field("pair_accuracy"))),
        _section("Masked LM accuracy by language", _by_language(history, time)),
        _section("Held-out rows", _held_out(history, time)),
        _section("Learning rate", chart(rate=_field("learning_rate"))),
        _section("Gradient norm", chart(norm=_field("gradient_norm"))),
        _section("Tokens a second", chart(tokens=_field("tokens_per_second"))),
        *(
            _section(title, chart(**{name: _field(field)}))
            for title, name, field in _IF_MEASURED
            if any(field in record for record in history.figures)
        ),
        _section(
            "Waiting for data, room left in micro-batches",
            chart(waiting=_field("data_wait_share"), room=lambda r: 1 - r.get("packing_efficiency", 1)),
        ),
        _section("Steps", chart(step=_field("step"))),
        _section("What happened", _events(history, time)),
        _section("Config", f"<pre>{escape(_config(history))}</pre>"),
    ]
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Training report</title>"
        f"<style>{_STYLE}</style><h1>Training report</h1>"
        f"<p class=note>Vertical lines: starts and resumes (red), skipped steps (orange), stops (violet), "
        f"the end (green). Pauses between attempts are part of the axis.</p>{''.join(sections)}</html>\n"
    )


class _TimeAxis:
    """The time of a run from its first record to its last, in the unit that suits its length."""

    def __init__(self, history: History) -> None:
        times = [float(r["time"]) for r in (*history.events, *history.figures, *history.held_out)]
        self._begin, end = min(times, default=0.0), max(times, default=0.0)
        lengths = (("hours", 3600.0), ("minutes", 60.0))
        self.unit, self._length = next(
            (one for one in lengths if end - self._begin >= 2 * one[1]), ("seconds", 1.0)
        )
        self._span = (0.0, (end - self._begin) / self._length)
        self._marks = [self._mark(event) for event in history.events if event["event"] not in _QUIET]
        self._breaks = [self.of(event) for event in history.events if event["event"] == "started"]

    def of(self, record: Record) -> float:
        """When ``record`` was written."""
        return (float(record["time"]) - self._begin) / self._length

    def points(
        self, records: list[Record], column: Callable[[Record], float | None]
    ) -> list[tuple[float, float]]:
        """The values of ``column`` where there are any."""
        found = [(self.of(record), column(record)) for record in records]
        return sorted((when, value) for when, value in found if value is not None)

    def chart(self, lines: list[Line]) -> str:
        """The lines with the marks of all events; none crosses a start."""
        return line_chart(lines, self.unit, self._marks, span=self._span, breaks=self._breaks)

    def _mark(self, event: Record) -> Mark:
        text = f"{event['event']} {_details(event)}"
        return Mark(self.of(event), text, _EVENT_COLOURS.get(event["event"], "#bbb"))


def _field(name: str) -> Callable[[Record], float | None]:
    return lambda record: record.get(name)


def _by_language(history: History, time: _TimeAxis) -> str:
    targets: dict[str, int] = {}
    for record in history.figures:
        for language, values in record.get("languages", {}).items():
            targets[language] = targets.get(language, 0) + int(values.get("targets", 0))
    chosen = sorted(targets, key=lambda language: (-targets[language], language))[:_MOST_LINES]
    lines = [
        Line(
            language,
            time.points(
                history.figures,
                partial(_figure, "languages", language, "token_accuracy"),
            ),
        )
        for language in chosen
    ]
    note = f"<p class=note>The {len(chosen)} of {len(targets)} languages with the most targets.</p>"
    return (note if len(targets) > len(chosen) else "") + time.chart(lines)


def _figure(group: str, language: str, name: str, record: Record) -> float | None:
    """A figure of one language in a record of the log; None where the record does not have it."""
    value: float | None = record.get(group, {}).get(language, {}).get(name)
    return value


def _held_out(history: History, time: _TimeAxis) -> str:
    if not history.held_out:
        return "<p>None were measured; <code>evaluation</code> in the config does it.</p>"
    last: Mapping[str, Mapping[str, float]] = history.held_out[-1]["held_out"]
    chosen = sorted(last, key=lambda name: (name != "all", -last[name]["masked_tokens"], name))[:_MOST_LINES]
    lines = [
        Line(
            name,
            time.points(
                history.held_out,
                partial(_figure, "held_out", name, "accuracy"),
            ),
        )
        for name in chosen
    ]
    columns = list(dict.fromkeys(column for figures in last.values() for column in figures))
    rows = [[name, *(_number(figures.get(column)) for column in columns)] for name, figures in last.items()]
    header = ["", *(column.replace("_", " ") for column in columns)]
    step = history.held_out[-1]["step"]
    return f"<p>Masked LM accuracy:</p>{time.chart(lines)}<p>After step {step:,}:</p>{_table(header, rows)}"


def _summary(history: History) -> str:
    starts = [event for event in history.events if event["event"] == "started"]
    rows = [["attempts", f"{len(starts):,}"]]
    if starts:
        rows.append(["parameters", _number(starts[-1].get("parameters"))])
        rows.append(["steps planned", _number(starts[-1].get("total_steps"))])
    if history.figures:
        last = history.figures[-1]
        names = ("step", "tokens", "loss", "token_accuracy", "pair_accuracy", "skipped_steps", "failed_saves")
        rows += [[name.replace("_", " "), _number(last[name])] for name in names if name in last]
    return _table(["", ""], rows)


def _events(history: History, time: _TimeAxis) -> str:
    rows = [
        [
            f"{time.of(event):.2f}",
            str(event["attempt"]),
            event["event"],
            _details(event),
        ]
        for event in history.events
    ]
    return _table([f"{time.unit} since the start", "attempt", "event", ""], rows)


def _details(event: Record) -> str:
    parts = [
        f"{name.replace('_', ' ')} {event[name]}" for name in _DETAILS if event.get(name) not in (None, [])
    ]
    return ", ".join(part if len(part) < 120 else part[:117] + "..." for part in parts)


def _config(history: History) -> str:
    starts = [event for event in history.events if event["event"] == "started"]
    return json.dumps(starts[-1].get("config", {}), indent=1, ensure_ascii=False) if starts else ""


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
