"""The embedded cluster's scheduler and claim controller: what kube-scheduler and the controller manager do."""

from __future__ import annotations

import pytest
from contract.kube_objects import DRIVER, NAMESPACE, claim, pod, request, template
from contract.kube_world import NODE, Control, make_cluster
from tesela.core.errors import ApiNotFound
from tesela.edge.embedded.pod_claims import FINALIZER
from tesela.edge.kube.port import NODES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS


@pytest.fixture
def control():
    cluster = make_cluster()
    cluster.create(RESOURCE_CLAIM_TEMPLATES, template("one-gpu"))
    yield Control(cluster)
    cluster.close()


def create(control: Control, name: str, template_name: str = "one-gpu", **spec) -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": template_name}]
    control.cluster.create(PODS, pod(name, resourceClaims=claims, **spec))


def create_sharing(control: Control, name: str, claim_name: str) -> None:
    claims = [{"name": "gpu", "resourceClaimName": claim_name}]
    control.cluster.create(PODS, pod(name, resourceClaims=claims))


def test_a_template_makes_a_claim_for_the_pod(control):
    create(control, "a")
    control.settle()
    name = control.claims()[0]["metadata"]["name"]
    assert (name.startswith("a-gpu-"), len(name)) == (True, len("a-gpu-") + 5)


def test_the_claims_name_stands_in_the_pods_status(control):
    create(control, "a")
    control.settle()
    statuses = control.pod("a")["status"]["resourceClaimStatuses"]
    assert statuses == [{"name": "gpu", "resourceClaimName": control.claims()[0]["metadata"]["name"]}]


def test_the_claim_names_the_pods_name_for_it(control):
    create(control, "a")
    control.settle()
    annotations = control.claims()[0]["metadata"]["annotations"]
    assert annotations == {"resource.kubernetes.io/pod-claim-name": "gpu"}


def test_a_long_pod_name_is_cut_in_the_claims_name(control):
    create(control, "p" * 80)
    control.settle()
    assert len(control.claims()[0]["metadata"]["name"]) == 57 + 1 + 5


def test_a_pod_without_its_template_says_so(control):
    create(control, "a", "absent")
    control.settle()
    conditions = {entry["type"]: entry["message"] for entry in control.pod("a")["status"]["conditions"]}
    assert '"absent" not found' in conditions["FailedResourceClaimCreation"]


def test_a_pod_whose_claim_is_not_made_waits(control):
    create(control, "a", "absent")
    control.settle()
    assert control.scheduled("a") is None


def test_a_pod_gets_a_device_and_a_node(control):
    create(control, "a")
    control.settle()
    assert (control.pod("a")["spec"]["nodeName"], control.devices_of("a")) == (NODE, ["gpu-0"])


def test_an_allocated_claim_is_protected(control):
    create(control, "a")
    control.settle()
    assert control.claims()[0]["metadata"]["finalizers"] == [FINALIZER]


def test_an_allocation_is_bound_to_its_node(control):
    create(control, "a")
    control.settle()
    terms = control.claims()[0]["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"]
    assert terms == [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}]


def test_pods_come_first_served(control):
    for name in ("z", "b", "a"):
        create(control, name)
    control.settle()
    assert (control.devices_of("z"), control.devices_of("b"), control.devices_of("a")) == (["gpu-0"], ["gpu-1"], [])


