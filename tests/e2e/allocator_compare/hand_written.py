"""The hand-written worlds in `worlds/*.yaml`, made whole.

A file has `classes` (DeviceClass specs by name), `fleets` (pools by name: driver, pool, scope, slices) and `worlds`.
A world names its fleets, lists claims (`spec.devices` of each), what is `inUse` already, and what to `expect`.
`load_worlds` turns that into complete API objects in the shape of the generated worlds, fit for a real API server:
the node is called node-a and labelled example.com/zone=west, and claims are in the namespace `default`.

What `expect` may hold: `allocations` (per claim, `request=pool/device` in order), `none: true`, `failedOnNode` (text),
`error` (part of the text); beside allocations also `consumed`, `config` and `nodes`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parent / "worlds"
NODE = {"metadata": {"name": "node-a", "labels": {"example.com/zone": "west"}}}


def load_worlds() -> list[dict[str, Any]]:
    """All worlds of all files, in file order."""
    worlds = []
    for path in sorted(FOLDER.glob("*.yaml")):
        document = yaml.safe_load(path.read_text())
        classes = [{"metadata": {"name": name}, "spec": spec or {}} for name, spec in document["classes"].items()]
        worlds += [_whole(path.stem, classes, document["fleets"], world) for world in document["worlds"]]
    return worlds


def _whole(theme: str, classes: list[dict[str, Any]], fleets: dict[str, Any], world: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": f"{theme}: {world['name']}",
        "features": [theme],
        "node": NODE,
        "classes": classes,
        "slices": [piece for name in world["fleets"] for piece in _slices(name, fleets[name])],
        "allocatedClaims": [_holder(number, held) for number, held in enumerate(world.get("inUse", ()))],
        "claims": [
            {
                "metadata": {"name": f"claim-{number}", "namespace": "default", "uid": f"uid-{number}"},
                "spec": {"devices": devices},
            }
            for number, devices in enumerate(world["claims"])
        ],
        "expect": world["expect"],
    }


def _slices(fleet_name: str, fleet: dict[str, Any]) -> list[dict[str, Any]]:
    pool = {
        "name": fleet["pool"],
        "generation": fleet.get("generation", 1),
        "resourceSliceCount": fleet.get("sliceCount", len(fleet["slices"])),
    }
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{position:05x}-{fleet_name}"},
            "spec": {"driver": fleet["driver"], "pool": pool, **fleet["scope"], **piece},
        }
        for position, piece in enumerate(fleet["slices"])
    ]


def _holder(number: int, held: dict[str, Any]) -> dict[str, Any]:
    """An allocated claim for one device: `driver`, `pool`, `device`, and what else its result says."""
    exactly: dict[str, Any] = {"deviceClassName": "any", "allocationMode": "ExactCount", "count": 1}
    if held.get("adminAccess"):
        exactly["adminAccess"] = True
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"holder-{number}", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
        "status": {"allocation": {"devices": {"results": [{"request": "r", **held}]}}},
    }


def summarize(verdict: dict[str, Any], expect: dict[str, Any]) -> dict[str, Any]:
    """The verdict in the words of `expect`; equal to it if the verdict is as expected."""
    if "error" in verdict:
        wanted = expect.get("error", "")
        return {"error": wanted if wanted and wanted in verdict["error"] else verdict["error"]}
    if not verdict:
        return {"none": True}
    if "allocations" not in verdict:
        return verdict
    summary = {
        "allocations": [[_short(result) for result in _results(allocation)] for allocation in verdict["allocations"]]
    }
    if "consumed" in expect:
        summary["consumed"] = [
            [result.get("consumedCapacity", {}) for result in _results(allocation)]
            for allocation in verdict["allocations"]
        ]
    if "config" in expect:
        summary["config"] = [
            [" ".join([config["source"], *config.get("requests", ())]) for config in allocation["devices"]["config"]]
            for allocation in verdict["allocations"]
        ]
    if "nodes" in expect:
        summary["nodes"] = [allocation.get("nodeSelector") for allocation in verdict["allocations"]]
    return summary


def _results(allocation: dict[str, Any]) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = allocation["devices"]["results"]
    return results


def _short(result: dict[str, Any]) -> str:
    admin = " (admin)" if result.get("adminAccess") else ""
    return f"{result['request']}={result['pool']}/{result['device']}{admin}"
