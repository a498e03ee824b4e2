"""The report of a real run that stopped and resumed, and its charts."""

import json
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bertmill.cli import main
from bertmill.run_report import report_page
from pipeline.report.line_chart import Line, Mark, line_chart, thinned
from schemas.errors import CheckpointError
from tests.pipeline.report.test_html import BROWSER, shown
from tests.trainer.records import figures, step_record
from tests.trainer.runs import TINY, phase, train_config
from tests.trainer.synthetic import LANGUAGES, write_corpus
from trainer.config import TrainConfig
from trainer.distributed.ranks import single_rank
from trainer.hooks import Hooks
from trainer.monitoring.history import History, read_history
from trainer.monitoring.records import AnyEvent, Evaluated, Skipped, Started
from trainer.run.loop import train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    corpus = write_corpus(folder / "corpus", validation_rows=(20,))
    config = train_config(
        folder, corpus, model=TINY, phases=[phase(32, 16, 512, steps=9)],
        evaluation={"every_steps": 3}, checkpoints={"every_steps": 2, "every_seconds": None},
    )  # fmt: skip
    steps = iter(range(100))
    train(TrainConfig.model_validate(config), single_rank(), Hooks(stop_requested=lambda: next(steps) >= 4))
    return Path(train(TrainConfig.model_validate(config), single_rank()).run_uri)


