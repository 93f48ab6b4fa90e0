"""Expressions for the comparison of CEL engines, and the device they look at.

Each must have the same outcome with ours as with the genuine engine, unless ours is undecided. Left out are literals
that Kubernetes already checks when it compiles (timestamps, durations, regular expressions): ours fail on them at run
time, which ends the scheduler's cycle just as well.
"""

from __future__ import annotations

from typing import Any

from tesela.core.allocator import parse_slices
from tesela.core.selector import (
    CompileError,
    Match,
    NoMatch,
    SelectorDevice,
    SelectorRuntimeError,
    SelectorUndecided,
    evaluate_selector,
)

EXPRESSIONS = (
    "true",
    "false",
    "?!",
    "1",
    'device.attributes["no"].x.isGreaterThan(quantity("0"))',
    'device.attributes["no"]["x"].isGreaterThan(quantity("0"))',
    '"no" in device.attributes',
    '"gpu.nvidia.com" in device.attributes',
    'device.driver == "gpu.nvidia.com"',
    'device.attributes["gpu.nvidia.com"].profile == "1g.5gb"',
    'device.attributes[device.driver].profile == "1g.5gb"',
    'cel.bind(d, device.attributes["gpu.nvidia.com"], d.b)',
    'device.attributes["resource.kubernetes.io"].x == 7',
    'device.attributes["gpu.nvidia.com"].nope == 1 || device.driver == "gpu.nvidia.com"',
    'device.attributes["gpu.nvidia.com"].nope == 1',
    'device.attributes["gpu.nvidia.com"].?nope.orValue(1) == 1',
    'device.attributes["zz"].?nope.orValue(1) == 1',
    'device.attributes[?"zz"].?nope.orValue(1) == 1',
    "device.attributes.?zz.?nope.orValue(1) == 1",
    'has(device.attributes["gpu.nvidia.com"].nope)',
    'has(device.attributes["gpu.nvidia.com"].i)',
    "has(device.attributes.zz)",
    'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("10Gi")) >= 0',
    'device.capacity["gpu.nvidia.com"].memory == quantity("10240Mi")',
    'device.capacity["gpu.nvidia.com"].memory > quantity("1")',
    'device.capacity["gpu.nvidia.com"].memory.isGreaterThan(quantity("9Gi").add(1))',
    'device.capacity["gpu.nvidia.com"].memory.sub(quantity("1Gi")) == quantity("9Gi")',
    'device.capacity["gpu.nvidia.com"].memory.asInteger() == 10737418240',
    'device.capacity["gpu.nvidia.com"].memory.isInteger()',
    'device.capacity["gpu.nvidia.com"].memory.asApproximateFloat() > 1.5',
    'sign(device.capacity["gpu.nvidia.com"].memory) == 1',
    'device.capacity["gpu.nvidia.com"].memory.sign() == 1',
    'isQuantity("10Gi") && !isQuantity("x")',
    'quantity("x") == quantity("1")',
    'device.attributes["gpu.nvidia.com"].v.isGreaterThan(semver("1.2.0"))',
    'device.attributes["gpu.nvidia.com"].v == semver("1.2.3+build")',
    'device.attributes["gpu.nvidia.com"].v.compareTo(semver("v1.3", true)) == -1',
    'device.attributes["gpu.nvidia.com"].v.major() == 1',
    'isSemver("1.2") || isSemver("1.2", true)',
    'device.attributes["gpu.nvidia.com"].i > 1.5',
    "1 < 2.0",
    'device.attributes["gpu.nvidia.com"].i > "x"',
    "device.foo",
    "has(device.driver)",
    'cel.bind(d, device, d.driver == "gpu.nvidia.com")',
    'cel.bind(a, device.attributes, a["gpu.nvidia.com"].i == 3)',
    'device.attributes.exists(k, k == "resource.kubernetes.io")',
    'device.attributes["gpu.nvidia.com" + ""].i == 3',
    "sets.contains([1],[1])",
    "[1,2].isSorted()",
    '["a"].indexOf("a") == 0',
    '"abc".indexOf("b") == 1',
    'ip("1.2.3.4").family() == 4',
    '{"a":1}.all(k, v, v == 1)',
    "foo(1)",
    "device.allowMultipleAllocations == false",
    'device.attributes["gpu.nvidia.com"].i in [1, 3]',
    "size(device.attributes) == 2",
    "device.attributes.size() == 2",
    'device.attributes["gpu.nvidia.com"].i',
    'device.attributes["gpu.nvidia.com"].b',
    'device.attributes["gpu.nvidia.com"].includes("x")',
    '"a,b".split(",") == ["a","b"]',
    'strings.quote("a") == "\\"a\\""',
    '"%d".format([3]) == "3"',
    '" a ".trim() == "a"',
    '"abc".charAt(1) == "b"',
    '"a".upperAscii() == "A"',
    '"abc".replace("b","c") == "acc"',
    '"abc".substring(1) == "bc"',
    '["a","b"].join("-") == "a-b"',
    '"aba".lastIndexOf("a") == 2',
    '"a".reverse() == "a"',
    'device.attributes["gpu.nvidia.com"].profile.matches("^1g")',
    'duration("1h") > duration("1m")',
    '[1, "a"].size() == 2',
    "[1, 'a'].size() == 2",
    "device.attributes['gpu.nvidia.com'].index == '3'",
    "device.attributes['gpu.nvidia.com'].ready == 1",
    "device.attributes['gpu.nvidia.com'].driverVersion == '580.95.5'",
    "device.attributes['gpu.nvidia.com'].driverVersion > semver('1.0.0')",
    "device.attributes['gpu.nvidia.com'].profile < 'b'",
    "device.capacity['gpu.nvidia.com'].memory == 5",
    "string(device.attributes['gpu.nvidia.com'].index) == '3'",
    "int('3') == device.attributes['gpu.nvidia.com'].index",
    "device.attributes['gpu.nvidia.com'].profile in ['a', '1g.5gb']",
    "device.attributes['gpu.nvidia.com'].all(k, k != '')",
    "device.attributes['gpu.nvidia.com'].exists_one(k, k == 'profile')",
    "device.attributes['gpu.nvidia.com'].map(k, k).size() > 1",
    "device.attributes['gpu.nvidia.com'].filter(k, k.startsWith('p')).size() == 1",
    "type(device.attributes['gpu.nvidia.com'].index) == int",
    "device.attributes['gpu.nvidia.com'].index / 0 == 1",
    "device.attributes['gpu.nvidia.com'].index % 2 == 1",
    "-device.attributes['gpu.nvidia.com'].index == -3",
    "device.attributes['gpu.nvidia.com'].ready ? true : device.attributes['gpu.nvidia.com'].absent",
    "!device.attributes['gpu.nvidia.com'].index",
    "device.attributes['gpu.nvidia.com'].ids[0] == 1",
    "device.attributes['gpu.nvidia.com'].ids[5] == 1",
    "1 in device.attributes['gpu.nvidia.com'].ids",
    "device.attributes['gpu.nvidia.com'].profile.size() == 6",
    "'5' in device.attributes['gpu.nvidia.com'].profile",
    "optional.of(3).optMap(x, x + 1).value() == 4",
    "optional.none().orValue(true)",
    "device.attributes['gpu.nvidia.com'].?profile.optMap(p, p.startsWith('1g')).orValue(false)",
    "base64.encode(b'a') == 'YQ=='",
    "math.greatest(1,2) == 2",
    "'a'.charAt(5) == ''",
    "'abc'.substring(2,1) == ''",
    "'%s %d %f'.format(['a', 1, 1.5]) == 'a 1 1.500000'",
    "quantity('1Gi').add(quantity('1Gi')) == quantity('2Gi')",
    "quantity('5').asInteger() == 5 && quantity('200Ti').isInteger()",
    "quantity('-1').sign() == -1",
    "sign(quantity('-1')) == -1",
    "quantity('1').isGreaterThan(1)",
    "semver('1.0.0') == 1",
    "duration('1s') > duration('1ms')",
    "timestamp('2024-01-01T00:00:00Z').getFullYear() == 2024",
    "device",
    "device.attributes",
    "{'a': 1}['b'] == 1",
    "{'a': 1}.a == 1",
    "[1,2].sum() == 3",
    "'A'.lowerAscii() == 'a'",
    "true ? 1 : 2",
    "null",
    "null == null",
    "dyn(1) == dyn('a')",
    "b'a' == b'a'",
    "uint(3) == 3u",
    "1.0 == 1",
    "has(device.attributes['gpu.nvidia.com'])",
    "device.attributes['gpu.nvidia.com'].profile == device.attributes['gpu.nvidia.com'].profile",
    "isSemver('01.2.3', true) && semver('v1', true).major() == 1",
    "semver('1.2.3').major() > 0.5",
    "quantity('1.5').asApproximateFloat() > 1",
    "cel.bind(x, 1, x == 1)",
    "device.capacity['gpu.nvidia.com'].exists(k, k == 'memory')",
    "device.capacity['gpu.nvidia.com'].size() == 1",
    "size(device.attributes['gpu.nvidia.com']) > 1",
    "device.attributes['gpu.nvidia.com'].index == 3.0",
    "device.attributes['gpu.nvidia.com'].index != 'x'",
    "!(device.attributes['gpu.nvidia.com'].index == 'x')",
)

