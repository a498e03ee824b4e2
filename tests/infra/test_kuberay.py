"""Tests that every overlay renders with kustomize and fits KubeRay's CRDs, and that mistakes are caught."""

import copy
import inspect
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.jobs.config_file import parse_yaml, validate
from pipeline.config import BuildConfig
from tests.infra.kubernetes import faults, render
from tests.infra.tools import ROOT
from trainer.config import TrainConfig

KUBERAY = ROOT / "cluster" / "kuberay"
OVERLAYS = sorted(path.name for path in (KUBERAY / "overlays").iterdir())


@pytest.fixture(scope="module")
def rendered() -> dict[str, list[dict[str, Any]]]:
    return {name: render(KUBERAY / "overlays" / name) for name in OVERLAYS}


def _ray(resources: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = [one for one in resources if one["apiVersion"] == "ray.io/v1"]
    return found


def _cluster(resources: list[dict[str, Any]]) -> dict[str, Any]:
    spec = _ray(resources)["spec"]
    cluster: dict[str, Any] = spec.get("rayClusterSpec", spec)
    return cluster


def _pods(resources: list[dict[str, Any]]) -> list[dict[str, Any]]:
    cluster = _cluster(resources)
    submitter = _ray(resources)["spec"].get("submitterPodTemplate")
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups] + ([submitter["spec"]] if submitter else [])


@pytest.mark.parametrize("name", OVERLAYS)
def test_overlay_fits_the_crds(rendered: dict[str, list[dict[str, Any]]], name: str) -> None:
    kinds = [resource["kind"] for resource in rendered[name]]
    assert "ServiceAccount" in kinds
    assert {resource["metadata"]["namespace"] for resource in rendered[name]} == {"bertmill"}
    assert [fault for resource in rendered[name] for fault in faults(resource)] == []


@pytest.mark.parametrize("name", OVERLAYS)
def test_pods_are_unprivileged_and_bounded(rendered: dict[str, list[dict[str, Any]]], name: str) -> None:
    for pod in _pods(rendered[name]):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["restartPolicy"] == "Never"
        for container in pod["containers"]:
            assert container["image"].startswith("registry.example.com/bertmill:")
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert container["resources"]["requests"]["memory"] == container["resources"]["limits"][
                "memory"
            ] or (container["name"] == "ray-job-submitter")
            names = [variable["name"] for variable in container.get("env", [])]
            assert not [
                variable for variable in names if variable.startswith("AWS_") or "TOKEN" in variable[-5:]
            ]
    cluster = _cluster(rendered[name])
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert cluster["authOptions"] == {"mode": "token"}
    head, *workers = _pods(rendered[name])[: 1 + len(cluster["workerGroupSpecs"])]
    assert head["automountServiceAccountToken"] is True
    assert {worker["automountServiceAccountToken"] for worker in workers} == {False}
    assert {pod["serviceAccountName"] for pod in [head, *workers]} == {"bertmill"}


