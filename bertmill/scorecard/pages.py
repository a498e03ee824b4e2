"""The Markdown and the HTML page of a scorecard."""

from collections.abc import Sequence
from html import escape

from bertmill.scorecard.records import Scorecard, TaskSummary
from trainer.finetuning.records import Spread

_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:70em;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:.6em 0 1.4em}th,td{padding:.25em .7em;border-bottom:1px solid #ddd;
text-align:right;font-variant-numeric:tabular-nums}th:first-child,td:first-child{text-align:left}
.wide{overflow-x:auto}.own td{background:#eef5fb;font-weight:600}.note{color:#666;font-size:13px}
.languages{columns:22em}.language{display:flex;gap:.6em;break-inside:avoid;align-items:center}
.language b{width:7em;font-weight:400}.bar{flex:1;background:#eee}
.bar i{display:block;height:.8em;background:#4c78a8}
.language span{width:8em;text-align:right;font-variant-numeric:tabular-nums}
"""
_METRICS = {
    "matthews": "Matthews correlation",
    "accuracy": "accuracy",
    "f1": "F1",
    "spearman": "Spearman correlation",
    "entity_f1": "entity F1",
    "answer_f1": "word F1",
}


def markdown(card: Scorecard) -> str:
    """The scorecard as a Markdown page."""
    parts = [f"# {_title(card)}", *_facts(card), "## Overview", _markdown_table(*_overview(card))]
    parts += [f"- {line}" for line in _sources(card)]
    for task in card.tasks.values():
        parts.append(f"## {task.title}")
        parts += _task_facts(task)
        if task.grid:
            parts.append(_markdown_table(*_grid(task)))
        if task.languages:
            rows = [[name, _spread(figures)] for name, figures in task.languages.items()]
            parts.append(_markdown_table(["language", _METRICS[task.metric]], rows))
    return "\n\n".join(parts).replace("\n\n- ", "\n- ") + "\n"


def html(card: Scorecard) -> str:
    """The scorecard as one HTML page without other files."""
    title = escape(_title(card))
    parts = [f"<h1>{title}</h1>", *(f"<p>{escape(line)}</p>" for line in _facts(card)), "<h2>Overview</h2>"]
    parts.append(_html_table(*_overview(card), own=True))
    parts += [f"<p class=note>{escape(line)}</p>" for line in _sources(card)]
    for task in card.tasks.values():
        parts.append(f"<h2>{escape(task.title)}</h2>")
        parts += [f"<p>{escape(line)}</p>" for line in _task_facts(task)]
        if task.grid:
            parts.append(_html_table(*_grid(task)))
        if task.languages:
            bars = "".join(_bar(name, figures) for name, figures in task.languages.items())
            parts.append(f"<div class=languages>{bars}</div>")
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>"
        f"<meta name=viewport content='width=device-width'><style>{_STYLE}</style>{''.join(parts)}</html>\n"
    )


def _title(card: Scorecard) -> str:
    return f"Scorecard {card.suite}: {card.model}"


def _facts(card: Scorecard) -> list[str]:
    settings, jobs = card.settings, card.jobs
    lines = []
    if not card.complete:
        failed = f", {jobs.failed} failed" if jobs.failed else ""
        lines.append(f"Incomplete: {jobs.finished} of {jobs.all} jobs are finished{failed}.")
    if settings.max_examples:
        lines.append(
            f"Every dataset is cut to its first {settings.max_examples:,} examples, so the figures cannot"
            " be compared with published ones."
        )
    rates = ", ".join(f"{rate:g}" for rate in settings.learning_rates)
    chosen = "the measured set itself, as in most publications" if card.suite == "glue" else "English"
    lines.append(
        f"{len(settings.seeds)} seed(s), learning rates {rates}, batches of {settings.batch_size}."
        f" Epoch and learning rate are chosen on {chosen}. Figures are percent: mean ± sample deviation over"
        " seeds."
    )
    lines.append(f"{card.device_hours:.2f} {card.device}-hours in {jobs.finished} jobs.")
    if settings.nli_model:
        lines.append(f"RTE, MRPC and STS-B start from {settings.nli_model}.")
    if card.missing:
        missing = "; ".join(f"{name} ({reason})" for name, reason in card.missing.items())
        lines.append(f"Not measured, because the folder lacks files: {missing}.")
    return lines


def _overview(card: Scorecard) -> tuple[list[str], list[list[str]]]:
    tasks = card.tasks
    own = [card.model, *(_mean(task) for task in tasks.values())]
    rows = [own]
    if card.suite == "multilingual":
        values = [task.mean_without_english for task in tasks.values()]
        rows.append(["the same without English", *(_percent(value) for value in values)])
    for row in card.published:
        rows.append([row.model, *(_plain(row.figures.get(name)) for name in tasks)])
    return ["model", *(f"{task.title}" for task in tasks.values())], rows


def _sources(card: Scorecard) -> list[str]:
    return [f"{row.model}: {row.source}; {row.note}." for row in card.published]


def _task_facts(task: TaskSummary) -> list[str]:
    jobs = task.jobs
    line = f"{_METRICS[task.metric]}; {jobs.finished} of {jobs.all} jobs, {task.seconds:,.0f} s."
    line = line[:1].upper() + line[1:]
    if task.learning_rate is not None:
        line += f" Best learning rate {task.learning_rate:g}."
    if task.note:
        line += f" It is {task.note}."
    return [line, *(f"Failed: {name}: {reason}" for name, reason in task.failed.items())]


def _mean(task: TaskSummary) -> str:
    """The mean of the finished seeds, and whether others failed."""
    if not task.failed:
        return _spread(task.mean)
    return f"{_spread(task.mean)} ({task.jobs.failed} failed)" if task.mean else "failed"


def _grid(task: TaskSummary) -> tuple[list[str], list[list[str]]]:
    rows = [
        [f"{row.learning_rate:g}", _spread(row), _percent(row.median), _percent(row.best)]
        for row in task.grid
    ]
    return ["learning rate", f"validation {_METRICS[task.metric]}", "median", "best"], rows


def _spread(figures: Spread | None) -> str:
    if figures is None:
        return ""
    mean = _percent(figures.mean)
    return mean if figures.count == 1 else f"{mean} ± {100 * figures.deviation:.1f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines)


def _html_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, own: bool = False) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    lines = [
        f"<tr{' class=own' if own and number == 0 else ''}>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in row)
        + "</tr>"
        for number, row in enumerate(rows)
    ]
    return f"<div class=wide><table><tr>{head}</tr>{''.join(lines)}</table></div>"


def _bar(name: str, figures: Spread) -> str:
    width = max(0.0, min(100.0, 100 * figures.mean))
    return (
        f"<div class=language><b>{escape(name)}</b><div class=bar><i style='width:{width:.1f}%'></i></div>"
        f"<span>{_spread(figures)}</span></div>"
    )
