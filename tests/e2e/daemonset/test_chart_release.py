"""The Helm chart from its installation to its removal: upgrades roll the driver under a pod, wrong values change
nothing, class names of others are left alone, and nothing is removed while claims need the driver."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from e2e.harness import deployed
from e2e.harness.build import HarnessError
from e2e.harness.cluster import Cluster
from e2e.harness.config_policy import hear_kubectl
from e2e.harness.driver import is_pool_complete, list_devices
from e2e.harness.helm import Helm
from e2e.harness.pods import (
    Namespace,
    render_claim,
    render_claim_spec,
    render_opaque,
    render_pod,
    render_request,
    render_template,
)
from e2e.harness.processes import wait_until
from e2e.harness.webhook import Webhook
from tesela.edge.kube.port import DEVICE_CLASSES, Json

pytestmark = pytest.mark.timeout(300)

FAMILY, CLASS = "h100-80gb", "nvidia-h100-80gb-1g-10gb"
VALUES: Json = {
    "gpus": "simulated",
    "image": {"repository": deployed.IMAGE, "tag": "0.1.0"},
    "simulated": {"gpus": f"{FAMILY}*2"},
    "deviceClasses": {"families": [FAMILY]},
}
WHOLE_ONLY: Json = {**VALUES, "policy": {"version": 1, "rules": [{"number": 1, "mode": "whole"}]}}
"""A policy by which the second GPU is offered whole alone."""
KINDS = (
    "clusterroles,clusterrolebindings,priorityclasses,validatingadmissionpolicies,validatingadmissionpolicybindings,"
    "serviceaccounts,roles,rolebindings,daemonsets,configmaps,networkpolicies,pods,jobs,deviceclasses"
)
LEFT = ("DeviceClass", "enterprise-nvidia-gpu")
"""What a person made, and the release never was given."""
OTHERS = ("mig.nvidia.com", "enterprise-nvidia-gpu")
"""Classes that are made without Helm, before the chart comes."""


@dataclass(slots=True)
class Stage:
    """The release on the cluster, what Helm said of it at first, and a namespace with a pod that holds a partition."""

    cluster: Cluster
    helm: Helm
    notes: str
    work: Namespace


@pytest.fixture(scope="module")
def stage(cluster: Cluster) -> Iterator[Stage]:
    cluster.kubectl("delete", "deviceclass", "gpu.nvidia.com", "--ignore-not-found")
    cluster.apply(render_class_of_another_release("gpu.nvidia.com"))
    helm = Helm(cluster, "tesela", deployed.NAMESPACE)
    work = Namespace(cluster, "chart-work")
    work.create()
    notes = helm.install(VALUES)
    wait_until("the pool is complete", lambda: is_pool_complete(cluster), timeout_s=60)
    work.apply(render_template("small", render_claim_spec([render_request("gpu", device_class=CLASS)])))
    work.apply(render_pod("holder", templates={"gpu": "small"}))
    work.wait_running("holder")
    yield Stage(cluster=cluster, helm=helm, notes=notes, work=work)
    work.clear()
    work.remove()
    if "tesela" in helm.run("list", "--short"):
        helm.uninstall("--no-hooks")
    cluster.kubectl("delete", "namespace", deployed.NAMESPACE, "--ignore-not-found", "--wait", "--timeout=120s")


def render_class_of_another_release(name: str) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {
            "name": name,
            "labels": {"app.kubernetes.io/managed-by": "Helm"},
            "annotations": {
                "meta.helm.sh/release-name": "nvidia-dra-driver",
                "meta.helm.sh/release-namespace": "nvidia",
            },
        },
        "spec": {"selectors": [{"cel": {"expression": 'device.driver == "gpu.nvidia.com"'}}]},
    }


def get_owner(cluster: Cluster, device_class: str) -> str:
    annotations = cluster.kube.get(DEVICE_CLASSES, device_class)["metadata"].get("annotations", {})
    return str(annotations.get("meta.helm.sh/release-name", ""))


def get_driver_uid(cluster: Cluster) -> str:
    return str(deployed.get_pod(cluster, deployed.DRIVER)["metadata"]["uid"])


def list_whole_only(cluster: Cluster) -> set[str]:
    """The published devices of the second GPU."""
    return {name for name in list_devices(cluster) if name.startswith("gpu-1")}


def test_the_notes_name_the_classes_that_others_have_and_who(stage: Stage) -> None:
    left = [line.strip() for line in stage.notes.splitlines() if line.startswith("  ") and "(" in line]

    assert left == [
        "gpu.nvidia.com (of release nvidia-dra-driver in namespace nvidia)",
        *(f"{name} (not made by Helm)" for name in OTHERS),
    ]


def test_a_class_of_another_release_stays_as_it_is(stage: Stage) -> None:
    assert stage.cluster.kube.get(DEVICE_CLASSES, "gpu.nvidia.com")["spec"] == {
        "selectors": [{"cel": {"expression": 'device.driver == "gpu.nvidia.com"'}}]
    }


def test_a_class_of_the_catalogue_gives_a_partition(stage: Stage) -> None:
    (device,) = stage.work.devices_of("holder", "gpu")

    assert "-mig-1g10gb-19-" in device


def test_a_wrong_value_changes_nothing(stage: Stage) -> None:
    before = stage.helm.list_objects()

    with pytest.raises(HarnessError, match="at '/gpus': value must be one of 'host', 'simulated'"):
        stage.helm.upgrade({**VALUES, "gpus": "both"})

    assert stage.helm.list_objects() == before


def test_a_second_release_is_refused_because_one_has_the_names(stage: Stage) -> None:
    with pytest.raises(HarnessError, match=r"invalid ownership metadata.*must equal \"second\""):
        Helm(stage.cluster, "second", "elsewhere").install(VALUES)


def test_another_policy_rolls_the_driver_under_a_pod_that_stays(stage: Stage) -> None:
    holder, driver = stage.work.pod("holder")["metadata"]["uid"], get_driver_uid(stage.cluster)

    stage.helm.upgrade(WHOLE_ONLY)
    deployed.wait_rolled_out(stage.cluster, deployed.DRIVER)
    wait_until("gpu-1 is offered whole", lambda: list_whole_only(stage.cluster) == {"gpu-1"}, timeout_s=30)

    assert get_driver_uid(stage.cluster) != driver
    assert stage.work.pod("holder")["metadata"]["uid"] == holder


def test_a_rollback_brings_the_policy_back(stage: Stage) -> None:
    stage.helm.run("rollback", "tesela", "1", "--wait", "--timeout=120s")
    deployed.wait_rolled_out(stage.cluster, deployed.DRIVER)

    wait_until("partitions of gpu-1 are back", lambda: len(list_whole_only(stage.cluster)) > 1, timeout_s=30)


def test_a_class_whose_owner_has_gone_is_made_by_the_next_upgrade(stage: Stage) -> None:
    stage.cluster.kubectl("delete", "deviceclass", "gpu.nvidia.com")

    stage.helm.upgrade(VALUES)

    assert get_owner(stage.cluster, "gpu.nvidia.com") == "tesela"


def test_a_class_is_taken_over_where_that_is_asked_for(stage: Stage) -> None:
    classes = {**VALUES["deviceClasses"], "takeOver": True, "general": ["gpu.nvidia.com", "mig.nvidia.com"]}

    stage.helm.upgrade({**VALUES, "deviceClasses": classes}, "--take-ownership")

    assert get_owner(stage.cluster, "mig.nvidia.com") == "tesela"


def test_the_webhook_answers_with_a_certificate_that_was_given(stage: Stage) -> None:
    webhook = Webhook(stage.cluster)
    webhook.issue()
    authority = webhook.authority.cert_pem.bytes().decode()
    stage.helm.upgrade({**VALUES, "admissionWebhook": {"create": True, "caCertificate": authority}})
    webhook.wait_ready(2)
    request = render_request("core", device_class="mig.nvidia.com")
    wrong = render_claim(
        "nobody-keeps-this", render_claim_spec([request], config=[render_opaque("GpuConfig", requests=["core"])])
    )
    refusal = "request core (DeviceClass mig.nvidia.com) takes partitions only"

    def is_refused() -> bool:
        return refusal in hear_kubectl(stage.cluster, stage.work.name, wrong)

    wait_until("the API server asks the webhook", is_refused, timeout_s=30)
    assert is_refused()


def test_nothing_is_removed_while_a_claim_needs_the_driver(stage: Stage) -> None:
    driver = get_driver_uid(stage.cluster)

    with pytest.raises(HarnessError, match=r"(?s)chart-work.*holder"):
        stage.helm.uninstall()

    assert get_driver_uid(stage.cluster) == driver


def test_a_rollback_withdraws_a_removal_that_was_stopped(stage: Stage) -> None:
    """Helm calls the release `uninstalling` from then on, and upgrades none of that state."""
    (release,) = json.loads(stage.helm.run("list", "--output=json"))

    stage.helm.run("rollback", "tesela", release["revision"], "--wait", "--timeout=120s")

    (release,) = json.loads(stage.helm.run("list", "--output=json"))
    assert release["status"] == "deployed"


def test_its_removal_leaves_what_is_not_its_own(stage: Stage) -> None:
    stage.work.clear()

    stage.helm.uninstall()

    wait_until("nothing else is left", lambda: list_left(stage.cluster) == [LEFT], timeout_s=60)
    assert list_left(stage.cluster) == [LEFT]


def list_left(cluster: Cluster) -> list[tuple[str, str]]:
    found = json.loads(cluster.kubectl("get", KINDS, "-A", "-o", "json", "-l", "app.kubernetes.io/part-of=tesela"))
    return [(one["kind"], one["metadata"]["name"]) for one in found["items"]]
