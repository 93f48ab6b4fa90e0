"""The embedded cluster's scheduler and device taint manager under DeviceTaintRules, as the real ones decide.

`tests/e2e/test_driver_life.py` shows the same on a real control plane.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from contract.kube_objects import DRIVER, NAMESPACE, device, pod, request, resource_slice, taint_rule, template
from contract.kube_world import NODE, Control, eventually, make_cluster
from tesela.core.errors import ApiNotFound
from tesela.edge.embedded.taint_eviction import TaintEviction
from tesela.edge.kube.port import DEVICE_TAINT_RULES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_SLICES

KEY = "example.com/test"
GPU_0 = {"driver": DRIVER, "pool": NODE, "device": "gpu-0"}


class Later:
    """The wall clock, moved by hand."""

    def __init__(self):
        self.by = timedelta()

    def __call__(self):
        return datetime.now(UTC) + self.by


@pytest.fixture
def later():
    return Later()


@pytest.fixture
def control(later):
    cluster = make_cluster()
    cluster.create(RESOURCE_CLAIM_TEMPLATES, template("one-gpu"))
    control = Control(cluster)
    control.eviction = TaintEviction(cluster, now=later)
    yield control
    cluster.close()


def create(control, name, template_name="one-gpu"):
    claims = [{"name": "gpu", "resourceClaimTemplateName": template_name}]
    control.cluster.create(PODS, pod(name, resourceClaims=claims))
    control.settle()


def rule(control, effect="NoExecute", selector=GPU_0):
    taint = {"key": KEY, "effect": effect}
    return control.cluster.create(DEVICE_TAINT_RULES, taint_rule(taint=taint, selector=selector))["metadata"]["name"]


def condition(control, name):
    (only,) = control.cluster.get(DEVICE_TAINT_RULES, name)["status"]["conditions"]
    return only["status"], only["reason"], only["message"]


def tolerate(control, **toleration):
    tolerating = {"operator": "Exists", "key": KEY, **toleration}
    control.cluster.create(RESOURCE_CLAIM_TEMPLATES, template("bears-it", [request(tolerations=[tolerating])]))


def is_ending(control, name):
    try:
        return "deletionTimestamp" in control.pod(name)["metadata"]
    except ApiNotFound:
        return True


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
def test_the_scheduler_leaves_a_tainted_device_alone(control, effect):
    rule(control, effect)

    create(control, "a")

    assert control.devices_of("a") == ["gpu-1"]


def test_the_scheduler_takes_a_device_whose_rule_is_a_dry_run(control):
    rule(control, "None")

    create(control, "a")

    assert control.devices_of("a") == ["gpu-0"]


@pytest.mark.parametrize("selector", [None, {"driver": "other.example.com"}, {**GPU_0, "pool": "node-b"}])
def test_the_scheduler_takes_a_device_that_no_rule_selects(control, selector):
    rule(control, "NoSchedule", selector)

    create(control, "a")

    assert control.devices_of("a") == ["gpu-0"]


def test_a_pod_that_waits_for_an_untainted_device_starts_when_the_rule_goes(control):
    name = rule(control, "NoSchedule", {"driver": DRIVER})
    create(control, "a")
    before = control.devices_of("a")

    control.cluster.delete(DEVICE_TAINT_RULES, name)
    control.settle()

    assert (before, control.devices_of("a")) == ([], ["gpu-0"])


def test_a_request_may_bear_the_taint(control):
    rule(control, "NoSchedule")
    tolerate(control)

    create(control, "a", "bears-it")

    assert control.devices_of("a") == ["gpu-0"]


def test_no_execute_ends_the_pod(control):
    create(control, "a")
    rule(control)

    control.eviction.sync()

    assert is_ending(control, "a")


def test_an_evicted_pod_says_why(control):
    create(control, "a")
    rule(control)

    control.eviction.sync()

    found = {one["type"]: one.get("reason") for one in control.pod("a")["status"]["conditions"]}
    assert found["DisruptionTarget"] == "DeletionByDeviceTaintManager"


@pytest.mark.parametrize("effect", ["None", "NoSchedule"])
def test_other_effects_end_no_pod(control, effect):
    create(control, "a")
    rule(control, effect)

    control.eviction.sync()

    assert not is_ending(control, "a")


def test_a_pod_on_another_device_stays(control):
    create(control, "a")
    create(control, "b")
    rule(control)

    control.eviction.sync()

    assert not is_ending(control, "b")


def test_a_taint_of_the_slice_ends_the_pod_too(control):
    create(control, "a")
    (published,) = control.cluster.list(RESOURCE_SLICES).items
    taints = [{"key": KEY, "effect": "NoExecute"}]
    wanted = resource_slice(devices=[device("gpu-0", taints=taints), device("gpu-1")])["spec"]
    control.cluster.replace(RESOURCE_SLICES, {**published, "spec": wanted})

    control.eviction.sync()

    assert is_ending(control, "a")


def test_a_toleration_of_no_execute_keeps_the_pod(control):
    tolerate(control, effect="NoExecute")
    create(control, "a", "bears-it")
    rule(control)

    control.eviction.sync()

    assert not is_ending(control, "a")


def test_a_toleration_without_an_effect_lets_a_pod_in_and_does_not_keep_it(control):
    rule(control)
    tolerate(control)
    create(control, "a", "bears-it")
    scheduled = control.devices_of("a")

    control.eviction.sync()

    assert (scheduled, is_ending(control, "a")) == (["gpu-0"], True)


@pytest.mark.parametrize(("seconds", "ending"), [(30, False), (61, True)])
def test_a_toleration_for_a_minute_keeps_the_pod_for_a_minute(control, later, seconds, ending):
    tolerate(control, effect="NoExecute", tolerationSeconds=60)
    create(control, "a", "bears-it")
    rule(control)

    later.by = timedelta(seconds=seconds)
    control.eviction.sync()

    assert is_ending(control, "a") == ending


def test_a_dry_run_counts_whom_it_would_hit(control):
    create(control, "a")
    name = rule(control, "None", {"driver": DRIVER})

    control.eviction.sync()

    assert condition(control, name) == (
        "False",
        "NoEffect",
        (
            "2 published devices selected. 1 allocated device selected. 1 pod would be evicted in 1 namespace if the "
            "effect was NoExecute. This information will not be updated again. Recreate the DeviceTaintRule to trigger "
            "an update."
        ),
    )


def test_a_rule_says_what_is_still_to_be_evicted(control):
    create(control, "a")
    name = rule(control)

    control.eviction.sync()

    assert condition(control, name) == ("True", "PodsPendingEviction", "1 pod needs to be evicted in 1 namespace.")


def test_a_rule_says_after_a_while_that_it_is_done(control, later):
    create(control, "a")
    name = rule(control)
    control.eviction.sync()

    control.cluster.delete(PODS, "a", NAMESPACE, grace_period_s=0)
    later.by = timedelta(seconds=11)
    control.eviction.sync()

    assert condition(control, name) == ("False", "Completed", "1 pod evicted since starting the controller.")


def test_a_rule_that_hits_nobody_has_not_started(control):
    name = rule(control)

    control.eviction.sync()

    assert condition(control, name) == ("False", "NotStarted", "")


def test_a_rule_that_evicts_nobody_by_its_effect_says_so(control):
    name = rule(control, "NoSchedule")

    control.eviction.sync()

    assert condition(control, name)[1:] == ("OtherEffect", "Eviction only happens for the NoExecute effect.")


def test_a_look_at_what_has_not_changed_writes_nothing(control):
    create(control, "a")
    rule(control, "None")
    control.eviction.sync()
    before = control.cluster.wait_for_change(0, 0)

    control.eviction.sync()

    assert control.cluster.wait_for_change(0, 0) == before


def test_the_manager_runs_by_itself_too(control):
    create(control, "a")
    running = TaintEviction(control.cluster)
    running.start()
    rule(control)

    ended = eventually(lambda: is_ending(control, "a"), control.cluster)
    running.close()

    assert ended
