"""Disturbs training in every known way and shows that the result equals that of an undisturbed run.

    python -m benchmarks.chaos.train --faults 100 --table benchmarks/results/chaos_train.md

Each run trains a tiny model for STEPS steps with a checkpoint every EVERY steps. Faults from a list end its
lives (see FAULTS_* here and RANK_FAULTS in ranks.py), and the next life resumes under the same run
name. Checks for every run: it finishes. Every execution of every step has the rows of the undisturbed run, on
every rank. Each life resumes from the newest committed checkpoint that is not damaged. It repeats at most
EVERY finished steps, plus those that a save in flight had not yet covered. The final weights have the same
SHA-256 as the undisturbed run's (the same loss to 1e-5 when the number of ranks changes). Nothing is left
over in storage or in the folder for temporary files.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.chaos import nodes as chaos_nodes
from benchmarks.chaos.faulty_trainer import RANK_FAULTS, SAVE_STAGES, Fault
from benchmarks.chaos.ranks import Group, Life
from benchmarks.chaos.runs import (
    EVERY,
    STEPS,
    Rows,
    Run,
    examine,
    examine_end,
    examine_rows,
    report,
    show,
    undisturbed,
    write_config,
)
from benchmarks.chaos.store import Store
from cluster import storage
from tests.trainer.synthetic import write_corpus
from trainer.checkpoint.folders import list_folders
from trainer.checkpoint.manifest import MANIFEST

TITLE = "Training runs with injected faults"
EXPLAINED = (
    f"Each run has {STEPS} steps and a checkpoint every {EVERY} steps. A step takes about as long as a save"
    " here, so most faults occur during a save. Repeated steps are those that an attempt had made and the"
    " next attempt made again."
)
FAULTS_BESIDE = ("second trainer under the same name", "world size changes")
FAULTS_DAMAGE = ("byte flipped", "file cut", "file deleted", "manifest cut", "manifest deleted")
FAULTS_S3 = ("S3 frozen 2 s", "S3 killed and restarted", "bad network", "S3 denies one save")
_GO_ON = ("disk full, one save", *FAULTS_S3)
"""Faults that training survives. A kill of all ranks some steps later ends the attempt."""


def live_through(run: Run, kinds: list[str], worlds: list[int]) -> None:
    """Injects the faults of ``kinds``, one per life, until the run is finished."""
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
    """Starts the ranks, injects the fault, and waits for their end."""
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
    """Injects faults from outside the ranks."""
    if kind == "bad network":
        run.store.break_network()
    until(group, step)
    if kind == "S3 frozen 2 s":
        run.store.freeze(2.0)
    elif kind == "S3 killed and restarted":
        run.store.restart()
    elif kind == "second trainer under the same name":
        fault = Fault("kill all", 0, step + 2 * EVERY)
        # The older one is frozen until the newer one owns the run, because it could finish before that.
        group.signal(signal.SIGSTOP)
        newer = Group(run.config, group.world, fault, run.folder, number + 500, ["--run.take_over=true"])
        deadline = time.monotonic() + 120
        while newer.resumed() is None and not newer.poll() and time.monotonic() < deadline:
            time.sleep(0.01)
        group.signal(signal.SIGCONT)
        older = group.wait()
        examine_rows(run, older)
        fenced = "has been replaced by attempt" in older.output
        run.check(fenced or older.committed[-1:] == [STEPS], f"not fenced: {older.output[-300:]}")
        group.adopt(newer)
        return
    until(group, step + EVERY + 2)
    group.kill()


def until(group: Group, step: int) -> None:
    """Returns when the group has started ``step`` or has ended."""
    deadline = time.monotonic() + 120
    while group.steps_done() < min(step, STEPS - 1) and not group.poll() and time.monotonic() < deadline:
        time.sleep(0.01)


def damage(run: Run, kind: str) -> bool:
    """Damages the newest good checkpoint, unless it is the only one. Returns whether it did."""
    committed = [f for f in list_folders(run.uri) if f.committed and f.uri not in run.broken]
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


def kinds_for(place: str, count: int, generator: random.Random) -> list[str]:
    """Draws ``count`` faults: every kind about equally often, in random order."""
    known = [*RANK_FAULTS, "kill while saving", "kill while saving", *FAULTS_DAMAGE, FAULTS_BESIDE[0]]
    if place == "s3":
        known += FAULTS_S3
    rounds = [generator.sample(known, len(known)) for _ in range(count // len(known) + 1)]
    return [kind for kinds in rounds for kind in kinds][:count]


def chaos(place: str, arguments: argparse.Namespace, folder: Path, store: Store, manifest: Path) -> list[str]:
    """Makes all runs on one storage. Returns the lines of the report."""
    generator, world_runs = random.Random(arguments.seed), arguments.world_runs
    base = store.base
    started = time.monotonic()

    def new_run(name: str, expected: Rows, dropout: float = 0.1) -> Run:
        uri = f"{base}/{name}"
        inner = folder / f"{place}-{name}"
        inner.mkdir()
        config = write_config(inner, manifest, uri, dropout, arguments.format)
        return Run(uri, config, inner, store, generator, expected)

    runs: list[Run] = []
    reference = undisturbed(new_run("undisturbed", {}), 2)
    rows = reference.made
    kinds = kinds_for(place, arguments.faults, generator)
    while kinds:
        run = new_run(f"run-{len(runs):02d}", rows)
        live_through(run, kinds, [2])
        examine_end(run, reference, exact=True)
        runs.append(run)
        show(run)
    changing, differences = [], []
    if world_runs:
        reference = undisturbed(new_run("undisturbed-no-dropout", {}, dropout=0.0), 2)
    for number in range(world_runs):
        run = new_run(f"worlds-{number}", rows, dropout=0.0)
        live_through(run, ["world size changes"] * 8, [2, 1, 3])
        differences.append(examine_end(run, reference, exact=False))
        changing.append(run)
        show(run)
    return report(place, runs, changing, differences, time.monotonic() - started)


def main() -> int:
    """Runs everything. Returns 1 if a check failed."""
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
    return 1 if " 0 checks failed" not in text else 0


if __name__ == "__main__":
    sys.exit(main())
