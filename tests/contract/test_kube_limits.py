"""What the API server refuses in slices and claims, with the field it names: one table, every backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from contract.kube_backends import BACKENDS, Api, open_api, refusal
from contract.kube_objects import DRIVER, claim, counters, device, request, resource_slice, unique
from tesela.edge.kube.port import RESOURCE_CLAIMS, RESOURCE_SLICES, Json


@pytest.fixture(params=BACKENDS, scope="module")
def api(request, tmp_path_factory) -> Iterator[Api]:
    with open_api(request.param, tmp_path_factory.mktemp("kube")) as opened:
        yield opened


def counter_set(name: str = "set", count: int = 1) -> Json:
    return {"name": name, "counters": counters(count)}


def consumes(name: str = "set", count: int = 1) -> Json:
    return {"counterSet": name, "counters": counters(count)}


def taint(key: str = "tesela/test", **fields) -> Json:
    return {"key": key, "effect": "NoSchedule", **fields}


def devices(count: int, **fields) -> list[Json]:
    return [device(f"gpu-{index}", **fields) for index in range(count)]


def ints(count: int) -> Json:
    return {f"a{index}": {"int": index} for index in range(count)}


def attribute(value: Json, name: str = "x") -> dict[str, list[Json]]:
    return {"devices": [device(attributes={name: value})]}


POOL = {"name": "node-a", "generation": 1, "resourceSliceCount": 1}
ACCEPTED_SLICES = {
    "128 devices": {"devices": devices(128)},
    "64 devices with counters": {"devices": devices(64, consumesCounters=[consumes()])},
    "8 counter sets of 32": {"devices": None, "sharedCounters": [counter_set(f"set-{i}", 32) for i in range(8)]},
    "2 sets consumed": {"devices": [device(consumesCounters=[consumes("a"), consumes("b")])]},
    "32 attributes and capacities": {
        "devices": [device(attributes=ints(31), capacity={"memory": {"value": "1Gi"}})],
    },
    "16 taints": {"devices": [device(taints=[taint(f"key-{i}") for i in range(16)])]},
    "a string of 64 bytes": attribute({"string": "x" * 64}),
    "an identifier of 32": attribute({"int": 1}, "x" * 32),
    "a qualified attribute": attribute({"string": "pci0000:00"}, "resource.kubernetes.io/pcieRoot"),
    "a pool of two parts": {"pool": {**POOL, "name": "a/b"}},
    "all nodes": {"nodeName": None, "allNodes": True},
    "nodes of single devices": {
        "nodeName": None,
        "perDeviceNodeSelection": True,
        "devices": [device(nodeName="node-a")],
    },
    "a missing counter value": {"devices": None, "sharedCounters": [{"name": "set", "counters": {"x": {}}}]},
}
REFUSED_SLICES = {
    "129 devices": ({"devices": devices(129)}, "spec.devices: Too many: 129"),
    "65 devices with counters": ({"devices": devices(65, consumesCounters=[consumes()])}, "spec.devices: Too many: 65"),
    "65 devices, one tainted": (
        {"devices": [*devices(64), device("last", taints=[taint()])]},
        "spec.devices: Too many: 65",
    ),
    "9 counter sets": (
        {"devices": None, "sharedCounters": [counter_set(f"set-{i}") for i in range(9)]},
        "spec.sharedCounters: Too many: 9",
    ),
    "33 counters": (
        {"devices": None, "sharedCounters": [counter_set(count=33)]},
        "spec.sharedCounters[0].counters: Too many: 33",
    ),
    "an empty counter set": (
        {"devices": None, "sharedCounters": [{"name": "set"}]},
        "spec.sharedCounters[0].counters: Required value",
    ),
    "two sets of one name": (
        {"devices": None, "sharedCounters": [counter_set(), counter_set()]},
        "spec.sharedCounters[1]: Duplicate value",
    ),
    "counters beside devices": ({"sharedCounters": [counter_set()]}, "only one of `sharedCounters` or `devices`"),
    "counters beside an empty list of devices": (
        {"devices": [], "sharedCounters": [counter_set()]},
        "only one of `sharedCounters` or `devices`",
    ),
    "a set name": (
        {"devices": None, "sharedCounters": [counter_set("Set_")]},
        'spec.sharedCounters[0].name: Invalid value: "Set_"',
    ),
    "a counter name": (
        {"devices": None, "sharedCounters": [{"name": "set", "counters": {"X_": {"value": "1"}}}]},
        "spec.sharedCounters[0].counters: Invalid value",
    ),
    "3 sets consumed": (
        {"devices": [device(consumesCounters=[consumes(f"set-{i}") for i in range(3)])]},
        "spec.devices[0].consumesCounters: Too many: 3",
    ),
    "one set consumed twice": (
        {"devices": [device(consumesCounters=[consumes(), consumes()])]},
        "spec.devices[0].consumesCounters[1]: Duplicate value",
    ),
    "nothing consumed": (
        {"devices": [device(consumesCounters=[{"counterSet": "set"}])]},
        "spec.devices[0].consumesCounters[0].counters: Required value",
    ),
    "33 attributes and capacities": (
        {"devices": [device(attributes=ints(32), capacity={"memory": {"value": "1Gi"}})]},
        "spec.devices[0]: Invalid value: 33: the total number of attributes and capacities must not exceed 32",
    ),
    "17 taints": (
        {"devices": [device(taints=[taint(f"key-{i}") for i in range(17)])]},
        "spec.devices[0].taints: Too many: 17",
    ),
    "a taint's effect": ({"devices": [device(taints=[taint(effect="Bogus")])]}, "taints[0].effect: Unsupported value"),
    "a taint without effect": ({"devices": [device(taints=[{"key": "a"}])]}, "taints[0].effect: Required value"),
    "a taint's key": ({"devices": [device(taints=[taint("")])]}, "taints[0].key: Invalid value"),
    "a taint's value": ({"devices": [device(taints=[taint(value="a b")])]}, "taints[0].value: Invalid value"),
    "a device name": ({"devices": [device("GPU_0")]}, 'spec.devices[0].name: Invalid value: "GPU_0"'),
    "a device name of 64": ({"devices": [device("a" * 64)]}, "spec.devices[0].name: Invalid value"),
    "no device name": ({"devices": [{}]}, "spec.devices[0].name: Invalid value"),
    "two devices of one name": ({"devices": [device(), device()]}, "spec.devices[1]: Duplicate value"),
    "a string of 65 bytes": (attribute({"string": "x" * 65}), "attributes[x].string: Too long"),
    "65 bytes in fewer characters": (attribute({"string": "é" * 33}), "attributes[x].string: Too long"),
    "an identifier of 33": (attribute({"int": 1}, "x" * 33), "spec.devices[0].attributes: Too long"),
    "an identifier with a dash": (attribute({"int": 1}, "x-y"), "spec.devices[0].attributes: Invalid value"),
    "an attribute's domain": (attribute({"int": 1}, "A_b/x"), "spec.devices[0].attributes: Invalid value"),
    "a version": (attribute({"version": "580.95"}), "attributes[x].version: Invalid value"),
    "a version with leading zero": (attribute({"version": "580.095.5"}), "attributes[x].version: Invalid value"),
    "two values": (attribute({"version": "1.0.0", "int": 1}), "must specify exactly one of"),
    "no value": (attribute({}), "must specify one of"),
    "a closed gate's list value": (attribute({"ints": [1]}), "must specify one of"),
    "no node": ({"nodeName": None}, "spec: Required value: exactly one of `nodeName`"),
    "two ways to name nodes": ({"allNodes": True}, "but multiple fields are set"),
    "a driver name": ({"driver": "a_b"}, "spec.driver: Invalid value"),
    "a driver name of 64": ({"driver": "a" * 64}, "spec.driver: Too long"),
    "a pool name": ({"pool": {**POOL, "name": "A_"}}, "spec.pool.name: Invalid value"),
    "no pool name": ({"pool": {**POOL, "name": ""}}, "spec.pool.name: Required value"),
    "no slice in the pool": (
        {"pool": {**POOL, "resourceSliceCount": 0}},
        "spec.pool.resourceSliceCount: Invalid value",
    ),
    "a negative generation": ({"pool": {**POOL, "generation": -1}}, "spec.pool.generation: Invalid value"),
    "a policy on a device of one": (
        {"devices": [device(capacity={"memory": {"value": "1Gi", "requestPolicy": {"default": "1Gi"}}})]},
        "spec.devices[0].capacity[memory].requestPolicy: Forbidden",
    ),
    "binding without failure": (
        {"devices": [device(bindingConditions=["x"])]},
        "spec.devices[0].bindingFailureConditions: Invalid value",
    ),
    "a node of one device": (
        {"devices": [device(nodeName="node-a")]},
        "spec.devices[0]: Invalid value: null: `nodeName`",
    ),
    "no node of a device": (
        {"nodeName": None, "perDeviceNodeSelection": True},
        "spec.devices[0]: Required value: exactly one of `nodeName`",
    ),
    "devices beside an empty list of counters": ({"sharedCounters": []}, "only one of `sharedCounters` or `devices`"),
}
MALFORMED_SLICES = {
    "a quantity": {"devices": [device(capacity={"memory": {"value": "much"}})]},
    "devices as a map": {"devices": {"gpu-0": {}}},
    "a number as a name": {"devices": [{"name": 3}]},
    "a string as an int": attribute({"int": "3"}),
    "an int beyond 64 bits": attribute({"int": 2**63}),
    "a time": {"devices": [device(taints=[taint(timeAdded="yesterday")])]},
}


@pytest.mark.parametrize("spec", ACCEPTED_SLICES.values(), ids=ACCEPTED_SLICES)
def test_slice_is_accepted(api, spec):
    name = api.create(RESOURCE_SLICES, resource_slice(**spec))["metadata"]["name"]
    api.kube.delete(RESOURCE_SLICES, name)


@pytest.mark.parametrize(("spec", "problem"), REFUSED_SLICES.values(), ids=REFUSED_SLICES)
def test_slice_is_refused(api, spec, problem):
    error = refusal(lambda: api.create(RESOURCE_SLICES, resource_slice(**spec)))
    assert (error.status, error.reason, problem in error.message or error.message) == (422, "Invalid", True)


@pytest.mark.parametrize("spec", MALFORMED_SLICES.values(), ids=MALFORMED_SLICES)
def test_slice_is_malformed(api, spec):
    assert refusal(lambda: api.create(RESOURCE_SLICES, resource_slice(**spec))).status == 400


@pytest.mark.parametrize("name", ["A_B", "-a", "a" * 254])
def test_a_slices_name_is_a_subdomain(api, name):
    error = refusal(lambda: api.create(RESOURCE_SLICES, resource_slice(name)))
    assert (error.status, error.reason) == (422, "Invalid")


def alternatives(count: int) -> Json:
    return {"name": "gpu", "firstAvailable": [{"name": f"b{i}", "deviceClassName": DRIVER} for i in range(count)]}


def config(parameters: object, **fields) -> Json:
    """For a driver that is not ours: what ours takes is its own policy's to say."""
    return {"opaque": {"driver": "other.example.com", "parameters": parameters}, **fields}


