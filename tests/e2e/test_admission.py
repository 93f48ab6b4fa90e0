"""Configs that prepare would refuse, refused by the API server when somebody writes them down."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e.harness.cluster import Cluster
from e2e.harness.config_policy import (
    NAME,
    config_warnings,
    hear_kubectl,
    wait_in_force,
    without_config_policy,
)
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
from tesela.core.errors import ApiError
from tesela.edge.kube.port import DEVICE_CLASSES, RESOURCE_CLAIMS, Json, Resource

POLICIES = Resource("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "", False)
WHOLE = render_request("core", device_class="gpu.nvidia.com")
GOOD = render_opaque("GpuConfig", sharing={"strategy": "TimeSlicing"})
BAD = render_opaque("GpuConfig", sharing={"strategy": "Fair"})
SENTENCE = "opaque.parameters.sharing.strategy: must be TimeSlicing"


@pytest.fixture(scope="module", autouse=True)
def _in_force(cluster: Cluster) -> None:
    wait_in_force(cluster)


@pytest.fixture
def class_name(cluster: Cluster, namespace: Namespace) -> Iterator[str]:
    """A name for a DeviceClass, which is gone afterwards."""
    name = f"{namespace.name}-class"
    yield name
    cluster.kubectl("delete", "deviceclass", name, "--ignore-not-found")


def render_class(name: str, *config: Json) -> Json:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"config": list(config)},
    }


def refusal(namespace: Namespace, *config: Json) -> str:
    with pytest.raises(ApiError) as caught:
        namespace.apply(render_claim("bad", render_claim_spec([WHOLE], config=config)))
    return caught.value.message


def test_the_api_server_has_checked_the_policy_and_warns_of_nothing(cluster: Cluster) -> None:
    def status() -> Json:
        policy = cluster.kube.get(POLICIES, NAME)
        status = policy.get("status", {})
        return status if status.get("observedGeneration") == policy["metadata"]["generation"] else {}

    wait_until("the policy has been type-checked", status, timeout_s=30)

    assert status().get("typeChecking", {}) == {}


def test_a_claim_is_refused_with_the_field_s_path(namespace: Namespace) -> None:
    assert f": spec.devices.config[1].{SENTENCE}" in refusal(namespace, GOOD, BAD)


def test_a_template_is_refused_with_the_field_s_path(namespace: Namespace) -> None:
    with pytest.raises(ApiError, match=r"spec\.spec\.devices\.config\[0\]\.opaque\.parameters\.sharing\.strategy"):
        namespace.apply(render_template("bad", render_claim_spec([WHOLE], config=[BAD])))


def test_a_class_is_refused_with_the_field_s_path(cluster: Cluster, class_name: str) -> None:
    with pytest.raises(ApiError, match=r"spec\.config\[0\]\.opaque\.parameters\.sharing\.strategy"):
        cluster.kube.create(DEVICE_CLASSES, render_class(class_name, BAD))


def test_a_class_may_not_become_bad(cluster: Cluster, class_name: str) -> None:
    made = cluster.kube.create(DEVICE_CLASSES, render_class(class_name, GOOD))

    with pytest.raises(ApiError, match=r"spec\.config\[0\]\.opaque\.parameters\.sharing\.strategy"):
        cluster.kube.replace(DEVICE_CLASSES, {**made, "spec": {"config": [BAD]}})


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (render_opaque("GpuConfig", sharing={"strategy": "MPS"}), "sharing.strategy: MPS is not supported yet"),
        (render_opaque("GpuConfig", sharing=None, colour="blue"), "colour: unknown field"),
        (render_opaque("MigDeviceConfig", sharing=["odd"]), "sharing: must be an object"),
        (render_opaque("GpuConfig", sharing={"strategy": 1.5}), "sharing.strategy: must be TimeSlicing"),
        (render_opaque("VfioDeviceConfig"), "kind: VfioDeviceConfig is not supported"),
        (render_opaque("GpuConfig", api_version="resource.nvidia.com/v9"), "apiVersion: must be"),
    ],
    ids=["MPS", "unknown field", "wrong type", "wrong number", "VFIO", "unknown version"],
)
def test_the_sentence_is_that_of_prepare(namespace: Namespace, config: Json, problem: str) -> None:
    assert f"spec.devices.config[0].opaque.parameters.{problem}" in refusal(namespace, config)


def test_nulls_mean_nothing(namespace: Namespace) -> None:
    slicing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": None}}
    configs = [render_opaque("GpuConfig", sharing=None), render_opaque("GpuConfig", sharing=slicing)]

    namespace.apply(render_claim("good", render_claim_spec([WHOLE], config=configs)))


def test_the_most_and_largest_configs_that_the_api_takes_are_judged_within_its_cost_limits(
    namespace: Namespace,
) -> None:
    surplus = {f"{number:x}": 0 for number in range(0x400, 0x400 + 1200)}  # a document of 10 KiB, the most there is
    message = refusal(namespace, *[render_opaque("GpuConfig", **surplus)] * 32)

    assert ": unknown field: take it out" in message


def test_the_largest_config_of_another_driver_passes(namespace: Namespace) -> None:
    parameters = {f"{number:x}": 0 for number in range(0x400, 0x400 + 1200)}
    config = [{"opaque": {"driver": "other.example.com", "parameters": parameters}}] * 32

    namespace.apply(render_claim("other", render_claim_spec([WHOLE], config=config)))


def test_an_object_from_before_the_policy_can_be_labelled_and_deleted(cluster: Cluster, namespace: Namespace) -> None:
    with without_config_policy(cluster):
        namespace.apply(render_claim("old", render_claim_spec([WHOLE], config=[BAD])))
        cluster.kubectl("-n", namespace.name, "patch", "resourceclaim", "old", "--type=json", "-p",
                        '[{"op": "add", "path": "/metadata/finalizers", "value": ["example.com/held"]}]')  # fmt: skip
    namespace.kube.delete(RESOURCE_CLAIMS, "old", namespace.name)

    cluster.kubectl("-n", namespace.name, "label", "resourceclaim", "old", "seen=yes")
    cluster.kubectl("-n", namespace.name, "patch", "resourceclaim", "old", "--type=json", "-p",
                    '[{"op": "remove", "path": "/metadata/finalizers"}]')  # fmt: skip

    wait_until("it is gone", lambda: not namespace.kube.list(RESOURCE_CLAIMS, namespace.name).items, timeout_s=10)


def test_a_template_from_before_the_policy_says_so_on_its_pod(cluster: Cluster, namespace: Namespace) -> None:
    with without_config_policy(cluster):
        namespace.apply(render_template("old", render_claim_spec([WHOLE], config=[BAD])))
    namespace.apply(render_pod("wrong", templates={"gpu": "old"}))

    namespace.wait_event("wrong", "FailedResourceClaimCreation", SENTENCE)


def test_where_other_nodes_take_such_configs_a_warning_can_be_all(cluster: Cluster, namespace: Namespace) -> None:
    claim = render_claim("warned", render_claim_spec([WHOLE], config=[BAD]))
    with config_warnings(cluster):
        said = hear_kubectl(cluster, namespace.name, claim)

    assert (said.startswith("Warning: "), SENTENCE in said) == (True, True)