_SLICE: dict[str, Any] = {
    "metadata": {"name": "slice"},
    "spec": {
        "driver": "gpu.nvidia.com",
        "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 1},
        "allNodes": True,
        "devices": [
            {
                "name": "device",
                "attributes": {
                    "profile": {"string": "1g.5gb"},
                    "index": {"int": 3},
                    "ready": {"bool": True},
                    "driverVersion": {"version": "580.95.5"},
                    "ids": {"ints": [1, 2]},
                    "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
                },
                "capacity": {"memory": {"value": "4864Mi"}, "nic.example.com/lanes": {"value": "1500m"}},
            }
        ],
    },
}


def as_world(expression: str) -> dict[str, Any]:
    """A world of one device and one claim that selects with `expression`."""
    exactly = {"deviceClassName": "any", "selectors": [{"cel": {"expression": expression}}]}
    return {
        "name": expression,
        "features": [],
        "node": {"metadata": {"name": "node-a"}},
        "classes": [{"metadata": {"name": "any"}, "spec": {}}],
        "slices": [_SLICE],
        "allocatedClaims": [],
        "claims": [{"metadata": {"name": "c"}, "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}}],
    }


def our_outcome(expression: str) -> str:
    """match, no match, compile error, runtime error or undecided."""
    device = parse_slices([_SLICE])[0].devices[0]
    seen = SelectorDevice(
        driver=device.id.driver,
        attributes=device.attributes,
        capacity={name: capacity.value for name, capacity in device.capacity.items()},
    )
    return {
        Match: "match",
        NoMatch: "no match",
        CompileError: "compile error",
        SelectorRuntimeError: "runtime error",
        SelectorUndecided: "undecided",
    }[type(evaluate_selector(expression, seen))]


def their_outcome(verdict: dict[str, Any]) -> str:
    """The same of the genuine verdict on `as_world`."""
    if verdict.get("allocations"):
        return "match"
    error = verdict.get("error", "")
    return next((kind for kind in ("compile error", "runtime error") if f"CEL {kind}" in error), "no match")
