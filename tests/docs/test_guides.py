"""Every command of every guide is parsed by the program that would run it. Pages name files that exist."""

import re
from pathlib import Path

import pytest

from benchmarks.rates import write_scaling
from schemas import skip_reasons
from tests.docs.commands import GUIDES, check, commands
from tests.infra.tools import ROOT

PAGES = sorted(path for where in ("*.md", "docs/**/*.md", "benchmarks/**/*.md") for path in ROOT.glob(where))
FOLDERS = "benchmarks|bertmill|cluster|configs|docs|infra|pipeline|sample|schemas|tests|trainer"
NAMED = re.compile(rf"`((?:{FOLDERS})/(?!pool`)[\w./*-]+)`")  # bertmill/pool is a label of Kubernetes
LINK = re.compile(r"\]\(([^)#]+)")
ALL = [(guide.name, line) for guide in GUIDES for line in commands(guide.read_text())]


def test_there_is_a_guide_with_commands_for_every_kind_of_machine() -> None:
    assert {"laptop.md", "gpu-box.md", "cloud.md", "kubernetes.md"} <= {name for name, _ in ALL}


@pytest.mark.parametrize(("guide", "command"), ALL, ids=[f"{name}:{line[:60]}" for name, line in ALL])
def test_command(guide: str, command: str) -> None:
    check(command)


@pytest.mark.parametrize(
    "command",
    [
        "python pipeline/build_corpus.py --config configs/no-such.yaml",
        "python pipeline/build_corpus.py --config configs/demo.yaml --dedup.nearly=true",
        "python trainer/pretrain.py --config configs/demo-train.yaml --lancher ray",
        "bertmill submit bild --config configs/wikipedia-104.yaml",
        "bertmill submit build --config configs/demo.yaml",
        "bertmill plan configs/demo.yaml --core 2",
        "ray up --yess cluster/aws.yaml",
        "ray up --yes cluster/azure.yaml",
        "ray job submitt -- true",
        "kubectl apply -k cluster/kuberay/overlays/no-such",
        "kubectl -n bertmill get rayjob x --no-such-flag",
        "terraform -chdir=infra/terraform/aws apply -var region=us-east-1",
        'terraform -chdir=infra/terraform/aws apply -var region=x -var bucket=x -var api_cidrs=["1.2.3.0"]',
        "terraform -chdir=infra/terraform/aws apply -var region=x -var bucket=x -var 'api_cidrs=[\"a\"' ",
        "terraform -chdir=infra/terraform/modules/plan output -raw policies",
        "make no-such-target",
        "docker build -f Dockerfile .",
        "prometheus --config.file=prometheus.yml",
        "export AWS_SECRET_ACCESS_KEY=x",
        "curl https://example.com",
    ],
)
def test_wrong_command_is_caught(command: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        check(command)


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_named_files_and_links_exist(page: Path) -> None:
    text = page.read_text()
    named = [name for name in NAMED.findall(text) if not any(ROOT.glob(name.rstrip("/")))]
    # test_site.py follows the links of docs/, many of which lead to generated pages.
    found = [] if (ROOT / "docs") in page.parents else LINK.findall(text)
    links = [link for link in found if not link.startswith("http")]
    assert (named, [link for link in links if not (page.parent / link).exists()]) == ([], [])


def test_every_reason_to_leave_something_out_is_explained() -> None:
    text = (ROOT / "docs/reference/sources.md").read_text() + (ROOT / "docs/concepts/dedup.md").read_text()
    reasons = [reason for name, reason in vars(skip_reasons).items() if name.isupper()]
    assert len(reasons) > 15
    assert [reason for reason in reasons if f"`{reason}`" not in text] == []


def test_tables_of_the_scaling_page_are_up_to_date() -> None:
    assert write_scaling.main(["--check"]) == 0, "run: python -m benchmarks.rates.write_scaling"