def test_page_of_a_run_that_was_stopped_once(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"written to {run}/report.html\n"
    page = (run / "report.html").read_text()
    assert "http" not in re.sub(r"<pre>.*</pre>", "", page, flags=re.DOTALL)
    events = re.findall(r"<td>(\d)</td><td>(started|stopped|finished)</td>", page)
    assert events == [("1", "started"), ("1", "stopped"), ("2", "started"), ("2", "finished")]
    assert "<td>attempts</td><td>2</td>" in page
    assert "<td>step</td><td>9</td>" in page
    for language in LANGUAGES:
        assert f">{language}</text>" in page
    assert "After step 9:" in page


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on the PATH")
def test_a_browser_shows_the_page_whole(run: Path, tmp_path: Path) -> None:
    """It loads nothing, labels stay in their charts and do not overlap, and all charts share a time axis."""
    measured = shown(report_page(read_history(str(run))), tmp_path)
    assert measured["fetched"] == []
    assert measured["outside"] == []
    assert measured["svg"] == 10
    assert measured["text"] > 80
    assert measured["wide"] <= 1200


def test_charts_share_a_time_axis_and_leave_pauses_open(tmp_path: Path) -> None:
    """Two attempts with an hour between them. The figures of the held-out rows end earlier."""
    steps = [
        step_record(step, time=when, loss=3.0, mlm_loss=2.0, mfu=0.4)
        for step, when in ((1, 60), (2, 120), (3, 3900), (4, 7200))
    ]
    held_out = [Evaluated(step=1, time=100, held_out={"all": figures(mlm_accuracy=0.5)})]
    events: list[AnyEvent] = [
        started(1, time=0.0, step=0),
        Skipped(attempt=1, time=90.0, step=1, grad_norm=1e9, row_ids=[4, 7]),
        started(2, time=3720.0, step=2),
    ]
    page = report_page(History(steps, held_out, events))
    charts = re.findall(r"<svg.*?</svg>", page)
    assert len(charts) == 8
    for chart in charts:
        # Marks of both starts and of the skipped step, at the same places everywhere.
        assert re.findall(r"<line x1=([\d.]+) x2=\S+ y1=12 y2=206 stroke='(#\w+)'", chart) == [
            ("70.0", "#d1605e"), ("78.0", "#e49444"), ("400.7", "#d1605e"),
        ]  # fmt: skip
        assert ">hours</text>" in chart
    loss = re.findall(r"points='([^']*)'", charts[0])
    assert [len(piece.split()) for piece in loss] == [2, 2, 2, 2]
    assert charts[1].count("<circle") == 1
    assert "skipped step 1, grad norm 1000000000.0, row ids [4, 7]" in page
    assert "peak FLOP/s" in page
    assert "Seconds of the last checkpoint" not in page


def test_history_has_each_step_once(run: Path) -> None:
    history = read_history(str(run))
    assert [record.step for record in history.steps] == list(range(1, 10))
    assert [record.step for record in history.held_out] == [3, 6, 9]
    assert {event.event for event in history.events} >= {"started", "stopped", "finished"}


def test_a_later_attempt_counts_and_unfinished_lines_do_not(tmp_path: Path) -> None:
    for attempt, loss in ((1, 5.0), (2, 4.0), (10, 3.0)):
        folder = tmp_path / "metrics" / f"attempt-{attempt:06d}"
        folder.mkdir(parents=True)
        line = json.dumps(step_record(7, time=attempt, loss=loss).to_json()) + "\n"
        (folder / "rank-00000.jsonl").write_text(line + '{"step": 8, "ti')
        (folder / "rank-00001.jsonl").write_text(line.replace('"step": 7', '"step": 9'))
    assert [(one.step, one.loss) for one in read_history(str(tmp_path)).steps] == [(7, 3.0)]


def test_a_log_of_another_version_or_with_a_wrong_field_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "metrics" / "attempt-000001"
    folder.mkdir(parents=True)
    file = folder / "rank-00000.jsonl"
    file.write_text(json.dumps({"event": "started", "time": 1.0, "attempt": 1}) + "\n")
    with pytest.raises(CheckpointError, match=r"rank-00000.jsonl:1: log version 1, but .* reads version 2"):
        read_history(str(tmp_path))
    file.write_text(json.dumps({**step_record(7).to_json(), "lr": "high"}) + "\n")
    with pytest.raises(
        CheckpointError, match=r"rank-00000.jsonl:1: not a line of a log: lr: Input should be"
    ):
        read_history(str(tmp_path))


def started(attempt: int, **fields: Any) -> Started:
    known = {"rank": 0, "host": "a", "process": 1, "world_size": 1, "device": "cpu", "total_steps": 4}
    kernel = {"name": "padded", "reason": "no GPU"}
    more = {"kernel": kernel, "parameters": 9, "config": {}, "model": {}}
    return Started.model_validate({**known, **more, "attempt": attempt, **fields})


def test_a_folder_without_log_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    expected = f"bertmill: {tmp_path}/metrics: no training log here; check the URI of the run\n"
    assert capsys.readouterr().err == expected


def test_chart_places_points_by_scale() -> None:
    text = line_chart(
        [Line("a <b>", [(0, 10), (5, 20), (10, math.nan), (10, 30)])], "h", [Mark(5, "half & half")]
    )
    places = re.search(r"points='([^']*)'", text)
    assert places is not None
    (x0, y0), (x1, y1), (x2, y2) = (tuple(map(float, one.split(","))) for one in places[1].split())
    assert x1 - x0 == pytest.approx(x2 - x1)
    assert y0 - y1 == pytest.approx(y1 - y2)
    assert y0 > y2
    assert "a &lt;b&gt;" in text
    assert "half &amp; half" in text


@pytest.mark.parametrize("points", [[(1, 2)], [(1, 5), (2, 5)], [(0, 0)], [(-3, -1e9), (4, 1e9)]])
def test_charts_of_few_or_equal_points_are_drawn(points: list[tuple[float, float]]) -> None:
    text = line_chart([Line("x", points)], "h")
    quoted = re.sub(r"(\w+)=([^\s'\">/]+)", r"\1='\2'", text)
    drawn = ElementTree.fromstring(quoted).find("polyline")
    assert drawn is not None
    assert len(drawn.attrib["points"].split()) == len(points)
    assert "nan" not in text


def test_an_empty_log_is_reported() -> None:
    assert line_chart([Line("x", [(1, math.inf)])], "h") == "<p>Nothing was measured.</p>"


def test_long_lines_are_thinned_to_means() -> None:
    short = thinned([(x, 2.0 * x) for x in range(6000)])
    assert len(short) == 600
    assert short[0] == (4.5, 9.0)
    assert all(y == pytest.approx(2 * x) for x, y in short)