ACCEPTED_CLAIMS = {
    "no request": {"requests": []},
    "32 requests": {"requests": [request(f"r{i}") for i in range(32)]},
    "8 alternatives": {"requests": [alternatives(8)]},
    "a constraint on a subrequest": {
        "requests": [alternatives(2)],
        "constraints": [{"requests": ["gpu/b1"], "matchAttribute": f"{DRIVER}/parentUUID"}],
    },
    "10 KiB of parameters": {"config": [config({"a": "x" * (10240 - 8)})]},
    "All": {"requests": [request(allocationMode="All")]},
    "17 tolerations": {"requests": [request(tolerations=[{"operator": "Exists"}] * 17)]},
    "a toleration of everything": {"requests": [request(tolerations=[{"operator": "Exists"}])]},
}
REFUSED_CLAIMS = {
    "33 requests": ({"requests": [request(f"r{i}") for i in range(33)]}, "spec.devices.requests: Too many: 33"),
    "9 alternatives": ({"requests": [alternatives(9)]}, "requests[0].firstAvailable: Too many: 9"),
    "neither form": ({"requests": [{"name": "gpu"}]}, "exactly one of `exactly` or `firstAvailable` is required"),
    "both forms": ({"requests": [alternatives(1) | request()]}, "but multiple fields are set"),
    "two requests of one name": ({"requests": [request(), request()]}, "requests[1]: Duplicate value"),
    "a request name": ({"requests": [request("A_")]}, "requests[0].name: Invalid value"),
    "no class": ({"requests": [request(deviceClassName="")]}, "exactly.deviceClassName: Required value"),
    "a mode": ({"requests": [request(allocationMode="Some")]}, "allocationMode: Unsupported value"),
    "All with a count": ({"requests": [request(allocationMode="All", count=2)]}, "exactly.count: Invalid value: 2"),
    "a negative count": ({"requests": [request(count=-1)]}, "exactly.count: Invalid value: -1"),
    "a selector without CEL": ({"requests": [request(selectors=[{}])]}, "selectors[0].cel: Required value"),
    "a selector that does not parse": (
        {"requests": [request(selectors=[{"cel": {"expression": "device.driver =="}}])]},
        "selectors[0].cel.expression: Invalid value",
    ),
    "a selector of a string": (
        {"requests": [request(selectors=[{"cel": {"expression": "device.driver"}}])]},
        "must evaluate to bool or the unknown type, not string",
    ),
    "a selector without text": (
        {"requests": [request(selectors=[{"cel": {"expression": ""}}])]},
        'selectors[0].cel.expression: Invalid value: ""',
    ),
    "10 KiB of CEL and one byte": (
        {"requests": [request(selectors=[{"cel": {"expression": "true" + " " * 10237}}])]},
        "selectors[0].cel.expression: Too long",
    ),
    "a constraint on nothing": (
        {"constraints": [{"requests": ["other"], "matchAttribute": "a/b"}]},
        "constraints[0].requests[0]: Invalid value",
    ),
    "a bare constraint": ({"constraints": [{"matchAttribute": "x"}]}, "matchAttribute: Invalid value"),
    "an empty constraint": ({"constraints": [{}]}, "constraints[0]: Required value"),
    "10 KiB and one byte": ({"config": [config({"a": "x" * (10240 - 7)})]}, "parameters: Too long"),
    "parameters in a list": ({"config": [config([1])]}, "parameters: Invalid value"),
    "no parameters": ({"config": [{"opaque": {"driver": DRIVER}}]}, "parameters: Required value"),
    "an empty config": ({"config": [{}]}, "config[0].opaque: Required value"),
    "config for nothing": ({"config": [config({}, requests=["other"])]}, "config[0].requests[0]: Invalid value"),
    "a toleration's effect": (
        {"requests": [request(tolerations=[{"key": "x", "operator": "Exists", "effect": "Bogus"}])]},
        "tolerations[0].effect: Unsupported value",
    ),
}


@pytest.mark.parametrize("fields", ACCEPTED_CLAIMS.values(), ids=ACCEPTED_CLAIMS)
def test_claim_is_accepted(api, fields):
    api.create(RESOURCE_CLAIMS, claim(unique("claim"), **fields))


@pytest.mark.parametrize(("fields", "problem"), REFUSED_CLAIMS.values(), ids=REFUSED_CLAIMS)
def test_claim_is_refused(api, fields, problem):
    error = refusal(lambda: api.create(RESOURCE_CLAIMS, claim(unique("claim"), **fields)))
    assert (error.status, error.reason, problem in error.message or error.message) == (422, "Invalid", True)
