"""Worlds for the comparison: one node, classes, slices, what is allocated already, and claims; each from its seed.

`make_world(seed, index)` always gives the same world. `features` name what a world exercises, so that a run can show
that each feature is there often enough.
"""

from __future__ import annotations

import copy
from typing import Any

from e2e.allocator_compare.dice import Dice
from e2e.allocator_compare.pools import NODE, ZONE, ZONE_LABEL, Offer, make_pool

CLASSES = (
    {"metadata": {"name": "any"}, "spec": {}},
    {
        "metadata": {"name": "gpus"},
        "spec": {
            "selectors": [{"cel": {"expression": 'device.driver == "gpu.nvidia.com"'}}],
            "config": [{"opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "GpuConfig"}}}],
        },
    },
    {
        "metadata": {"name": "examples"},
        "spec": {
            "selectors": [{"cel": {"expression": 'device.driver.endsWith("example.com")'}}],
            "config": [
                {"opaque": {"driver": "plain.example.com", "parameters": {"n": 1}}},
                {"opaque": {"driver": "share.example.com", "parameters": {"n": 2}}},
            ],
        },
    },
)


def make_world(seed: int, index: int) -> dict[str, Any]:
    """World `index` of the run with `seed`."""
    rng = Dice(f"{seed}/{index}")
    count = rng.choice((2, 2, 3)) if rng.hits("several pools", 0.6) else 1
    pools = [make_pool(rng, number, gpus_max=2 if count == 1 else 1) for number in range(count)]
    features = {feature for pool in pools for feature in pool.features}
    if len(pools) > 1:
        features.add("several pools")
    offers = [pool.offer for pool in pools]
    slices = [piece for pool in pools for piece in pool.slices]
    claims = [_Claim(rng, offers, features, number).make() for number in range(rng.choice((1, 1, 1, 1, 1, 2, 3)))]
    if len(claims) > 1:
        features.add("several claims")
    allocated = _allocated(rng, slices, features)
    return {
        "name": f"{seed}/{index}",
        "features": sorted(features),
        "node": {"metadata": {"name": NODE, "labels": {ZONE_LABEL: ZONE}}},
        "classes": list(CLASSES),
        "slices": slices,
        "allocatedClaims": allocated,
        "claims": claims,
    }


class _Claim:
    """One claim being made up."""

    def __init__(self, rng: Dice, offers: list[Offer], features: set[str], number: int) -> None:
        self._rng = rng
        self._offers = offers
        self._features = features
        self._number = number

    def make(self) -> dict[str, Any]:
        rng = self._rng
        count = rng.choice((2, 2, 3)) if rng.hits("several requests", 0.4) else 1
        if count > 1:
            self._features.add("several requests")
        offers = (
            [rng.choice(self._offers)] * count
            if rng.random() < 0.6
            else [rng.choice(self._offers) for _ in range(count)]
        )
        requests = [self._request(f"r{i}", offer) for i, offer in enumerate(offers)]
        devices: dict[str, Any] = {"requests": requests}
        names = [name for request in requests for name in _names(request)]
        if rng.hits("constraint", 0.35):
            devices["constraints"] = [self._constraint(rng.choice(offers), names)]
        if rng.hits("config", 0.2):
            self._features.add("config")
            devices["config"] = [
                {"requests": requests, "opaque": {"driver": "gpu.nvidia.com", "parameters": {"of": "claim"}}}
                for requests in (rng.sample(names, rng.randint(0, min(2, len(names)))), [names[-1]])
            ]
        return {
            "metadata": {"name": f"claim-{self._number}", "namespace": "default", "uid": f"uid-{self._number}"},
            "spec": {"devices": devices},
        }

    def _request(self, name: str, offer: Offer) -> dict[str, Any]:
        rng = self._rng
        if rng.hits("prioritized list", 0.2):
            self._features.add("prioritized list")
            alternatives = [
                {"name": f"s{i}", **self._demand(offer if i == 0 else rng.choice(self._offers), may_be_admin=False)}
                for i in range(rng.randint(2, 3))
            ]
            if rng.hits("result limit", 0.5):
                self._features.add("result limit")
                alternatives[0] |= {
                    "allocationMode": "ExactCount",
                    "count": 33 if name == "r0" else rng.choice((30, 32)),
                }
            return {"name": name, "firstAvailable": alternatives}
        return {"name": name, "exactly": self._demand(offer, may_be_admin=True)}

    def _demand(self, offer: Offer, *, may_be_admin: bool) -> dict[str, Any]:
        rng = self._rng
        demand: dict[str, Any] = {
            "deviceClassName": "any",
            "allocationMode": "ExactCount",
            "count": rng.choice((2, 2, 3)) if rng.hits("count", 0.2) else 1,
        }
        if rng.hits("narrow class", 0.5):
            demand["deviceClassName"] = "gpus" if offer.driver.startswith("gpu") else "examples"
        if rng.hits("too many", 0.015):
            self._features.add("result limit")
            demand["count"] = 33
        if demand["count"] > 1:
            self._features.add("count")
        self._select(demand, offer)
        if rng.hits("all devices", 0.07):
            self._features.add("all devices")
            demand["allocationMode"] = "All"
            del demand["count"]
        if may_be_admin and rng.hits("admin access", 0.12):
            self._features.add("admin access")
            demand["adminAccess"] = True
        if rng.hits("tolerations", 0.45):
            self._features.add("tolerations")
            demand["tolerations"] = [
                rng.choice(
                    (
                        {"operator": "Exists"},
                        {"operator": "Exists"},
                        {"key": "sick", "operator": "Exists", "effect": "NoSchedule"},
                        {"key": "busy", "operator": "Equal", "value": "very"},
                        {"key": "sick", "operator": "Exists"},
                    )
                )
            ]
        if (offer.capacity and rng.hits("capacity request", 0.6)) or rng.random() < 0.04:
            self._features.add("capacity request")
            amounts = {"memory": ("512Mi", "1Gi", "1536Mi", "2Gi", "3Gi", "7Gi"), "cores": ("0.1", "1", "1300m")}
            names = ["memory"] if rng.random() < 0.75 or not offer.capacity else ["memory", "cores"]
            demand["capacity"] = {"requests": {name: rng.choice(amounts[name]) for name in names}}
        return demand

    def _select(self, demand: dict[str, Any], offer: Offer) -> None:
        rng = self._rng
        expressions = rng.sample(offer.selectors, rng.choice((1, 1, 1, 2))) if rng.hits("selected", 0.65) else []
        if rng.hits("selector that may fail", 0.07):
            self._features.add("selector that may fail")
            expressions.append(offer.bad_selector)
        is_open = demand["deviceClassName"] == "any" and len(self._offers) > 1
        if rng.hits("driver named", 0.95 if is_open else 0.2):
            expressions.insert(0, f'device.driver == "{offer.driver}"')
        if expressions:
            demand["selectors"] = [{"cel": {"expression": expression}} for expression in expressions]

    def _constraint(self, offer: Offer, names: list[str]) -> dict[str, Any]:
        rng = self._rng
        kind = rng.choice(("matchAttribute", "matchAttribute", "distinctAttribute", "distinctAttribute"))
        self._features.add(kind)
        constraint: dict[str, Any] = {kind: rng.choice(offer.attributes)}
        if rng.hits("constraint on some requests", 0.5):
            self._features.add("constraint on some requests")
            constraint["requests"] = rng.sample(names, rng.randint(1, min(2, len(names))))
        return constraint


def _names(request: dict[str, Any]) -> list[str]:
    alternatives = request.get("firstAvailable", [])
    return [request["name"], *(f"{request['name']}/{alternative['name']}" for alternative in alternatives)]


def _allocated(rng: Dice, slices: list[dict[str, Any]], features: set[str]) -> list[dict[str, Any]]:
    """Claims that hold some devices, whole or in shares, or look at them with admin access."""
    if not rng.hits("devices in use", 0.5):
        return []
    features.add("devices in use")
    # The first devices of slices are wanted most.
    end = 1 if rng.hits("first in use", 0.7) else None
    devices = [(piece["spec"], device) for piece in slices for device in piece["spec"].get("devices", ())[:end]]
    results = []
    for number, (spec, device) in enumerate(rng.sample(devices, min(len(devices), rng.choice((1, 1, 2))))):
        result: dict[str, Any] = {
            "request": "r",
            "driver": spec["driver"],
            "pool": spec["pool"]["name"],
            "device": device["name"],
        }
        if rng.hits("admin access in use", 0.27):
            features.add("admin access in use")
            result["adminAccess"] = True
        elif device.get("allowMultipleAllocations"):
            result["shareID"] = f"00000000-0000-4000-8000-{number:012d}"
            consumed = {"memory": rng.choice(("1Gi", "2Gi", "6Gi")), "cores": "1"}
            result["consumedCapacity"] = {name: consumed[name] for name in device["capacity"]}
        results.append(result)
    return [
        {
            "metadata": {"name": f"holder-{number}", "namespace": "default"},
            "spec": {"devices": {"requests": []}},
            "status": {"allocation": {"devices": {"results": [copy.deepcopy(result)]}}},
        }
        for number, result in enumerate(results)
    ]
