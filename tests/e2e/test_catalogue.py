"""What deviceclasses/ ships, on a real API server and scheduler: classes and examples; and the roles for people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from e2e.harness import images
from e2e.harness.build import HarnessError
from e2e.harness.cluster import Cluster
from e2e.harness.node import Node
from e2e.harness.pods import SLEEP, Namespace, render_claim, render_claim_spec, render_pod, render_request
from e2e.harness.processes import wait_until
from tesela.edge.kube.port import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, Json

GPUS = "h100-80gb*2"
CATALOGUE = Path(__file__).resolve().parents[2] / "deviceclasses"
EXAMPLES = {
    "whole-gpu": {"gpu.nvidia.com": 1},
    "small-mig": {"nvidia-h100-80gb-1g-10gb": 2},
    "first-available": {"nvidia-h100-80gb-1g-10gb": 1},
    "one-gpu-two-partitions": {"nvidia-h100-80gb-1g-10gb": 1, "nvidia-h100-80gb-3g-40gb": 1},
    "shared-claim": {"nvidia-h100-80gb-2g-20gb": 1},
    "time-slicing": {"gpu.nvidia.com": 1},
    "extended-resource": {"mig-1g-10gb.gpu.nvidia.com": 1, "nvidia-h100-80gb-1g-10gb": 1},
}
"""Example, and how many devices of which class its pods get. bridge.yaml has a file of tests of its own."""
GIVEN = {
    "nvidia-h100-80gb": "",
    "nvidia-h100-80gb-1g-10gb": "-mig-1g10gb-19-6",
    "nvidia-h100-80gb-1g-10gb-me": "-mig-1g10gb-me-20-6",
    "nvidia-h100-80gb-1g-20gb": "-mig-1g20gb-15-6",
    "nvidia-h100-80gb-2g-20gb": "-mig-2g20gb-14-4",
    "nvidia-h100-80gb-3g-40gb": "-mig-3g40gb-9-4",
    "nvidia-h100-80gb-4g-40gb": "-mig-4g40gb-5-0",
    "nvidia-h100-80gb-7g-80gb": "-mig-7g80gb-0-0",
}
"""The name of the device after its GPU's number, for a claim of each class on an empty board."""
RUNNING_PODS = {"small-mig": 2, "shared-claim": 2, "time-slicing": 2, "extended-resource": 2}


@pytest.fixture(scope="module", autouse=True)
def catalogue(node: Node) -> Node:
    """The node, and every class of the catalogue beside the general ones."""
    node.cluster.apply(CATALOGUE / "profiles")
    return node


def fit_to_this_machine(manifest: Json) -> Json:
    """The manifest with an image that is here, and with less CPU and memory; everything else as shipped."""
    spec = manifest["spec"] if manifest["kind"] == "Pod" else manifest["spec"].get("template", {}).get("spec", {})
    for container in spec.get("containers", []):
        container.update(image=images.BUSYBOX, imagePullPolicy="Never", command=["sh", "-c", SLEEP])
        container["resources"]["requests"] = {"cpu": "5m", "memory": "8Mi"}
        container["resources"].get("limits", {}).update({"cpu": "100m", "memory": "64Mi"})
    return manifest


def read(example: str) -> list[Json]:
    return list(yaml.safe_load_all((CATALOGUE / "examples" / f"{example}.yaml").read_text()))


@pytest.fixture
def example(work: Namespace, request: pytest.FixtureRequest) -> Iterator[str]:
    """An example, applied to a namespace; taken away whole, because a controller makes pods anew."""
    body = json.dumps(
        {"apiVersion": "v1", "kind": "List", "items": list(map(fit_to_this_machine, read(request.param)))}
    )
    work.cluster.kubectl("-n", work.name, "apply", "-f", "-", stdin=body)
    yield request.param
    work.cluster.kubectl("-n", work.name, "delete", "-f", "-", "--wait=false", stdin=body)


def list_running(work: Namespace) -> list[str]:
    pods = work.kube.list(PODS, work.name).items
    return [pod["metadata"]["name"] for pod in pods if pod.get("status", {}).get("phase") == "Running"]


def count_by_class(work: Namespace) -> dict[str, int]:
    """Devices allocated here, by the class of the request that they were allocated for."""
    counts: dict[str, int] = {}
    for claim in work.kube.list(RESOURCE_CLAIMS, work.name).items:
        classes = {}
        for request in claim["spec"]["devices"]["requests"]:
            for one in request.get("firstAvailable", ()):
                classes[f"{request['name']}/{one['name']}"] = one["deviceClassName"]
            if "exactly" in request:
                classes[request["name"]] = request["exactly"]["deviceClassName"]
        for result in claim["status"]["allocation"]["devices"]["results"]:
            name = classes[result["request"]]
            counts[name] = counts.get(name, 0) + 1
    return counts


