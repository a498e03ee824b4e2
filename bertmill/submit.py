"""``bertmill submit``: the two jobs on a Ray cluster, checked here before they are sent there."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster import storage
from cluster.config_file import load_config
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
    "The config is checked here first. The working directory is uploaded and the job runs in a copy of it, "
    "so its output must be a URI or an absolute shared path. A job has a stable name: while it goes, it is "
    "not submitted again; after it has ended, the same line goes on where it was."
)
_DESCRIPTIONS = {
    "build": f"Builds a corpus on the cluster. {_SUBMITTED} Example: bertmill submit build --config "
    "configs/wikipedia-104.yaml -- --dedup.near=true",
    "pretrain": f"Trains on the cluster. {_SUBMITTED} Example: bertmill submit pretrain --config "
    "configs/bert-base-multilingual.yaml -- --workers.num_workers=8",
}
_RUNTIME_ENV = "infra/runtime_env.yaml"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds ``submit`` to the console command."""
    parser = commands.add_parser(
        "submit",
        help="run a job on a Ray cluster",
        description="Submits a job to a Ray cluster and follows its output. The exit status is the job's. "
        "The cluster is that of --address or RAY_ADDRESS (the dashboard, http://host:8265); "
        "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN open it. Ctrl-C leaves the job running.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for kind in _ENTRIES:
        text = f"submit a {kind} job; fields of its config behind -- are passed on to it"
        _add_job(actions.add_parser(kind, help=text, description=_DESCRIPTIONS[kind]))
    for name, text in {"follow": "show the output of a job until it ends", "stop": "end a job"}.items():
        action = actions.add_parser(name, help=text)
        action.add_argument("submission", metavar="ID", help="submission id, as printed by submit")
        action.add_argument("--address", help="dashboard of the cluster")
    parser.set_defaults(execute=run)


def _add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", required=True, metavar="URI", help="the job's config")
    parser.add_argument("--address", help="dashboard of the cluster")
    parser.add_argument("--name", help="name of the job (default: from the config's name and content)")
    parser.add_argument("--no-wait", action="store_true", help="return once the job is submitted")
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME", help="pass this variable on to the job"
    )
    parser.add_argument("--working-dir", metavar="DIR", default=".", help="checkout to upload (default: .)")
    parser.add_argument(
        "--image", action="store_true", help="upload nothing: the cluster's image has bertmill and the config"
    )
    parser.add_argument(
        "--runtime-env", metavar="FILE", help=f"default: DIR/{_RUNTIME_ENV}; with --image none"
    )
    parser.add_argument("overrides", nargs="*", metavar="-- --FIELD=VALUE", help="passed on to the job")


def run(arguments: argparse.Namespace) -> int:
    """The exit status of the job; 0 for one that is not waited for."""
    from cluster import submit

    if arguments.action == "stop":
        was_running = submit.stop(submit.connect(arguments.address), arguments.submission)
        print(f"{arguments.submission}: " + ("stopping" if was_running else "has ended already"))
        return 0
    if arguments.action == "follow":
        return _follow(submit.connect(arguments.address), arguments.submission)
    check(arguments.action, arguments.config, arguments.overrides, uploads=not arguments.image)
    words, environment = _command(arguments)
    name = arguments.name or submit.job_name(
        arguments.action, arguments.config, storage.read_bytes(arguments.config), arguments.overrides
    )
    client = submit.connect(arguments.address)
    submission = submit.submit(client, submit.Job(name, words, environment, {"config": arguments.config}))
    print(f"bertmill: submitted {submission}", file=sys.stderr)
    return 0 if arguments.no_wait else _follow(client, submission)


def check(kind: str, config_uri: str, overrides: Sequence[str], *, uploads: bool) -> None:
    """Refuses here, in a second, what would fail on the cluster in minutes.

    Raises ConfigError for a wrong config, and for an output that would be lost: a job whose working
    directory is uploaded runs in a copy that is deleted, on a machine that may go.
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
            f"{config_uri}: {field}: {output!r} is relative, and the job runs in a copy of the working "
            "directory that is deleted; give a URI such as s3://bucket/folder, or an absolute shared path"
        )


def _command(arguments: argparse.Namespace) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The command line on the cluster, and the runtime environment. Raises ConfigError."""
    from cluster import submit

    missing = [name for name in arguments.env if name not in os.environ]
    if missing:
        raise ConfigError(f"--env {missing[0]}: the variable is not set here")
    variables = {name: os.environ[name] for name in arguments.env}
    script, module = _ENTRIES[arguments.action]
    if arguments.image:
        if "://" not in arguments.config:
            raise ConfigError(
                f"{arguments.config}: with --image the config must be a URI that the cluster can read"
            )
        words = ("python", "-m", module, "--config", arguments.config, *arguments.overrides)
        given = arguments.runtime_env
        return words, submit.read_runtime_env(given, None, variables) if given else {"env_vars": variables}
    folder = Path(arguments.working_dir).resolve()
    if not (folder / script).is_file():
        raise ConfigError(f"--working-dir {folder}: no {script} there; name the checkout, or use --image")
    words = ("python", script, "--config", _uploaded(arguments.config, folder), *arguments.overrides)
    given = arguments.runtime_env or str(folder / _RUNTIME_ENV)
    return words, submit.read_runtime_env(given, folder, variables)


def _uploaded(config: str, folder: Path) -> str:
    """The config as the job sees it, from its copy of the working directory."""
    if "://" in config:
        return config
    path = Path(config).resolve()
    if not path.is_relative_to(folder):
        raise ConfigError(f"{config}: not in {folder}, which is uploaded; put it there or give a URI")
    return str(path.relative_to(folder))


def _follow(client: "JobSubmissionClient", submission: str) -> int:
    from cluster import submit

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    try:
        details = submit.follow(client, submission, write)
    except KeyboardInterrupt:
        print(f"\nbertmill: {submission} goes on; bertmill submit follow|stop {submission}", file=sys.stderr)
        return 130
    status = submit.exit_status(details)
    print(f"bertmill: {submission} {str(details.status).lower()}", file=sys.stderr)
    return status