@pytest.mark.parametrize("name", [name for name in OVERLAYS if not name.startswith("standing")])
def test_job_has_deadlines_retries_and_a_config_that_is_valid(
    rendered: dict[str, list[dict[str, Any]]], name: str
) -> None:
    job = _ray(rendered[name])
    spec = job["spec"]
    # Each attempt may cost half an hour of nodes that do not start.
    assert 1 <= spec["backoffLimit"] <= 5
    assert spec["activeDeadlineSeconds"] > spec["preRunningDeadlineSeconds"] > 0
    assert spec["shutdownAfterJobFinishes"] is True
    (table,) = [one for one in rendered[name] if one["kind"] == "ConfigMap"]
    volumes = {
        volume["name"]: volume
        for volume in spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["volumes"]
    }
    assert volumes["config"]["configMap"]["name"] == table["metadata"]["name"]
    ((file, text),) = table["data"].items()
    assert spec["entrypoint"].endswith(f"--config /etc/bertmill/{file}")
    kind = name.split("-", maxsplit=1)[0]
    models: dict[str, type[BuildConfig] | type[TrainConfig]] = {
        "build": BuildConfig,
        "pretrain": TrainConfig,
    }
    model = models[kind]
    config = validate(model, parse_yaml(text.encode(), file), file)
    if isinstance(config, TrainConfig):
        (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
        gpus = group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
        assert config.workers.most == group["maxReplicas"] * gpus
        cpus = int(group["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"])
        assert config.workers.cpus_per_worker * gpus <= cpus


@pytest.mark.parametrize("name", ["build-large", "build-small", "build-spot"])
def test_a_build_starts_with_one_worker_and_grows(
    rendered: dict[str, list[dict[str, Any]]], name: str
) -> None:
    """The operator waits for ``replicas`` workers before it starts the job."""
    cluster = _cluster(rendered[name])
    (group,) = cluster["workerGroupSpecs"]
    assert cluster["enableInTreeAutoscaling"] is True
    assert group["replicas"] == 1 < group["maxReplicas"]


def test_only_pods_of_the_cluster_its_submitter_and_the_operator_connect(
    rendered: dict[str, list[dict[str, Any]]],
) -> None:
    """KubeRay gives its pods the label ray.io/is-ray-node."""
    for name, resources in rendered.items():
        policy = next(
            one["spec"]
            for one in resources
            if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == "bertmill"
        )
        assert policy["podSelector"]["matchLabels"] == {"ray.io/is-ray-node": "yes"}
        inside, jobs, monitoring = policy["ingress"]
        assert inside["from"] == [{"podSelector": policy["podSelector"]}]
        assert [port["port"] for port in jobs["ports"]] == [8265]
        assert 8080 in [port["port"] for port in monitoring["ports"]]
        if not name.startswith("standing"):
            labels = _ray(resources)["spec"]["submitterPodTemplate"]["metadata"]["labels"]
            assert jobs["from"][0]["podSelector"]["matchLabels"].items() <= labels.items()
        (budget,) = [one["spec"] for one in resources if one["kind"] == "PodDisruptionBudget"]
        assert budget["maxUnavailable"] == 0
        labels = _cluster(resources)["headGroupSpec"]["template"]["metadata"]["labels"]
        # The operator adds this volume.
        assert budget["selector"]["matchLabels"].items() <= {**labels, "ray.io/node-type": "head"}.items()


def test_the_state_of_the_standing_cluster_outlives_its_head(
    rendered: dict[str, list[dict[str, Any]]],
) -> None:
    resources = rendered["standing-small"]
    options = _cluster(resources)["gcsFaultToleranceOptions"]
    host, _, port = options["redisAddress"].partition(":")
    (service,) = [one for one in resources if one["kind"] == "Service"]
    (store,) = [one for one in resources if one["kind"] == "StatefulSet"]
    assert (host, int(port)) == (service["metadata"]["name"], service["spec"]["ports"][0]["port"])
    pod = store["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (box,) = pod["spec"]["containers"]
    secret = options["redisPassword"]["valueFrom"]["secretKeyRef"]
    assert secret == box["env"][0]["valueFrom"]["secretKeyRef"]
    assert f"create secret generic {secret['name']}" in (ROOT / "docs/guides/kubernetes.md").read_text()


COMPONENTS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "efa": lambda job: (
        _pods([job])[1]["containers"][0]["resources"]["limits"].get("vpc.amazonaws.com/efa") == 4
    ),
    "kueue": lambda job: (
        job["metadata"]["labels"].get("kueue.x-k8s.io/queue-name") == "bertmill"
        and _cluster([job])["enableInTreeAutoscaling"] is False
    ),
    "priority": lambda job: {pod.get("priorityClassName") for pod in _pods([job])} == {"bertmill-training"},
    "tls": lambda job: _cluster([job]).get("tlsOptions") == {"enabled": True},
}


@pytest.mark.parametrize("component", COMPONENTS)
def test_optional_components_fit_the_crds(tmp_path: Path, component: str) -> None:
    shutil.copytree(KUBERAY, tmp_path / "kuberay")
    overlay = tmp_path / "kuberay/overlays/pretrain-64gpu"
    with (overlay / "kustomization.yaml").open("a") as file:
        file.write(f"components:\n  - ../../components/{component}\n")
    resources = render(overlay)
    assert [fault for resource in resources for fault in faults(resource)] == []
    assert COMPONENTS[component](_ray(resources))
    assert not COMPONENTS[component](_ray(render(KUBERAY / "overlays/pretrain-64gpu")))


def test_a_training_has_a_higher_priority_than_a_build(tmp_path: Path) -> None:
    shutil.copytree(KUBERAY, tmp_path / "kuberay")
    overlay = tmp_path / "kuberay/overlays/build-small"
    with (overlay / "kustomization.yaml").open("a") as file:
        file.write("components:\n  - ../../components/priority\n")
    resources = render(overlay)
    assert [fault for resource in resources for fault in faults(resource)] == []
    assert {pod["priorityClassName"] for pod in _pods(resources)} == {"bertmill-build"}
    values = {one["metadata"]["name"]: one["value"] for one in resources if one["kind"] == "PriorityClass"}
    assert values["bertmill-training"] > values["bertmill-build"] > 0


def test_the_queue_fits_the_crds_and_the_largest_job(rendered: dict[str, list[dict[str, Any]]]) -> None:
    resources = render(KUBERAY / "kueue")
    assert [fault for resource in resources for fault in faults(resource)] == []
    (queue,) = [one for one in resources if one["kind"] == "ClusterQueue"]
    (covered,) = queue["spec"]["resourceGroups"]
    quotas = {one["name"]: one["nominalQuota"] for one in covered["flavors"][0]["resources"]}
    assert set(quotas) == set(covered["coveredResources"])
    pods = [
        (group.get("replicas", 1), group["template"]["spec"]["containers"][0]["resources"]["requests"])
        for cluster in [_cluster(rendered["pretrain-64gpu"])]
        for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    ]
    assert {name for _, requests in pods for name in requests} <= set(quotas)
    assert sum(count * int(requests.get("nvidia.com/gpu", 0)) for count, requests in pods) <= int(
        quotas["nvidia.com/gpu"]
    )
    assert sum(count * int(requests["cpu"]) for count, requests in pods) < int(quotas["cpu"])


def test_ray_version_is_the_pinned_one(rendered: dict[str, list[dict[str, Any]]]) -> None:
    pin = next(line for line in (ROOT / "pyproject.toml").read_text().splitlines() if '"ray[' in line)
    versions = {_cluster(resources)["rayVersion"] for resources in rendered.values()}
    assert {f"=={version}" for version in versions} == {"==" + pin.split("==")[1].strip('", ')}


@pytest.mark.parametrize("name", ["build-spot", "pretrain-spot"])
def test_spot_workers_but_never_the_head(rendered: dict[str, list[dict[str, Any]]], name: str) -> None:
    head, worker, submitter = _pods(rendered[name])
    assert worker["nodeSelector"]["bertmill/capacity"] == "spot"
    assert "bertmill/spot" in [toleration["key"] for toleration in worker["tolerations"]]
    assert worker["terminationGracePeriodSeconds"] >= 120
    for pod in (head, submitter):
        assert "bertmill/capacity" not in pod["nodeSelector"]
        assert not pod.get("tolerations")


MISTAKES = [
    ("misspelt key of the job", ["spec"], "shutDownAfterJobFinishes", True, "shutDownAfterJobFinishes"),
    ("number where text is due", ["spec", "rayClusterSpec"], "rayVersion", 2.60, "rayVersion"),
    ("unknown authentication", ["spec", "rayClusterSpec", "authOptions"], "mode", "tokens", "mode"),
    ("misspelt key of a pod", ["spec", "rayClusterSpec", "headGroupSpec", "template", "spec"],
     "serviceAcountName", "x", "serviceAcountName"),
    ("text where a number is due", ["spec", "rayClusterSpec", "workerGroupSpecs", 0],
     "maxReplicas", "8", "maxReplicas"),
    ("number in the start parameters", ["spec", "rayClusterSpec", "headGroupSpec", "rayStartParams"],
     "num-cpus", 0, "num-cpus"),
    ("misspelt security", ["spec", "rayClusterSpec", "headGroupSpec", "template", "spec", "securityContext"],
     "runAsNonroot", True, "runAsNonroot"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "path", "key", "value", "named"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_mistake_in_a_ray_job_is_caught(
    rendered: dict[str, list[dict[str, Any]]], what: str, path: list[Any], key: str, value: object, named: str
) -> None:
    job = copy.deepcopy(_ray(rendered["pretrain-8gpu"]))
    place: Any = job
    for step in path:
        place = place[step]
    place[key] = value
    found = faults(job)
    assert len(found) == 1, what
    assert named in found[0]


def test_missing_required_field_is_caught(rendered: dict[str, list[dict[str, Any]]]) -> None:
    cluster = copy.deepcopy(_ray(rendered["standing-small"]))
    del cluster["spec"]["workerGroupSpecs"][0]["maxReplicas"]
    assert "'maxReplicas' is a required property" in faults(cluster)[0]


def test_mistake_in_a_core_resource_is_caught() -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "x"}}
    assert faults(account) == []
    assert faults({**account, "automountServiceAccountTokens": False})
    assert faults({**account, "automountServiceAccountToken": "no"})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("../../base/build", "../../base/bild", "bild"),
        (
            "path: /spec/rayClusterSpec/workerGroupSpecs/0/maxReplicas",
            "path: /spec/rayClusterSpec/workers/0",
            "workers",
        ),
        ("configMapGenerator", "configMapGenerators", "configMapGenerators"),
    ],
)
def test_mistake_in_an_overlay_is_caught(tmp_path: Path, old: str, new: str, message: str) -> None:
    shutil.copytree(KUBERAY, tmp_path / "kuberay")
    overlay = tmp_path / "kuberay/overlays/build-large"
    file = overlay / "kustomization.yaml"
    text = file.read_text()
    assert old in text
    render(overlay)
    file.write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=message):
        render(overlay)


