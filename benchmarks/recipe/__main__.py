"""A model from text to scores. ``english_model.sh`` and ``multilingual_model.sh`` call it.

    python -m benchmarks.recipe english --data DATA --out OUTPUT --cards 4

DATA holds pretrain/*.jsonl.zst (id, lang, title, text) and eval/ in the layout of ``bertmill scorecard``.
OUTPUT/recipe.json keeps every finished stage, so that the same command resumes after a kill.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from benchmarks.recipe.commands import Stopped, default_launcher
from benchmarks.recipe.report import page, results
from benchmarks.recipe.settings import RECIPES, Call
from benchmarks.recipe.stages import STAGES
from benchmarks.recipe.state import State
from cluster import storage
from cluster.jobs import shutdown
from cluster.jobs.paths import resolve_output_path
from schemas.errors import BertmillError


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.recipe",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("recipe", choices=sorted(RECIPES))
    made.add_argument("--data", type=Path, required=True, help="folder with pretrain/ and eval/")
    made.add_argument("--out", required=True, help="folder or URI of corpus, runs, model and results")
    made.add_argument("--work", type=Path, default=Path("work"), help="local folder (default: work)")
    made.add_argument("--cards", type=int, default=1, help="GPUs of this host, or processes with --cpu")
    made.add_argument("--cpu", action="store_true", help="train without GPUs")
    made.add_argument("--minutes", type=float, help="of pretraining (default: GPU-hours / cards)")
    made.add_argument(
        "--search-seconds", type=float, default=90.0,
        help="of each run that chooses the lr; 0 skips them (default: 90)",
    )  # fmt: skip
    made.add_argument("--launcher", choices=("ray", "torchrun", "local"), help="default: ray if installed")
    made.add_argument("--until", choices=list(STAGES), help="stop after this stage")
    made.add_argument("--toy", action="store_true", help="tiny sizes, to rehearse every stage in minutes")
    made.add_argument("overrides", nargs="*", help="after --: --field=value for every pretraining")
    return made


def call_of(arguments: argparse.Namespace) -> Call:
    """The call that the arguments describe."""
    recipe = RECIPES[arguments.recipe]
    return Call(
        recipe=recipe,
        data=arguments.data.resolve(),
        output=resolve_output_path(arguments.out),
        work=arguments.work.resolve(),
        cards=arguments.cards,
        cpu=arguments.cpu,
        minutes=arguments.minutes or 60 * recipe.gpu_hours / arguments.cards,
        search_seconds=arguments.search_seconds,
        launcher=arguments.launcher or default_launcher(arguments.cards),
        toy=arguments.toy,
        overrides=tuple(arguments.overrides),
    )


def run_stages(call: Call, until: str | None) -> None:
    """Runs the remaining stages, and writes the results. Raises BertmillError, Stopped."""
    about = {"recipe": call.recipe.name, "minutes": call.minutes, "cards": call.cards, "toy": call.toy,
             "overrides": list(call.overrides)}  # fmt: skip
    state = State(call.at("recipe.json"), about)
    for name, stage in STAGES.items():
        if state.get(name) is None:
            print(f"{name} ...", flush=True)
            state.put(name, stage(call, state) or {})
        if name == until:
            return
    found = results(call, state)
    storage.put_bytes(call.at("results.json"), (json.dumps(found, indent=1) + "\n").encode())
    storage.put_bytes(call.at("results.md"), page(found).encode())
    print(page(found))


def main() -> int:
    """Runs the command line. Returns 143 if a signal stopped it, 2 for an error."""
    arguments = parser().parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        with shutdown.handled():
            run_stages(call_of(arguments), arguments.until)
    except Stopped as stopped:
        print(f"recipe: {stopped}: stopped; rerun the same command to resume", file=sys.stderr)
        return shutdown.EXIT_STOPPED
    except BertmillError as error:
        print(f"recipe: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
