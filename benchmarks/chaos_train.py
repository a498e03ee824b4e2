"""Breaks trainings in every way we know and shows that what comes out is what an undisturbed run gives.

    PYTHONPATH=. python benchmarks/chaos_train.py --faults 100 --table benchmarks/chaos_train.md

Each run trains a tiny model for STEPS steps with a checkpoint every EVERY steps. Its lives end by faults
drawn from a list (see FAULTS_* here and RANK_FAULTS in chaos_ranks.py); each next life goes on under the
same run name. Checked for every run: it comes to its end; every execution of every step had the rows that
the undisturbed run had, on every rank; each life goes on from the newest committed checkpoint that is not
damaged; no more than EVERY finished steps are repeated, plus those that a save in flight had not yet
covered; the final weights have the same SHA-256 as the undisturbed run's (the same loss to 1e-5 when the
number of ranks changes); and nothing is left over in storage or in the folder for temporary files.
"""

import argparse
import collections
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
import yaml

from benchmarks.chaos_ranks import RANK_FAULTS, SAVE_STAGES, Fault, Group, Life
from benchmarks.chaos_store import Store
from cluster import storage
from tests.trainer.synthetic import write_corpus
from trainer.checkpoint_format import MANIFEST, scan

STEPS, EVERY, KEEP, MAX_FAILED = 48, 4, 2, 3
TITLE = "Trainings broken in every way we know"
EXPLAINED = (
    f"Each run has {STEPS} steps and a checkpoint every {EVERY} steps; a step takes about as long as a save"
    " here, so a save is in flight at most moments of death. Steps repeated: those that the life before had"
    " made and the next life made again."
)
FAULTS_BESIDE = ("second trainer under the same name", "world size changes")
FAULTS_DAMAGE = ("byte flipped", "file cut", "file deleted", "manifest cut", "manifest deleted")
FAULTS_S3 = ("S3 frozen 2 s", "S3 killed and restarted", "bad network", "S3 denies one save")
_GO_ON = ("disk full, one save", *FAULTS_S3)
"""After these the life goes on; it is ended by a kill of all ranks some steps later."""


@dataclass
class Run:
    """One training with its lives."""

    uri: str
    config: Path
    folder: Path
    store: Store
    random: random.Random
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
        """Notes a broken promise."""
        if not condition:
            self.problems.append(f"{self.uri} life {len(self.lives)}: {text}")

    def committed(self) -> int:
        """The step of the newest committed checkpoint that is not damaged, 0 for none."""
        good = (f.step for f in scan(self.uri) if f.committed and f.uri not in self.broken)
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
        "logging": {"every_steps": 1, "tensorboard": False},
        "workers": {"collective_timeout_seconds": 15},
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def undisturbed(run: Run, world: int) -> Life:
    """The run that all others are compared with."""
    life = Group(run.config, world, Fault(), run.folder, 0).wait()
    if not life.finished:
        raise SystemExit(f"the undisturbed run failed: {life.statuses}\n{life.output[-3000:]}")
    return life


def live_through(run: Run, kinds: list[str], worlds: list[int]) -> None:
    """Lives with the faults of ``kinds`` one after another until the run is finished."""
    while len(run.lives) < 80:
        kind = kinds.pop() if run.committed() < STEPS - 2 * EVERY and kinds else "none"
        world = worlds[len(run.lives) % len(worlds)]
        before = run.committed()
        life = one_life(run, kind, world, before)
        examine(run, life, before)
        happened = kind != "none" and not life.finished
        if kind in ("disk full, one save", "S3 denies one save"):
            happened = life.failed_saves > 0
        if kind in FAULTS_DAMAGE and happened:
            happened = damage(run, kind)
        run.happened = happened
        if happened:
            run.faults.append(kind if not life.fault.stage else f"{kind}: {life.fault.stage}")
        if life.finished:
            return
    run.check(False, "did not finish in 80 lives")


def one_life(run: Run, kind: str, world: int, before: int) -> Life:
    """Starts the ranks, lets the fault happen, waits for their end."""
    number = len(run.lives) + 1
    step = before + run.random.randrange(1, EVERY + 2)
    if kind in RANK_FAULTS or kind == "S3 denies one save":
        stage = run.random.choice(SAVE_STAGES) if kind == "kill while saving" else ""
        rank = 0 if "sav" in kind and "SIGTERM" not in kind else run.random.randrange(world)
        fault = Fault(kind, 0 if kind.startswith("disk full") else rank, step, stage)
    elif kind in FAULTS_DAMAGE or kind == "world size changes":
        fault = Fault("kill all", 0, step)
    else:
        fault = Fault()
    group = Group(run.config, world, fault, run.folder, number)
    if kind in (*_GO_ON, "second trainer under the same name"):
        beside(run, group, kind, step, number)
    life = group.wait()
    run.store.heal()
    run.lives.append(life)
    return life


