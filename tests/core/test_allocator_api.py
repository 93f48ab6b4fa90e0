"""What goes in as API JSON and what comes out: parsing, taint rules, limits, and the answer as the API writes it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from tesela.core.allocator import (
    Allocated,
    AllocatedState,
    DeviceId,
    Fatal,
    Unallocatable,
    Undecided,
    Verdict,
    allocate,
    apply_taint_rules,
    parse_allocated,
    parse_claim,
    parse_class,
    parse_node,
    parse_slices,
    render_allocation,
)
from tesela.core.errors import DocumentError
from tesela.core.quantity import parse_quantity

NODE = parse_node({"metadata": {"name": "node-a"}})


def _class(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "any"}, "spec": spec}


def _slice(*devices: dict[str, Any], **spec: Any) -> dict[str, Any]:
    pool = {"name": "pool", "generation": 1, "resourceSliceCount": 1}
    return {
        "metadata": {"name": "slice"},
        "spec": {"driver": "x.example.com", "pool": pool, "nodeName": "node-a", "devices": list(devices), **spec},
    }


def _claim(**exactly: Any) -> dict[str, Any]:
    request = {"name": "r", "exactly": {"deviceClassName": "any", **exactly}}
    return {
        "metadata": {"name": "c", "namespace": "ns", "uid": "u"},
        "spec": {"devices": {"requests": [request]}},
    }


def _allocate(
    claim: dict[str, Any],
    slices: list[dict[str, Any]],
    rules: tuple[dict[str, Any], ...] = (),
    device_class: dict[str, Any] | None = None,
    max_steps: int = 10_000,
) -> Verdict:
    return allocate(
        [parse_claim(claim)],
        {"any": parse_class(device_class or _class())},
        apply_taint_rules(parse_slices(slices), rules),
        NODE,
        AllocatedState(),
        max_steps=max_steps,
    )


def _rule(selector: dict[str, str] | None) -> dict[str, Any]:
    spec: dict[str, Any] = {"taint": {"key": "maintenance", "effect": "NoSchedule"}}
    return {"spec": spec if selector is None else {**spec, "deviceSelector": selector}}


def test_an_answer_is_written_as_the_api_has_it():
    toleration = {"key": "sick", "operator": "Exists"}
    device = {"name": "a", "bindingConditions": ["attached"], "bindingFailureConditions": ["broken"]}
    config = [{"opaque": {"driver": "x.example.com", "parameters": {"kind": "K"}}}]

    verdict = _allocate(_claim(tolerations=[toleration]), [_slice(device)], device_class=_class(config=config))

    assert isinstance(verdict, Allocated)
    assert render_allocation(verdict.claims[0]) == {
        "devices": {
            "results": [
                {
                    "request": "r",
                    "driver": "x.example.com",
                    "pool": "pool",
                    "device": "a",
                    "tolerations": [toleration],
                    "bindingConditions": ["attached"],
                    "bindingFailureConditions": ["broken"],
                }
            ],
            "config": [{"source": "FromClass", **config[0]}],
        },
        "nodeSelector": {
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}]
        },
    }


def test_shares_get_ids_that_are_uuids_and_differ():
    device = {"name": "a", "allowMultipleAllocations": True}

    verdict = _allocate(_claim(), [_slice(device, {**device, "name": "b"})])

    assert isinstance(verdict, Allocated)
    assert UUID(verdict.claims[0].results[0].share_id or "").version == 5


def test_the_same_question_gets_the_same_share_id():
    slices = [_slice({"name": "a", "allowMultipleAllocations": True})]

    assert _allocate(_claim(), slices) == _allocate(_claim(), slices)


@pytest.mark.parametrize(
    ("selector", "taken"),
    [
        (None, "a"),
        ({}, None),
        ({"driver": "x.example.com", "device": "a"}, "b"),
        ({"pool": "elsewhere"}, "a"),
        ({"pool": "pool"}, None),
    ],
)
def test_a_taint_rule_keeps_claims_from_the_devices_it_selects(selector, taken):
    verdict = _allocate(_claim(), [_slice({"name": "a"}, {"name": "b"})], rules=(_rule(selector),))

    assert (verdict.claims[0].results[0].id.device if isinstance(verdict, Allocated) else None) == taken


def test_a_search_beyond_its_steps_is_undecided():
    devices = [{"name": f"d{i}", "attributes": {"v": {"int": i}}} for i in range(20)]
    claim = _claim(count=19)
    claim["spec"]["devices"]["constraints"] = [{"matchAttribute": "x.example.com/v"}]

    assert _allocate(claim, [_slice(*devices)], max_steps=20) == Undecided(what="a search of more than 20 steps")


def test_a_selector_with_a_function_we_lack_is_undecided_and_named():
    claim = _claim(selectors=[{"cel": {"expression": "sets.contains([1], [1])"}}])

    assert _allocate(claim, [_slice({"name": "a"})]) == Undecided(
        what="claim ns/c: selector #0 uses sets.contains, which is not evaluated here"
    )


def test_a_request_without_a_kind_is_unallocatable():
    claim = _claim()
    claim["spec"]["devices"]["requests"] = [{"name": "r"}]

    assert _allocate(claim, []) == Unallocatable(reason="request r: unknown request type")


@pytest.mark.parametrize(
    ("exactly", "message"),
    [
        ({"deviceClassName": "none"}, "claim ns/c, request r: could not retrieve device class none: it does not exist"),
        ({"allocationMode": "Some"}, "claim ns/c, request r: unsupported count mode Some"),
        ({"selectors": [{"rego": {}}]}, "claim ns/c, request r, selector #0: CEL expression empty"),
        ({"deviceClassName": ""}, "claim ns/c, request r: missing device class name"),
        ({"derivedAttributes": [{}]}, "claim ns/c, request r: cannot handle request with derived attributes"),
        ({"count": 33}, "claim ns/c, request r: adding 33 devices exceeds the claim limit of 32, with 0 already"),
    ],
)
def test_what_ends_the_scheduling_cycle(exactly, message):
    verdict = _allocate(_claim(**exactly), [_slice({"name": "a"})])

    assert isinstance(verdict, Fatal)
    assert verdict.message.startswith(message)


def test_a_capacity_beyond_int64_ends_the_scheduling_cycle():
    policy = {"default": "1", "validRange": {"min": "1", "step": "3"}}
    device = {
        "name": "a",
        "allowMultipleAllocations": True,
        "capacity": {"m": {"value": "10", "requestPolicy": policy}},
    }

    verdict = _allocate(_claim(capacity={"requests": {"m": "9223372036854775808"}}), [_slice(device)])

    assert isinstance(verdict, Fatal)
    assert "cannot be represented" in verdict.message


def test_allocated_claims_hold_devices_whole_or_in_shares_and_admins_hold_none():
    device = {"driver": "x.example.com", "pool": "pool"}
    results = [
        {**device, "device": "whole"},
        {**device, "device": "share", "shareID": "s1", "consumedCapacity": {"m": "1Gi"}},
        {**device, "device": "share", "shareID": "s2", "consumedCapacity": {"m": "512Mi"}},
        {**device, "device": "looked-at", "adminAccess": True},
    ]
    claims = [{"status": {"allocation": {"devices": {"results": results}}}}, {"status": {}}, {}]

    state = parse_allocated(claims)

    share = DeviceId("x.example.com", "pool", "share")
    assert state == AllocatedState(
        dedicated=frozenset({DeviceId("x.example.com", "pool", "whole")}),
        shared=frozenset({share}),
        consumed={share: {"m": parse_quantity("1536Mi")}},
    )


def test_a_quantity_that_cannot_be_read_names_the_field():
    device = {"name": "a", "capacity": {"memory": {"value": "much"}}}

    with pytest.raises(DocumentError, match=r"^ResourceSlice slice devices\[a\]\.capacity\[memory\]\.value: 'much'"):
        parse_slices([_slice(device)])