def test_pods_find_their_spill_and_config_folders(rendered: dict[str, list[dict[str, Any]]]) -> None:
    for resources in rendered.values():
        for pod in _pods(resources):
            mounted = {mount["name"] for box in pod["containers"] for mount in box.get("volumeMounts", [])}
            assert mounted == {volume["name"] for volume in pod.get("volumes", [])}
        cluster = _cluster(resources)
        for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
            (box,) = group["template"]["spec"]["containers"]
            spill = group["rayStartParams"]["object-spilling-directory"]
            assert spill in [mount["mountPath"] for mount in box["volumeMounts"]]


@pytest.mark.parametrize(
    ("overlay", "config"),
    [
        ("build-large", "wikipedia-104"),
        ("build-spot", "wikipedia-104"),
        ("pretrain-8gpu", "bert-base-multilingual"),
        ("pretrain-64gpu", "bert-large-multilingual"),
        ("pretrain-spot", "bert-large-multilingual"),
    ],
)
def test_overlays_run_the_configs_of_the_same_name(overlay: str, config: str) -> None:
    file = KUBERAY / "overlays" / overlay / f"{overlay.partition('-')[0]}.yaml"
    ours, theirs = (yaml.safe_load(path.read_text()) for path in (file, ROOT / f"configs/{config}.yaml"))
    if overlay == "pretrain-spot":  # nodes join and leave at any time
        for field in ("max_failures", "num_workers"):
            ours["workers"][field] = theirs["workers"][field]
    # The GPUs of the manifests have less memory than those of the configs.
    for phase in [*ours.get("phases", []), *theirs.get("phases", [])]:
        del phase["micro_batch_tokens"]
    assert ours == theirs