@pytest.mark.parametrize("example", EXAMPLES, indirect=True)
def test_the_pods_of_an_example_run_with_devices_of_the_classes_named(example: str, work: Namespace) -> None:
    pods = RUNNING_PODS.get(example, 1)

    wait_until(f"the pods of {example} run", lambda: len(list_running(work)) == pods, timeout_s=60)

    assert count_by_class(work) == EXAMPLES[example]


def test_every_example_is_tried() -> None:
    shipped = {path.stem for path in (CATALOGUE / "examples").glob("*.yaml")}

    assert shipped == {*EXAMPLES, "quota", "bridge"}


def test_the_quota_of_the_example_counts_by_class(work: Namespace) -> None:
    (quota,) = read("quota")
    work.cluster.kubectl("-n", work.name, "apply", "-f", "-", stdin=json.dumps(quota))
    status = ("-n", work.name, "get", "quota", "gpus", "-o", "jsonpath={.status.hard}")
    wait_until("the quota is in force", lambda: work.cluster.kubectl(*status), timeout_s=30)
    claim = render_claim("whole", render_claim_spec([render_request("gpu", device_class="gpu.nvidia.com")]))

    with pytest.raises(HarnessError, match=r"exceeded quota: gpus, requested: gpu\.nvidia\.com\.deviceclass"):
        work.cluster.kubectl("-n", work.name, "create", "-f", "-", stdin=json.dumps(claim))


def test_the_scheduler_gives_what_each_class_of_the_board_means(node: Node, work: Namespace) -> None:
    file = CATALOGUE / "profiles" / "h100-80gb.yaml"
    given = {}
    for device_class in yaml.safe_load_all(file.read_text()):
        name = device_class["metadata"]["name"]
        work.apply(render_claim(name, render_claim_spec([render_request("gpu", device_class=name)])))
        work.apply(render_pod(name, claims={"gpu": name}))
        work.wait_running(name)
        given[name] = re.sub(r"^gpu-\d+", "", work.devices_of(name, "gpu")[0])
        work.end(name)

    assert given == GIVEN


@pytest.mark.parametrize(
    ("role", "verb", "resource", "may"),
    [
        ("tesela-view", "list", "resourceslices", True),
        ("tesela-view", "create", "devicetaintrules", False),
        ("view", "list", "resourceslices", True),
        ("view", "list", "deviceclasses", True),
        ("admin", "create", "devicetaintrules", False),
        ("tesela-admin", "create", "devicetaintrules", True),
        ("tesela-admin", "delete", "devicetaintrules", True),
        ("tesela-admin", "create", "deviceclasses", True),
        ("tesela-admin", "list", "nodes", True),
        ("tesela-admin", "update", "resourceslices", False),
        ("tesela-admin", "create", "pods/exec", False),
    ],
)
def test_a_role_gives_what_its_page_says(role: str, verb: str, resource: str, may: bool, cluster: Cluster) -> None:
    bind_to(cluster, role)
    resource, _, subresource = resource.partition("/")
    group = "" if resource in {"pods", "nodes"} else "resource.k8s.io"
    attributes = {"verb": verb, "resource": resource, "subresource": subresource, "group": group}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": f"user-of-{role}", "resourceAttributes": attributes},
    }

    def is_allowed() -> bool:
        answer = cluster.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(review))
        return bool(json.loads(answer)["status"]["allowed"])

    if may:  # the controller that aggregates roles needs a moment
        wait_until(f"{role} may {verb} {resource}", is_allowed, timeout_s=20)
    assert is_allowed() is may


def bind_to(cluster: Cluster, role: str) -> None:
    group = "rbac.authorization.k8s.io"
    cluster.apply(
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"e2e-user-of-{role}"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": group, "kind": "User", "name": f"user-of-{role}"}],
        }
    )


def test_every_class_of_the_catalogue_is_stored(node: Node) -> None:
    shipped = [
        one["metadata"]["name"]
        for path in (CATALOGUE / "profiles").glob("*.yaml")
        for one in yaml.safe_load_all(path.read_text())
        if one["kind"] == "DeviceClass"
    ]

    assert set(shipped) <= {one["metadata"]["name"] for one in node.cluster.kube.list(DEVICE_CLASSES).items}
