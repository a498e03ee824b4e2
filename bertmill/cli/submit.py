"""``bertmill submit``: runs the two jobs on a Ray cluster, after checking their configs here."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertmill.cli.argument_types import Commands
from cluster import storage
from cluster.jobs.config_file import load_config
from pipeline.config import BuildConfig
from schemas.errors import ConfigError
from trainer.config import TrainConfig

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

# Job -> entry file in a working directory, and module in an image that has bertmill installed.
_ENTRIES = {
    "build": ("pipeline/build_corpus.py", "pipeline.build_corpus"),
    "pretrain": ("trainer/pretrain.py", "trainer.pretrain"),
}
_SUBMITTED = (
    "Checks the config here first. Ray uploads the working directory and runs the job in a copy of it, "
    "so the output must be a URI or an absolute shared path. The job's name follows from its config: a "
    "running job is not submitted twice, and after it has ended the same command resumes it."
)
_DESCRIPTIONS = {
    "build": f"Builds a corpus on the cluster. {_SUBMITTED} Example: bertmill submit build --config "
    "configs/wikipedia-104.yaml -- --dedup.near=true",
    "pretrain": f"Trains on the cluster. {_SUBMITTED} Example: bertmill submit pretrain --config "
    "configs/bert-base-multilingual.yaml -- --workers.num_workers=8",
}
_TAKE_OVER = "--take-over"
_RUNTIME_ENV = "infra/runtime_env.yaml"


def add_parser(commands: Commands) -> None:
    """Adds ``submit`` to the console command."""
    parser = commands.add_parser(
        "submit",
        help="run a job on a Ray cluster",
        description="Submits a job to a Ray cluster and follows its output. The exit status is the job's. "
        "--address or RAY_ADDRESS names the cluster's dashboard (http://host:8265); RAY_AUTH_MODE=token and "
        "RAY_AUTH_TOKEN authenticate. Ctrl-C leaves the job running.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for kind in _ENTRIES:
        text = f"submit a {kind} job; config overrides follow --"
        _add_job(actions.add_parser(kind, help=text, description=_DESCRIPTIONS[kind]))
    for name, text in {"follow": "show the output of a job until it ends", "stop": "stop a job"}.items():
        action = actions.add_parser(name, help=text)
        action.add_argument("submission", metavar="ID", help="submission id that submit printed")
        action.add_argument("--address", help="URL of the cluster's dashboard")
    parser.set_defaults(execute=run)


def _add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", required=True, metavar="URI", help="the job's config")
    parser.add_argument("--address", help="URL of the cluster's dashboard")
    parser.add_argument("--name", help="name of the job (default: from the config's name and content)")
    parser.add_argument("--no-wait", action="store_true", help="return after submitting the job")
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME",
        help="pass this environment variable to the job; may be repeated",
    )
    parser.add_argument("--working-dir", metavar="DIR", default=".", help="checkout to upload (default: .)")
    parser.add_argument(
        "--image", action="store_true", help="upload nothing: the cluster's image contains bertmill"
    )
    parser.add_argument(
        "--runtime-env",
        metavar="FILE",
        help=f"runtime environment (default: DIR/{_RUNTIME_ENV}; with --image none)",
    )
    parser.add_argument("overrides", nargs="*", metavar="-- --FIELD=VALUE", help="override config fields")


def run(arguments: argparse.Namespace) -> int:
    """Submits the job. Returns its exit status, or 0 with --no-wait."""
    from cluster.ray_cluster import submit

    if arguments.action == "stop":
        was_running = submit.stop(submit.connect(arguments.address), arguments.submission)
        print(f"{arguments.submission}: " + ("stopping" if was_running else "has already ended"))
        return 0
    if arguments.action == "follow":
        return _follow(submit.connect(arguments.address), arguments.submission)
    names = [text for text in arguments.overrides if text != _TAKE_OVER]
    take_over = len(names) < len(arguments.overrides)
    # The name of the job stays the same, so that no second job of that name is submitted.
    overrides = [*names, "--run.take_over=true"] if take_over else names
    check(arguments.action, arguments.config, overrides, uploads=not arguments.image)
    command, environment = _command(arguments)
    name = arguments.name or submit.job_name(
        arguments.action, arguments.config, storage.read_bytes(arguments.config), names
    )
    client = submit.connect(arguments.address)
    submission = submit.submit(client, submit.Job(name, command, environment, {"config": arguments.config}))
    print(f"bertmill: submitted {submission}", file=sys.stderr)
    return 0 if arguments.no_wait else _follow(client, submission)


def check(kind: str, config_uri: str, overrides: Sequence[str], *, uploads: bool) -> None:
    """Refuses a job that would fail on the cluster after minutes.

    Raises ConfigError for a wrong config, and for an output that would be lost: with ``uploads``, the job
    runs in a copy of the working directory that Ray deletes.
    """
    config: BuildConfig | TrainConfig
    if kind == "build":
        config = load_config(BuildConfig, config_uri, overrides)
        field, output = "output", config.output
    else:
        config = load_config(TrainConfig, config_uri, overrides)
        field, output = "run.storage", config.run.storage
    if uploads and "://" not in output and not output.startswith("/"):
        raise ConfigError(
            f"{config_uri}: {field}: {output!r} is relative, but the job runs in a copy of the working "
            "directory that Ray deletes; use a URI such as s3://bucket/folder, or an absolute shared path"
        )


def _command(arguments: argparse.Namespace) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The command on the cluster and its runtime environment. Raises ConfigError."""
    from cluster.ray_cluster import submit

    missing = [name for name in arguments.env if name not in os.environ]
    if missing:
        raise ConfigError(f"--env {missing[0]}: the variable is not set; export it first")
    variables = {name: os.environ[name] for name in arguments.env}
    script, module = _ENTRIES[arguments.action]
    if arguments.image:
        if "://" not in arguments.config:
            raise ConfigError(
                f"{arguments.config}: with --image the config must be a URI that the cluster can read"
            )
        command = ("python", "-m", module, "--config", arguments.config, *arguments.overrides)
        runtime_env = arguments.runtime_env
        return command, submit.read_runtime_env(runtime_env, None, variables) if runtime_env else {
            "env_vars": variables
        }
    folder = Path(arguments.working_dir).resolve()
    if not (folder / script).is_file():
        raise ConfigError(f"--working-dir {folder}: contains no {script}; name the checkout, or use --image")
    command = ("python", script, "--config", _uploaded(arguments.config, folder), *arguments.overrides)
    runtime_env = arguments.runtime_env or str(folder / _RUNTIME_ENV)
    return command, submit.read_runtime_env(runtime_env, folder, variables)


def _uploaded(config: str, folder: Path) -> str:
    """The config as the job sees it, from its copy of the working directory."""
    if "://" in config:
        return config
    path = Path(config).resolve()
    if not path.is_relative_to(folder):
        raise ConfigError(f"{config}: not in {folder}, which is uploaded; move it there or use a URI")
    return str(path.relative_to(folder))


def _follow(client: "JobSubmissionClient", submission: str) -> int:
    from cluster.ray_cluster import submit

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    try:
        details = submit.follow(client, submission, write)
    except KeyboardInterrupt:
        print(
            f"\nbertmill: {submission} is still running; bertmill submit follow|stop {submission}",
            file=sys.stderr,
        )
        return 130
    status = submit.exit_status(details)
    print(f"bertmill: {submission} {str(details.status).lower()}", file=sys.stderr)
    return status
