"""DeviceTaintRules behind the port: what every backend keeps, defaults and refuses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from contract.kube_backends import BACKENDS, Api, open_api, refusal
from contract.kube_objects import changed, taint_rule, unique, with_spec
from tesela.core.errors import ApiConflict, ApiNotFound
from tesela.edge.kube.port import DEVICE_TAINT_RULES


@pytest.fixture(params=BACKENDS)
def api(request, tmp_path) -> Iterator[Api]:
    with open_api(request.param, tmp_path) as opened:
        yield opened


def rewrite(api: Api, rule, edit):
    """The rule as `edit` makes it, read anew where the device taint manager of a real cluster was in between."""
    for _ in range(20):
        try:
            return api.kube.replace(DEVICE_TAINT_RULES, edit(rule))
        except ApiConflict:
            rule = api.kube.get(DEVICE_TAINT_RULES, rule["metadata"]["name"])
    raise AssertionError("somebody else writes it again and again")


def test_a_rule_is_read_as_it_was_created(api):
    created = api.create(DEVICE_TAINT_RULES, taint_rule())

    # not the status: the device taint manager of a real cluster writes it at once
    read = api.kube.get(DEVICE_TAINT_RULES, created["metadata"]["name"])
    assert (read["spec"], read["metadata"]["uid"]) == (created["spec"], created["metadata"]["uid"])


def test_a_rule_is_numbered_by_its_spec(api):
    created = api.create(DEVICE_TAINT_RULES, taint_rule())
    harder = {**created["spec"]["taint"], "effect": "NoExecute"}

    replaced = rewrite(api, created, lambda rule: with_spec(rule, taint=harder))

    assert (created["metadata"]["generation"], replaced["metadata"]["generation"]) == (1, 2)


def test_a_rule_s_taint_gets_the_time_it_was_added(api):
    assert api.create(DEVICE_TAINT_RULES, taint_rule())["spec"]["taint"]["timeAdded"].endswith("Z")


def test_a_rule_s_time_begins_anew_with_its_effect(api):
    old = {"key": "example.com/test", "effect": "None", "timeAdded": "2026-01-02T03:04:05Z"}
    created = api.create(DEVICE_TAINT_RULES, taint_rule(taint=old))

    replaced = rewrite(api, created, lambda rule: with_spec(rule, taint={**old, "effect": "NoSchedule"}))

    assert replaced["spec"]["taint"]["timeAdded"] > old["timeAdded"]


def test_a_rule_s_time_stays_with_its_effect(api):
    old = {"key": "example.com/test", "effect": "None", "timeAdded": "2026-01-02T03:04:05Z"}
    created = api.create(DEVICE_TAINT_RULES, taint_rule(taint=old))

    replaced = rewrite(api, created, lambda rule: with_spec(rule, taint={**old, "value": "later"}))

    assert replaced["spec"]["taint"]["timeAdded"] == old["timeAdded"]


def test_a_rule_without_a_selector_has_none(api):
    assert "deviceSelector" not in api.create(DEVICE_TAINT_RULES, taint_rule(selector=None))["spec"]


def test_a_rule_for_every_device_keeps_its_empty_selector(api):
    # an effect that does nothing: on a real cluster every device is hit
    taint = {"key": "example.com/test", "effect": "None"}

    assert api.create(DEVICE_TAINT_RULES, taint_rule(selector={}, taint=taint))["spec"]["deviceSelector"] == {}


def test_a_rule_is_created_without_the_status_it_brings(api):
    condition = {"type": "EvictionInProgress", "status": "True", "reason": "Made", "message": ""}
    brought = {**taint_rule(), "status": {"conditions": [condition]}}

    assert "Made" not in str(api.create(DEVICE_TAINT_RULES, brought))


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"taint": {"key": "", "effect": "None"}}, "spec.taint.key"),
        ({"taint": {"key": "example.com/test"}}, "spec.taint.effect"),
        ({"taint": {"key": "example.com/test", "effect": "Never"}}, "spec.taint.effect"),
        ({"taint": {"key": "example.com/test", "effect": "None", "value": "not a label"}}, "spec.taint.value"),
        ({"selector": {"driver": "not/one"}}, "spec.deviceSelector.driver"),
        ({"selector": {"pool": "-"}}, "spec.deviceSelector.pool"),
        ({"selector": {"device": "Upper"}}, "spec.deviceSelector.device"),
    ],
)
def test_a_rule_that_means_nothing_is_refused_by_its_field(api, spec, field):
    refused = refusal(lambda: api.create(DEVICE_TAINT_RULES, taint_rule(**spec)))

    assert (refused.status, field in refused.message) == (422, True)


def test_a_rule_read_before_another_wrote_is_refused(api):
    created = api.create(DEVICE_TAINT_RULES, taint_rule())
    rewrite(api, created, lambda rule: changed(rule, labels={"first": "yes"}))

    with pytest.raises(ApiConflict):
        api.kube.replace(DEVICE_TAINT_RULES, changed(created, labels={"second": "yes"}))


def test_a_rule_may_be_made_once(api):
    name = unique("rule")
    api.create(DEVICE_TAINT_RULES, taint_rule(name))

    with pytest.raises(ApiConflict):
        api.kube.create(DEVICE_TAINT_RULES, taint_rule(name))


def test_a_deleted_rule_is_gone(api):
    name = api.create(DEVICE_TAINT_RULES, taint_rule())["metadata"]["name"]

    api.kube.delete(DEVICE_TAINT_RULES, name)

    with pytest.raises(ApiNotFound):
        api.kube.get(DEVICE_TAINT_RULES, name)
