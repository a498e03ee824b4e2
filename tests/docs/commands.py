"""The shell commands of the guides, and for each program a way to check a command line without running it."""

import json
import re
import shlex
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import yaml
from click import Command, Group, UsageError
from pydantic import BaseModel

from bertmill.cli.command import argument_parser
from cluster.jobs.config_file import load_config
from pipeline import build_corpus
from pipeline.config import BuildConfig
from schemas.errors import BertmillError
from tests.infra.terraform import read_module
from tests.infra.tools import ROOT, run_tool
from trainer import pretrain
from trainer.config import TrainConfig

_JOBS: dict[str, tuple[Callable[[list[str]], tuple[Namespace, list[str]]], type[BaseModel]]] = {
    "pipeline/build_corpus.py": (build_corpus.parse_arguments, BuildConfig),
    "trainer/pretrain.py": (pretrain.parse_arguments, TrainConfig),
}
GUIDES = sorted((ROOT / "docs").glob("**/*.md"))


def commands(text: str) -> list[str]:
    """The lines of all sh blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def check(command: str) -> None:
    """Raises ValueError with the mistake in ``command``."""
    words = shlex.split(command)
    if words[0] == "export":
        return _export(command)
    checker = _CHECKERS.get(words[0])
    if checker is None:
        raise ValueError(f"no check for the program {words[0]!r}")
    try:
        return checker(words[1:])
    except BertmillError as error:
        raise ValueError(str(error)) from error
    except SystemExit as error:
        raise ValueError(f"{words[0]} refuses its arguments") from error


def _export(command: str) -> None:
    if not re.fullmatch(
        r"export (RAY_AUTH_MODE=token|RAY_AUTH_TOKEN=\$\(kubectl .* \| base64 -d\))", command
    ):
        raise ValueError(f"unknown variable: {command}")
    inner = re.search(r"\$\((kubectl .*) \| base64 -d\)", command)
    if inner:
        check(inner[1])


def _exists(path: str) -> Path:
    if not (ROOT / path).exists():
        raise ValueError(f"{path}: not in the repository")
    return ROOT / path


def _job(script: str, words: list[str]) -> None:
    _exists(script)
    parse, model = _JOBS[script]
    known, overrides = parse(words)
    load_config(model, str(_exists(known.config)), overrides)


def _python(words: list[str]) -> None:
    if words[0] == "-m":
        if words[1] != "venv":
            raise ValueError(f"python -m {words[1]}")
        return
    if words[0] in _JOBS:
        _job(words[0], words[1:])
    else:
        compile(_exists(words[0]).read_text(encoding="utf-8"), words[0], "exec")


def _echo(words: list[str]) -> None:
    """``echo JSON | COMMAND``: the input is JSON, and the command is checked like any other."""
    text, pipe, *command = words
    json.loads(text)
    if pipe != "|":
        raise ValueError(f"echo {text}: expected a pipe")
    check(shlex.join(command))


def _torchrun(words: list[str]) -> None:
    from torch.distributed.run import get_args_parser

    arguments = get_args_parser().parse_args(words)
    _job(arguments.training_script, arguments.training_script_args)


def _bertmill(words: list[str]) -> None:
    arguments = argument_parser().parse_args(words)
    if getattr(arguments, "action", "") in ("build", "pretrain"):
        from bertmill.cli.submit import check as check_submission

        check_submission(arguments.action, str(_exists(arguments.config)), arguments.overrides, uploads=True)
    elif words[0] == "plan":
        _exists(arguments.config)


def _ray(words: list[str]) -> None:
    from ray.dashboard.modules.job.cli import job_cli_group
    from ray.scripts.scripts import cli

    group: Command = cli
    if words[0] == "job":
        group, words = job_cli_group, words[1:]
    assert isinstance(group, Group)
    if words[0] not in group.commands:
        raise ValueError(f"ray has no command {words[0]}")
    try:
        context = group.commands[words[0]].make_context(words[0], words[1:])
    except UsageError as error:
        raise ValueError(error.format_message()) from error
    for value in context.params.values():
        if isinstance(value, str) and value.endswith(".yaml"):
            _exists(value)
    entry = context.params.get("entrypoint")
    if entry:
        _python(list(entry)[1:])


def _kubectl(words: list[str]) -> None:
    """The real kubectl without a server. It reports wrong flags before it connects."""
    if words[:2] == ["apply", "-k"]:
        done = run_tool("kubectl", "kustomize", str(_exists(words[2])))
        if done.returncode:
            raise ValueError(done.stderr)
        return
    done = run_tool("kubectl", "--server=http://127.0.0.1:1", "--request-timeout=2s", *words)
    if "refused" not in done.stderr:
        raise ValueError(done.stderr)


def _terraform(words: list[str]) -> None:
    module = read_module(_exists(words[0].removeprefix("-chdir=")))
    if words[1] not in ("init", "apply", "output"):
        raise ValueError(f"terraform {words[1]}")
    if words[1] == "output" and not set(words[2:]) - {"-raw"} <= module.outputs:
        raise ValueError(f"no such output: {words[2:]}")
    given = dict(words[at + 1].split("=", 1) for at, word in enumerate(words) if word == "-var")
    declared = {name: _variable(module.texts["variables.tf"], name) for name in module.variables}
    needed = {name for name, text in declared.items() if not re.search(r"^  default", text, re.M)}
    if words[1] == "apply" and (set(given) - set(declared) or needed - set(given)):
        raise ValueError(f"variables: unknown {set(given) - set(declared)}, missing {needed - set(given)}")
    for name, value in given.items():
        # Terraform takes text as it is, and reads any other type as an expression, including quotes.
        if not re.search(r"type += string", declared[name]):
            _expression(name, value)


def _variable(text: str, name: str) -> str:
    found = re.search(rf'variable "{name}" {{\n(.*?)^}}', text, re.M | re.S)
    if found is None:
        raise ValueError(f"variables.tf: no {name}")
    return found[1]


def _expression(name: str, value: str) -> None:
    import hcl2
    import lark

    try:
        parsed = hcl2.loads(f"x = {value}\n")
    except lark.exceptions.LarkError as error:
        raise ValueError(f"-var {name}: Terraform cannot read {value}") from error
    if re.search(r"\$\{", str(parsed)):
        raise ValueError(f"-var {name}: {value} is a reference")


def _make(words: list[str]) -> None:
    for target in words:
        if not re.search(rf"^{target}:", _exists("Makefile").read_text(), re.M):
            raise ValueError(f"make has no target {target}")


def _docker(words: list[str]) -> None:
    if words[0] == "build":
        _exists(words[words.index("-f") + 1])
    elif words[0] != "push":
        raise ValueError(f"docker {words[0]}")


def _pip(words: list[str]) -> None:
    if "-c" in words:
        _exists(words[words.index("-c") + 1])


def _prometheus(words: list[str]) -> None:
    (flag,) = words
    _exists(flag.removeprefix("--config.file="))


def _sbatch(words: list[str]) -> None:
    """A batch script of the repository, which passes its arguments on to a job."""
    script = _exists(words[0]).read_text(encoding="utf-8")
    (job,) = (job for job in _JOBS if job in script)
    launcher = re.search(r"--launcher \w+", script)
    _job(job, [*(launcher[0].split() if launcher else ()), "--config", *words[1:]])


def _sky(words: list[str]) -> None:
    """``sky jobs launch TASK --env NAME=VALUE ...``: the task declares the names."""
    if words[:2] != ["jobs", "launch"]:
        raise ValueError(f"sky {' '.join(words[:2])}")
    declared = yaml.safe_load(_exists(words[2]).read_text(encoding="utf-8"))["envs"]
    for option, value in zip(words[3::2], words[4::2], strict=True):
        if option != "--env" or value.partition("=")[0] not in declared:
            raise ValueError(f"{words[2]}: {option} {value}")


def _aws(words: list[str]) -> None:
    """A command that the AWS CLI adds, or an operation of a service with options that the operation has."""
    if words[:2] == ["eks", "update-kubeconfig"]:
        return
    import botocore.session
    from botocore import xform_name

    service = botocore.session.get_session().get_service_model(words[0])
    operations = {xform_name(name, "-"): name for name in service.operation_names}
    shape = service.operation_model(operations[words[1]]).input_shape
    options = {xform_name(name, "-") for name in shape.members} | {"query", "output"}
    unknown = {word[2:] for word in words if word.startswith("--")} - options
    if unknown:
        raise ValueError(f"aws {' '.join(words[:2])}: no option {sorted(unknown)}")


def _source(words: list[str]) -> None:
    if words != [".venv/bin/activate"]:
        raise ValueError(f"unknown script {words}")


_CHECKERS: dict[str, Callable[[list[str]], None]] = {
    "make": _make, "python": _python, "torchrun": _torchrun, "bertmill": _bertmill, "ray": _ray, ".": _source,
    "kubectl": _kubectl, "terraform": _terraform, "docker": _docker, "pip": _pip, "prometheus": _prometheus,
    "aws": _aws, "echo": _echo, "sbatch": _sbatch, "sky": _sky,
}  # fmt: skip