def beside(run: Run, group: Group, kind: str, step: int, number: int) -> None:
    """Faults that come from outside the ranks."""
    if kind == "bad network":
        run.store.break_network()
    until(group, step)
    if kind == "S3 frozen 2 s":
        run.store.freeze(2.0)
    elif kind == "S3 killed and restarted":
        run.store.restart()
    elif kind == "second trainer under the same name":
        newer = Group(
            run.config, group.world, Fault("kill all", 0, step + 2 * EVERY), run.folder, number + 500
        )
        older = group.wait()
        examine_rows(run, older)
        run.check(not older.finished or older.committed[-1:] == [STEPS], "the older trainer finished")
        run.check("has been replaced by attempt" in older.output, f"not fenced: {older.output[-300:]}")
        group.adopt(newer)
        return
    until(group, step + EVERY + 2)
    group.kill()


def until(group: Group, step: int) -> None:
    """Returns when the group has begun ``step`` or has ended."""
    deadline = time.monotonic() + 120
    while group.steps_done() < min(step, STEPS - 1) and not group.poll() and time.monotonic() < deadline:
        time.sleep(0.01)


def examine(run: Run, life: Life, before: int) -> None:
    """Checks where the life began and what it repeated."""
    examine_rows(run, life)
    earlier = run.lives[:-1]
    if life.resumed < 0:
        run.check(bool(earlier) or not life.made, "no life without a beginning")
        return
    run.check(life.resumed >= before, f"went on at {life.resumed}, not at {before}")
    if not earlier:
        return
    done = max(earlier[-1].made, default=earlier[-1].resumed)
    repeated = max(0, done - life.resumed)
    kind = run.faults[-1] if run.faults else "none"
    # Up to one interval; the save that was due may have been in flight; failed and damaged ones are lost.
    in_flight = before < done - done % EVERY
    lost = sum(step > before for step in run.broken.values()) + earlier[-1].failed_saves
    lost += MAX_FAILED * (earlier[-1].fault.kind == "disk full until the run stops")
    run.check(repeated <= EVERY * (1 + in_flight + lost), f"{repeated} steps repeated after {kind!r}")
    if run.happened:
        run.repeated.append((kind, repeated))


REFERENCE: dict[int, dict[int, list[int]]] = {}
"""Step -> rank -> rows of the undisturbed run."""


def examine_rows(run: Run, life: Life) -> None:
    """Compares every execution of every step with the undisturbed run."""
    for step, ranks in life.made.items():
        expected = REFERENCE[step]
        if life.world == len(expected):
            right = all(expected[rank] == rows for rank, rows in ranks.items())
        else:
            whole = sorted(row for rows in expected.values() for row in rows)
            found = sorted(row for rows in ranks.values() for row in rows)
            right = found == whole if len(ranks) == life.world else set(found) <= set(whole)
        run.check(right, f"step {step} had other rows")