def test_a_pod_that_finds_nothing_says_so_as_the_scheduler_does(control):
    for name in ("a", "b", "c"):
        create(control, name)
    control.settle()
    waits = control.scheduled("c")
    text = (
        "0/1 nodes are available: 1 cannot allocate all claims. "
        "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    )
    assert (waits["status"], waits["reason"], waits["message"]) == ("False", "Unschedulable", text)


def test_a_waiting_pod_writes_nothing_again(control):
    for name in ("a", "b", "c"):
        create(control, name)
    control.settle()
    before = control.cluster.wait_for_change(0, 0)
    control.scheduler.sync()
    assert control.cluster.wait_for_change(0, 0) == before


def test_a_waiting_pod_starts_when_another_ends(control):
    for name in ("a", "b", "c"):
        create(control, name)
    control.settle()
    control.end("a")
    control.settle()
    assert control.devices_of("c") == ["gpu-0"]


def test_a_selector_that_fails_stops_the_cycle(control):
    selector = {"cel": {"expression": 'device.attributes["gpu.nvidia.com"].absent == "x"'}}
    control.cluster.create(RESOURCE_CLAIM_TEMPLATES, template("bad", [request(selectors=[selector])]))
    create(control, "a", "bad")
    control.settle()
    waits = control.scheduled("a")
    assert (waits["reason"], "no such key: absent" in waits["message"]) == ("SchedulerError", True)


def test_a_missing_class_is_named(control):
    control.cluster.create(RESOURCE_CLAIM_TEMPLATES, template("other", [request(deviceClassName="absent")]))
    create(control, "a", "other")
    control.settle()
    text = (
        "0/1 nodes are available: request gpu: device class absent does not exist. "
        "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    )
    assert control.scheduled("a")["message"] == text


def test_a_missing_class_of_an_alternative_is_named(control):
    alternatives = [{"name": "first", "deviceClassName": "absent"}, {"name": "second", "deviceClassName": DRIVER}]
    control.cluster.create(RESOURCE_CLAIM_TEMPLATES, template("two", [{"name": "gpu", "firstAvailable": alternatives}]))
    create(control, "a", "two")
    control.settle()
    assert "request gpu/first: device class absent does not exist" in control.scheduled("a")["message"]


def test_a_pod_whose_claim_is_absent_waits(control):
    create_sharing(control, "a", "absent")
    control.settle()
    assert control.scheduled("a") is None


def test_two_pods_share_a_claim(control):
    control.cluster.create(RESOURCE_CLAIMS, claim("shared"))
    create_sharing(control, "a", "shared")
    create_sharing(control, "b", "shared")
    control.settle()
    assert (control.devices_of("a"), control.devices_of("b")) == (["gpu-0"], ["gpu-0"])


def test_a_shared_claim_is_freed_after_the_last(control):
    control.cluster.create(RESOURCE_CLAIMS, claim("shared"))
    create_sharing(control, "a", "shared")
    create_sharing(control, "b", "shared")
    control.settle()
    control.end("a")
    control.settle()
    kept = "allocation" in control.claims()[0]["status"]
    control.end("b")
    control.settle()
    assert (kept, control.claims()[0]["status"]) == (True, {})


def test_a_pod_that_comes_in_the_middle_of_a_look_keeps_what_it_reserved(control):
    control.cluster.create(RESOURCE_CLAIMS, claim("shared"))
    peek, has_come = control.cluster.peek, []

    def come(resource):
        seen = peek(resource)
        if not has_come:
            has_come.append(True)
            create_sharing(control, "a", "shared")
            control.scheduler.sync()
        return seen

    control.cluster.peek = come
    control.controller.sync()
    assert (has_come, control.devices_of("a")) == ([True], ["gpu-0"])


def test_a_freed_claim_loses_its_protection(control):
    control.cluster.create(RESOURCE_CLAIMS, claim("shared"))
    create_sharing(control, "a", "shared")
    control.settle()
    control.end("a")
    control.settle()
    assert "finalizers" not in control.claims()[0]["metadata"]


def test_a_made_claim_goes_with_its_finished_pod(control):
    create(control, "a")
    control.settle()
    control.end("a")
    control.settle()
    assert control.claims() == ()


def test_a_made_claim_goes_with_its_deleted_pod(control):
    create(control, "a")
    control.settle()
    control.cluster.delete(PODS, "a", NAMESPACE, grace_period_s=0)
    control.settle()
    assert control.claims() == ()


def test_a_protected_claim_that_waits_for_its_allocation_stays_protected(control):
    control.cluster.create(RESOURCE_CLAIMS, claim("waiting", metadata={"finalizers": [FINALIZER]}))
    control.controller.sync()
    assert control.claims()[0]["metadata"]["finalizers"] == [FINALIZER]


def test_a_claim_in_use_outlives_its_deletion(control):
    control.cluster.create(RESOURCE_CLAIMS, claim("shared"))
    create_sharing(control, "a", "shared")
    control.settle()
    control.cluster.delete(RESOURCE_CLAIMS, "shared", NAMESPACE)
    control.settle()
    assert control.devices_of("a") == ["gpu-0"]


def test_a_deleted_claim_takes_no_new_pod(control):
    control.cluster.create(RESOURCE_CLAIMS, claim("shared"))
    create_sharing(control, "a", "shared")
    control.settle()
    control.cluster.delete(RESOURCE_CLAIMS, "shared", NAMESPACE)
    create_sharing(control, "b", "shared")
    control.settle()
    assert (control.scheduled("b"), control.devices_of("b")) == (None, [])


def test_a_deleted_claim_goes_after_its_last_pod(control):
    control.cluster.create(RESOURCE_CLAIMS, claim("shared"))
    create_sharing(control, "a", "shared")
    control.settle()
    control.cluster.delete(RESOURCE_CLAIMS, "shared", NAMESPACE)
    control.end("a")
    control.settle()
    with pytest.raises(ApiNotFound):
        control.cluster.get(RESOURCE_CLAIMS, "shared", NAMESPACE)


def test_an_unschedulable_node_is_left_out(control):
    node = control.cluster.get(NODES, NODE)
    control.cluster.replace(NODES, {**node, "spec": {"unschedulable": True}})
    create(control, "a")
    control.settle()
    assert "1 node(s) were unschedulable" in control.scheduled("a")["message"]


def test_a_tainted_node_is_left_out(control):
    node = control.cluster.get(NODES, NODE)
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    control.cluster.replace(NODES, {**node, "spec": {"taints": [taint]}})
    create(control, "a")
    control.settle()
    assert "1 node(s) had untolerated taint(s)" in control.scheduled("a")["message"]


def test_a_tolerated_taint_is_no_hindrance(control):
    node = control.cluster.get(NODES, NODE)
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    control.cluster.replace(NODES, {**node, "spec": {"taints": [taint]}})
    create(control, "a", tolerations=[{"key": "k", "operator": "Exists"}])
    control.settle()
    assert control.pod("a")["spec"]["nodeName"] == NODE


def test_without_a_node_the_message_says_so(control):
    control.cluster.delete(NODES, NODE)
    create(control, "a")
    control.settle()
    assert control.scheduled("a")["message"] == "no nodes available to schedule pods"


def test_a_pod_without_claims_gets_a_node(control):
    control.cluster.create(PODS, pod("plain"))
    control.settle()
    assert control.pod("plain")["spec"]["nodeName"] == NODE