def test_workers_drain_for_as_long_as_they_may_live(rendered: dict[str, list[dict[str, Any]]]) -> None:
    """By default Ray kills everything 30 seconds after SIGTERM, even if Kubernetes allows more time."""
    from ray._private import node, ray_constants

    name = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
    assert getattr(ray_constants, name) == 30
    assert f"ray_constants.{name}" in inspect.getsource(node)
    for resources in rendered.values():
        for group in _cluster(resources)["workerGroupSpecs"]:
            pod = group["template"]["spec"]
            (box,) = pod["containers"]
            drain = {variable["name"]: variable["value"] for variable in box["env"]}[name]
            assert 90 <= int(drain) < pod["terminationGracePeriodSeconds"]


def test_shared_memory_holds_the_object_store(rendered: dict[str, list[dict[str, Any]]]) -> None:
    """Ray uses a share of the container's memory for it, or /tmp if /dev/shm is smaller."""
    from ray._private import ray_constants

    for resources in rendered.values():
        cluster = _cluster(resources)
        for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
            pod = group["template"]["spec"]
            (volume,) = [one for one in pod["volumes"] if one.get("emptyDir", {}).get("medium") == "Memory"]
            shared = _bytes(volume["emptyDir"]["sizeLimit"])
            memory = _bytes(pod["containers"][0]["resources"]["limits"]["memory"])
            share = ray_constants.DEFAULT_OBJECT_STORE_MEMORY_PROPORTION * memory
            most = max(ray_constants.REQUIRE_SHM_SIZE_THRESHOLD, 0.95 * shared)
            assert min(share, most, ray_constants.DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES) <= shared
            # Files there count as the container's memory.
            assert shared <= memory / 2


def _bytes(text: str) -> float:
    assert text.endswith("Gi")
    return float(text.removesuffix("Gi")) * 2**30


# The first operator version whose CRDs have the field. Older ones reject it.
SINCE = {"authOptions": (1, 5, 1), "preRunningDeadlineSeconds": (1, 6, 0), "submitterConfig": (1, 2, 0)}


def test_the_guide_and_terraform_name_an_operator_that_knows_our_fields(
    rendered: dict[str, list[dict[str, Any]]],
) -> None:
    text = yaml.safe_dump_all(resource for resources in rendered.values() for resource in resources)
    needed = max(version for field, version in SINCE.items() if f"{field}:" in text)
    guide = re.search(
        r"KubeRay (\d+)\.(\d+)\.(\d+) or newer", (ROOT / "docs/guides/kubernetes.md").read_text()
    )
    variables = (ROOT / "infra/terraform/aws/variables.tf").read_text()
    pinned = re.search(r'variable "kuberay_version".*?default += "(\d+)\.(\d+)\.(\d+)"', variables, re.DOTALL)
    assert guide
    assert pinned
    assert tuple(map(int, guide.groups())) == needed
    assert tuple(map(int, pinned.groups())) >= needed


def test_manifests_are_plain_yaml() -> None:
    for path in KUBERAY.rglob("*.yaml"):
        assert list(yaml.safe_load_all(path.read_text())), path
