"""Validates the cluster YAMLs with Ray's own code, and their machines with the clouds' request types."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.providers import _NODE_PROVIDERS
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).resolve().parents[2]
CLOUDS = ("aws", "gcp")


def _load(cloud: str) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((ROOT / "cluster" / f"{cloud}.yaml").read_text())
    return data


def _validate(config: dict[str, Any]) -> dict[str, Any]:
    """Validates as ``ray up`` does before its first request to the cloud."""
    prepared: dict[str, Any] = prepare_config(copy.deepcopy(config))
    validate_config(prepared)
    return prepared


def _machine_faults(cloud: str, node: dict[str, Any]) -> str:
    """What the cloud's own client would reject in a request for such a machine."""
    if cloud == "aws":
        import botocore.session
        import botocore.validate

        model = botocore.session.get_session().get_service_model("ec2").operation_model("RunInstances")
        request = {"MinCount": 1, "MaxCount": 1, **node}
        report: str = (
            botocore.validate.ParamValidator().validate(request, model.input_shape).generate_report()
        )
        return report
    compute = pytest.importorskip(
        "google.cloud.compute_v1", reason="google-cloud-compute is missing: pip install -e .[infra]"
    )
    from google.protobuf.json_format import ParseError

    try:
        compute.Instance.from_json(json.dumps(node), ignore_unknown_fields=False)
    except ParseError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("cloud", CLOUDS)
def test_ray_accepts_it(cloud: str) -> None:
    prepared = _validate(_load(cloud))
    assert prepared["provider"]["type"] == cloud
    assert set(prepared["available_node_types"]) == {"head", "cpu", "gpu"}


@pytest.mark.parametrize("cloud", CLOUDS)
def test_ray_can_load_its_provider(cloud: str) -> None:
    if cloud == "gcp":
        pytest.importorskip("googleapiclient", reason="google-api-python-client: pip install -e .[infra]")
    provider = _NODE_PROVIDERS[cloud](_load(cloud)["provider"])
    assert provider.__name__ == f"{cloud.upper()}NodeProvider"


@pytest.mark.parametrize("cloud", CLOUDS)
def test_the_cloud_accepts_the_machines(cloud: str) -> None:
    for name, kind in _load(cloud)["available_node_types"].items():
        assert _machine_faults(cloud, kind["node_config"]) == "", name


@pytest.mark.parametrize("cloud", CLOUDS)
def test_head_is_on_demand_and_idle_workers_are_spot_from_zero(cloud: str) -> None:
    config = _load(cloud)
    kinds = config["available_node_types"]
    is_spot: dict[str, Callable[[Any], bool]] = {
        "aws": lambda node: node.get("InstanceMarketOptions", {}).get("MarketType") == "spot",
        "gcp": lambda node: node.get("scheduling", {}).get("provisioningModel") == "SPOT",
    }
    spot = is_spot[cloud]
    assert config["head_node_type"] == "head"
    assert kinds["head"]["resources"] == {"CPU": 0}
    assert {name: spot(kind["node_config"]) for name, kind in kinds.items()} == {
        "head": False, "cpu": True, "gpu": True,
    }  # fmt: skip
    assert [kinds[name]["min_workers"] for name in ("cpu", "gpu")] == [0, 0]
    assert sum(kinds[name]["max_workers"] for name in ("cpu", "gpu")) <= config["max_workers"]


@pytest.mark.parametrize("cloud", CLOUDS)
def test_ray_starts_with_a_token_and_a_spill_folder(cloud: str) -> None:
    config = _load(cloud)
    options = config["docker"]["run_options"]
    assert "-e RAY_AUTH_MODE=token" in options
    assert "-v /opt/spill:/spill" in options
    for kind in ("head", "worker"):
        start = " ".join(config[f"{kind}_start_ray_commands"])
        assert "--object-spilling-directory=/spill" in start
    assert "--num-cpus=0" in " ".join(config["head_start_ray_commands"])
    assert "--dashboard-host=127.0.0.1" in " ".join(config["head_start_ray_commands"])
    assert "SECRET" not in (ROOT / "cluster" / f"{cloud}.yaml").read_text()


@pytest.mark.parametrize(
    ("path", "key", "value"),
    [
        ([], "idle_timeout_minute", 5),
        ([], "upscaling_speed", "fast"),
        (["docker"], "images", "x"),
        (["available_node_types", "cpu"], "max_worker", 3),
        (["available_node_types", "cpu", "resources"], "CPU", "16"),
        (["auth"], "ssh_username", "ubuntu"),
    ],
)
@pytest.mark.parametrize("cloud", CLOUDS)
def test_mistake_in_the_cluster_is_caught(cloud: str, path: list[str], key: str, value: object) -> None:
    config = _load(cloud)
    place = config
    for step in path:
        place = place[step]
    place[key] = value
    with pytest.raises(jsonschema.ValidationError):
        _validate(config)


@pytest.mark.parametrize(
    ("cloud", "key", "value"),
    [
        ("aws", "IamInstanceProfil", {"Name": "x"}),
        ("aws", "InstanceMarketOptions", {"MarketTyp": "spot"}),
        ("aws", "BlockDeviceMappings", [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": "300 GB"}}]),
        ("gcp", "machinType", "n2-standard-8"),
        ("gcp", "scheduling", {"provisioningModell": "SPOT"}),
        ("gcp", "disks", [{"boot": "maybe"}]),
    ],
)
def test_mistake_in_a_machine_is_caught(cloud: str, key: str, value: object) -> None:
    node = _load(cloud)["available_node_types"]["cpu"]["node_config"]
    assert _machine_faults(cloud, {**node, key: value}) != ""


def test_ray_opens_no_port_of_its_own_on_aws() -> None:
    """Ray adds rules, including SSH from anywhere, only to security groups that it creates."""
    for name, kind in _load("aws")["available_node_types"].items():
        assert kind["node_config"]["SecurityGroupIds"], name


def test_clouds_agree_where_they_can() -> None:
    aws, gcp = _load("aws"), _load("gcp")
    for key in ("docker", "file_mounts", "head_start_ray_commands", "worker_start_ray_commands"):
        assert aws[key] == gcp[key], key