def damage(run: Run, kind: str) -> bool:
    """Damages the newest good checkpoint, unless it is the only one; whether it did."""
    committed = [f for f in scan(run.uri) if f.committed and f.uri not in run.broken]
    if len(committed) < 2:
        return False
    tensors = sorted(name for name in committed[0].files if not name.endswith(".json"))
    name = MANIFEST if kind.startswith("manifest") else run.random.choice(tensors)
    uri = storage.join(committed[0].uri, name)
    run.broken[committed[0].uri] = committed[0].step
    if kind.endswith("deleted"):
        storage.delete(uri)
        return True
    data = bytearray(storage.read_bytes(uri))
    if kind.endswith("cut"):
        del data[len(data) // 2 :]
    else:
        data[run.random.randrange(len(data))] ^= 1 << run.random.randrange(8)
    storage.put_bytes(uri, bytes(data))
    return True


def examine_end(run: Run, reference: Life, exact: bool) -> float:
    """Compares the end of the run with the undisturbed one; the difference of the losses."""
    last = run.lives[-1]
    difference = abs((last.loss or 0.0) - (reference.loss or 0.0))
    run.exact = last.weights == reference.weights
    run.check(run.exact or not exact, "the final weights differ")
    run.check(difference <= (0.0 if exact else 1e-5), f"the final loss differs by {difference:.2e}")
    folders = scan(run.uri)
    run.check(len(folders) == KEEP, f"{len(folders)} checkpoint folders are left, {KEEP} are kept")
    run.check(storage.abort_uploads(run.uri, 4e9) == 0, "unfinished uploads are left")
    claims = storage.list_files(storage.join(run.uri, "attempts"))
    run.check(len(claims) <= 18, f"{len(claims)} claims are left")
    kinds = [kind for kind in Path(tempfile.gettempdir()).glob("bertmill-*") if kind.name.endswith("save")]
    left = [path for kind in kinds for path in kind.iterdir()]
    savers = last.world if "sharded" in run.config.read_text() else 1
    run.check(len(left) <= savers, f"temporary folders are left: {left}")
    return difference


def kinds_for(place: str, count: int, generator: random.Random) -> list[str]:
    """``count`` faults: every kind about equally often, in random order."""
    known = [*RANK_FAULTS, "kill while saving", "kill while saving", *FAULTS_DAMAGE, FAULTS_BESIDE[0]]
    if place == "s3":
        known += FAULTS_S3
    rounds = [generator.sample(known, len(known)) for _ in range(count // len(known) + 1)]
    return [kind for kinds in rounds for kind in kinds][:count]


def chaos(place: str, arguments: argparse.Namespace, folder: Path, store: Store, manifest: Path) -> list[str]:
    """All runs on one storage; the lines of the report."""
    generator, world_runs = random.Random(arguments.seed), arguments.world_runs
    base = store.base
    begun = time.monotonic()

    def new_run(name: str, dropout: float = 0.1) -> Run:
        uri = f"{base}/{name}"
        inner = folder / f"{place}-{name}"
        inner.mkdir()
        return Run(
            uri, write_config(inner, manifest, uri, dropout, arguments.format), inner, store, generator
        )

    runs: list[Run] = []
    reference = undisturbed(new_run("undisturbed"), 2)
    REFERENCE.clear()
    REFERENCE.update(reference.made)
    kinds = kinds_for(place, arguments.faults, generator)
    while kinds:
        run = new_run(f"run-{len(runs):02d}")
        live_through(run, kinds, [2])
        examine_end(run, reference, exact=True)
        runs.append(run)
        show(run)
    changing, differences = [], []
    if world_runs:
        reference = undisturbed(new_run("undisturbed-no-dropout", dropout=0.0), 2)
    for number in range(world_runs):
        run = new_run(f"worlds-{number}", dropout=0.0)
        live_through(run, ["world size changes"] * 8, [2, 1, 3])
        differences.append(examine_end(run, reference, exact=False))
        changing.append(run)
        show(run)
    return report(place, runs, changing, differences, time.monotonic() - begun)


def show(run: Run) -> None:
    """One line about a finished run."""
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
        f"{sum(faults.values())} faults in {len(everything)} runs ({lives} lives), {seconds:.0f} s."
        f" {sum(run.steps for run in everything)} steps were needed, {executed} were executed."
        f" {ended} of {len(everything)} runs came to their end; {len(problems)} promises were broken.",
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
        steps = repeated.get(kind, [0])
        lines.append(f"| {kind} | {times} | {statistics.median(steps):g} | {max(steps)} |")
    return [*lines, "", *(f"- {problem}" for problem in problems)]


def main() -> int:
    """Runs everything; exit status 1 if a promise was broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--faults", type=int, default=100, help="faults per storage, beside those of world size"
    )
    parser.add_argument("--storage", nargs="+", choices=("file", "s3"), default=["file", "s3"])
    parser.add_argument("--world-runs", type=int, default=2, help="runs whose number of ranks changes")
    parser.add_argument("--nodes", action="store_true", help="faults of nodes, workers and drivers of a Ray")
    parser.add_argument("--format", choices=("whole", "sharded"), default="whole", help="of the checkpoints")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", type=Path, help="Markdown file to write")
    parser.add_argument("--keep", type=Path, help="folder for the diaries of all lives; deleted by default")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    tempfile.tempdir = str(folder)
    manifest = write_corpus(folder / "corpus", shard_rows=(100, 90, 0, 66), lengths=(32,))
    lines: list[str] = []
    from benchmarks import chaos_nodes  # not above: it stands on this module

    try:
        for place in arguments.storage:
            with Store(place, folder) as store:
                if arguments.nodes:
                    many, seed, form = arguments.faults, arguments.seed, arguments.format
                    lines += chaos_nodes.chaos(place, many, seed, form, folder, store, manifest)
                else:
                    lines += chaos(place, arguments, folder, store, manifest)
    finally:
        if arguments.keep:
            ignored = shutil.ignore_patterns("sockets", "session_latest")  # Ray's, not to be copied
            shutil.copytree(folder, arguments.keep, ignore=ignored, dirs_exist_ok=True)
        shutil.rmtree(folder)
    text = "\n".join(lines)
    print(text)
    if arguments.table:
        command = f"PYTHONPATH=. python {' '.join(sys.argv)}"
        about = f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} CPUs, torch {torch.__version__}."
        explained = chaos_nodes.EXPLAINED if arguments.nodes else EXPLAINED
        title = chaos_nodes.TITLE if arguments.nodes else TITLE
        arguments.table.write_text(f"# {title}\n\n    {command}\n\n{about} {explained}\n\n{text}\n")
    return 1 if " 0 promises were broken" not in text else 0


if __name__ == "__main__":
    sys.exit(main())
