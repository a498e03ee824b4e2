"""A training with injected faults, the checks of its guarantees, and the table of the results.

train.py (ranks that die) and nodes.py (nodes that die) share this module.
"""

import collections
import random
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from benchmarks.chaos.faulty_trainer import Fault
from benchmarks.chaos.ranks import Group, Life
from benchmarks.chaos.store import Store
from cluster import storage
from trainer.checkpoint.folders import list_folders

STEPS, EVERY, KEEP, MAX_FAILED = 48, 4, 2, 3
Rows = dict[int, dict[int, list[int]]]
"""Step -> rank -> rows."""


@dataclass
class Run:
    """One training with its lives."""

    uri: str
    config: Path
    folder: Path
    store: Store
    random: random.Random
    expected: Rows
    """Of the undisturbed run."""
    steps: int = STEPS
    lives: list[Life] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    repeated: list[tuple[str, int]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    exact: bool = False
    happened: bool = False
    """Whether the fault of the last life took place."""
    broken: dict[str, int] = field(default_factory=dict)
    """Committed checkpoint folders that were damaged, with their steps."""

    def check(self, condition: bool, text: str) -> None:
        """Records a failed check."""
        if not condition:
            self.problems.append(f"{self.uri} life {len(self.lives)}: {text}")

    def committed(self) -> int:
        """The step of the newest committed checkpoint that is not damaged, 0 for none."""
        good = (f.step for f in list_folders(self.uri) if f.committed and f.uri not in self.broken)
        return next(good, 0)


def write_config(folder: Path, manifest: Path, uri: str, dropout: float, form: str) -> Path:
    """The YAML of a tiny training."""
    where, _, name = uri.rpartition("/")
    model = {"size": "custom", "layers": 1, "hidden_size": 32, "heads": 2, "intermediate_size": 64}
    phase = {"max_seq_length": 32, "global_batch": 12, "micro_batch_tokens": 128, "learning_rate": 1e-3}
    config = {
        "run": {"name": name, "storage": where},
        "data": {"manifest": str(manifest), "read_threads": 1},
        "model": {**model, "max_positions": 64, "hidden_dropout": dropout},
        "phases": [{**phase, "steps": STEPS}],
        "checkpoints": {"every_steps": EVERY, "every_seconds": None, "keep": KEEP, "max_failed": MAX_FAILED}
        | {"format": form},
        "logging": {"every_steps": 1, "trackers": []},
        # The loss of a single step varies much, so an alarm would keep one more checkpoint.
        "stability": {"alarm": {"action": "off"}},
        "workers": {"collective_timeout_seconds": 15},
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def undisturbed(run: Run, world: int) -> Life:
    """Makes the run that all others are compared with."""
    life = Group(run.config, world, Fault(), run.folder, 0).wait()
    if not life.finished:
        raise SystemExit(f"the undisturbed run failed: {life.statuses}\n{life.output[-3000:]}")
    return life


def examine(run: Run, life: Life, before: int) -> None:
    """Checks where the life started and which steps it repeated."""
    examine_rows(run, life)
    earlier = run.lives[:-1]
    if life.resumed < 0:
        run.check(bool(earlier) or not life.made, "no life without a beginning")
        return
    run.check(life.resumed >= before, f"resumed at {life.resumed}, not at {before}")
    if not earlier:
        return
    done = max(earlier[-1].made, default=earlier[-1].resumed)
    repeated = max(0, done - life.resumed)
    kind = run.faults[-1] if run.faults else "none"
    # Up to one interval, and more if the save that was due was in flight, failed or was damaged.
    in_flight = before < done - done % EVERY
    lost = sum(step > before for step in run.broken.values()) + earlier[-1].failed_saves
    lost += MAX_FAILED * (earlier[-1].fault.kind == "disk full until the run stops")
    run.check(repeated <= EVERY * (1 + in_flight + lost), f"{repeated} steps repeated after {kind!r}")
    if run.happened:
        run.repeated.append((kind, repeated))


def examine_rows(run: Run, life: Life) -> None:
    """Compares every execution of every step with the undisturbed run."""
    for step, ranks in life.made.items():
        expected = run.expected[step]
        if life.world == len(expected):
            right = all(expected[rank] == rows for rank, rows in ranks.items())
        else:
            whole = sorted(row for rows in expected.values() for row in rows)
            found = sorted(row for rows in ranks.values() for row in rows)
            right = found == whole if len(ranks) == life.world else set(found) <= set(whole)
        run.check(right, f"step {step} had other rows")


def examine_end(run: Run, reference: Life, exact: bool) -> float:
    """Compares the end of the run with the undisturbed one. Returns the difference of the losses."""
    last = run.lives[-1]
    difference = abs((last.loss or 0.0) - (reference.loss or 0.0))
    run.exact = last.weights == reference.weights
    run.check(run.exact or not exact, "the final weights differ")
    run.check(difference <= (0.0 if exact else 1e-5), f"the final loss differs by {difference:.2e}")
    folders = list_folders(run.uri)
    run.check(len(folders) == KEEP, f"{len(folders)} checkpoint folders are left, {KEEP} are kept")
    files = storage.list_files(storage.join(run.uri, "attempts"))
    claims = [file for file in files if file.uri.endswith(".json")]
    run.check(len(claims) <= 18, f"{len(claims)} claims are left")
    # A start removes what killed attempts were writing only when it is an hour old, so it may still be there.
    storage.abort_uploads(run.uri, max(claim.modified for claim in claims))
    run.check(storage.abort_uploads(run.uri, 4e9) == 0, "the last attempt left unfinished uploads")
    kinds = [kind for kind in Path(tempfile.gettempdir()).glob("bertmill-*") if kind.name.endswith("save")]
    left = [path for kind in kinds for path in kind.iterdir()]
    savers = last.world if "sharded" in run.config.read_text() else 1
    run.check(len(left) <= savers, f"temporary folders are left: {left}")
    return difference


def show(run: Run) -> None:
    """Prints a line about a finished run."""
    print(
        f"{run.uri}: {len(run.lives)} lives, {len(run.faults)} faults, {len(run.problems)} problems",
        flush=True,
    )
    for problem in run.problems:
        print(f"    {problem}", flush=True)


def report(
    place: str, runs: list[Run], changing: list[Run], differences: list[float], seconds: float
) -> list[str]:
    """The table of one storage as Markdown lines."""
    everything = runs + changing
    faults = collections.Counter(kind for run in everything for kind in run.faults)
    repeated: dict[str, list[int]] = collections.defaultdict(list)
    for run in everything:
        for kind, steps in run.repeated:
            repeated[kind].append(steps)
    problems = [problem for run in everything for problem in run.problems]
    executed = sum(len(life.made) for run in everything for life in run.lives)
    lives = sum(len(run.lives) for run in everything)
    ended = sum(run.lives[-1].finished for run in everything)
    lines = [
        f"## {place}",
        "",
        f"{sum(faults.values())} faults in {len(everything)} runs ({lives} attempts), {seconds:.0f} s."
        f" {sum(run.steps for run in everything)} steps were needed, {executed} were executed."
        f" {ended} of {len(everything)} runs finished, and {len(problems)} checks failed.",
        "",
        f"Same number of ranks: {sum(run.exact for run in runs)} of {len(runs)} runs ended with weights of"
        " the same SHA-256 as the undisturbed run.",
        f"Changing number of ranks (2, 1, 3, ...), {len(differences)} runs: the last loss differs by at most"
        f" {max(differences, default=0):.1e}.",
        "",
        "| fault | times | steps repeated after it: median | most |",
        "|---|---:|---:|---:|",
    ]
    for kind, times in sorted(faults.items()):
        counts = repeated.get(kind, [0])
        lines.append(f"| {kind} | {times} | {statistics.median(counts):g} | {max(counts)} |")
    return [*lines, "", *(f"- {problem}" for problem in problems)]
