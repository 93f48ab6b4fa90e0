"""Random pools: GPUs that can be cut, plain devices, and devices that several claims may share.

Every function takes the world's own random generator, so a world is a function of its seed. Each pool comes with the
features that it exercises and with hints (`Offer`) from which claims that have a chance are made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from e2e.allocator_compare.dice import Dice

GPU_DRIVER, PLAIN_DRIVER, SHARE_DRIVER = "gpu.nvidia.com", "plain.example.com", "share.example.com"
NODE, ZONE_LABEL, ZONE = "node-a", "example.com/zone", "west"

# Profile: name, starts, memory slices, multiprocessors, copy engines of an A100 with 40 GB.
_PROFILES = (
    ("1g.5gb", (0, 1, 2, 3, 4, 5, 6), 1, 14, 1),
    ("1g.10gb", (0, 2, 4, 6), 2, 14, 1),
    ("2g.10gb", (4, 0, 2), 2, 28, 2),
    ("3g.20gb", (4, 0), 4, 42, 3),
    ("4g.20gb", (0,), 4, 56, 4),
    ("7g.40gb", (0,), 8, 98, 7),
)


@dataclass
class Offer:
    """What claims may ask of a pool: its driver, selectors that some devices match, attributes to compare."""

    driver: str
    selectors: list[str]
    attributes: list[str]
    bad_selector: str
    capacity: list[str] = field(default_factory=list)


@dataclass
class Pool:
    """The slices of one pool, and what they are good for."""

    slices: list[dict[str, Any]]
    offer: Offer
    features: set[str]


def make_pool(rng: Dice, index: int, gpus_max: int) -> Pool:
    """A pool of a random kind; `index` keeps names apart, `gpus_max` keeps the search within seconds."""
    kind = rng.pool_kind()
    if kind == "gpus":
        driver, groups, offer, features = _gpus(rng, gpus_max)
    else:
        driver, groups, offer, features = _plain(rng) if kind == "plain" else _shared(rng)
    name = rng.choice(("pool", "a-pool", "z-pool")) + f"-{index}"
    counters = [group for group in groups if "sharedCounters" in group]
    devices = [group for group in groups if "sharedCounters" not in group]
    features |= _mark_devices(rng, devices)
    scope, scope_features = _scope(rng, devices)
    pieces = counters + devices
    count = len(pieces)
    slices = [
        {
            "metadata": {"name": f"{position:05x}-{driver}-{name}"},
            "spec": {
                "driver": driver,
                "pool": {"name": name, "generation": 2, "resourceSliceCount": count},
                **scope,
                **piece,
            },
        }
        for position, piece in enumerate(pieces)
    ]
    features |= scope_features | _damage(rng, slices)
    rng.shuffle(slices)
    return Pool(slices=slices, offer=offer, features=features)


def _gpus(rng: Dice, gpus_max: int) -> tuple[str, list[dict[str, Any]], Offer, set[str]]:
    features = {"partitions"}
    has_profile_everywhere = rng.random() < 0.7
    counter_sets, groups = [], []
    for gpu in range(rng.randint(1, gpus_max)):
        slices = 8
        if rng.hits("short counters", 0.25):
            features.add("short counters")
            slices = rng.choice((3, 6))
        counter_sets.append(
            {
                "name": f"gpu-{gpu}-counter-set",
                "counters": {
                    **{f"memory-slice-{i}": {"value": "1" if i < slices else "0"} for i in range(8)},
                    "multiprocessors": {"value": "98"},
                    "copy-engines": {"value": "7"},
                },
            }
        )
        groups.append({"devices": _gpu_devices(rng, gpu, has_profile_everywhere)})
    offer = Offer(
        driver=GPU_DRIVER,
        selectors=[
            *(
                f'device.attributes["gpu.nvidia.com"].?profile.orValue("") == "{profile[0]}"'
                for profile in _PROFILES[:4]
            ),
            'device.attributes["gpu.nvidia.com"].type == "gpu"',
            'device.attributes["gpu.nvidia.com"].type == "mig"',
            'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("20Gi")) >= 0',
            'device.attributes["gpu.nvidia.com"].driverVersion.isGreaterThan(semver("570.0.0"))',
            'cel.bind(own, device.attributes["gpu.nvidia.com"], has(own.profile) && own.profile.startsWith("1g"))',
        ],
        attributes=["gpu.nvidia.com/parentUUID", "resource.kubernetes.io/pcieRoot", "gpu.nvidia.com/profile"],
        bad_selector='device.attributes["gpu.nvidia.com"].profile == "1g.5gb"',
    )
    return GPU_DRIVER, [{"sharedCounters": counter_sets}, *groups], offer, features


def _gpu_devices(rng: Dice, gpu: int, has_profile_everywhere: bool) -> list[dict[str, Any]]:
    common = {
        "parentUUID": {"string": f"GPU-{gpu}"},
        "driverVersion": {"version": rng.choice(("580.95.5", "560.1.0"))},
        "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{gpu * 16:02x}"},
    }
    profiles = rng.sample(_PROFILES, rng.randint(2, 3))
    devices = [
        {
            "name": f"gpu-{gpu}-mig-{profile.replace('.', '')}-{start}",
            "attributes": {**common, "type": {"string": "mig"}, "profile": {"string": profile}},
            "capacity": {"memory": {"value": f"{4864 * size}Mi"}},
            "consumesCounters": [_consumption(gpu, range(start, start + size), processors, engines)],
        }
        for profile, starts, size, processors, engines in profiles
        for start in starts
        if start + size <= 8
    ]
    whole = {
        "name": f"gpu-{gpu}",
        "attributes": {**common, "type": {"string": "gpu"}},
        "capacity": {"memory": {"value": "40Gi"}},
        "consumesCounters": [_consumption(gpu, range(8), 98, 7)],
    }
    if has_profile_everywhere:
        whole["attributes"]["profile"] = {"string": ""}
    devices.insert(rng.choice((0, len(devices))), whole)
    return devices


def _consumption(gpu: int, slices: range, processors: int, engines: int) -> dict[str, Any]:
    return {
        "counterSet": f"gpu-{gpu}-counter-set",
        "counters": {
            **{f"memory-slice-{i}": {"value": "1"} for i in slices},
            "multiprocessors": {"value": str(processors)},
            "copy-engines": {"value": str(engines)},
        },
    }


def _plain(rng: Dice) -> tuple[str, list[dict[str, Any]], Offer, set[str]]:
    groups = []
    number = 0
    for _ in range(rng.randint(1, 2)):
        devices = []
        for _ in range(rng.randint(2, 4)):
            devices.append(_plain_device(rng, number))
            number += 1
        groups.append({"devices": devices})
    domain = f'device.attributes["{PLAIN_DRIVER}"]'
    offer = Offer(
        driver=PLAIN_DRIVER,
        selectors=[
            f'{domain}.model == "x"',
            f"{domain}.index >= 1",
            f"{domain}.ready",
            f'{domain}.?numa.orValue(0) == 1 || {domain}.model == "y"',
            f'device.capacity["{PLAIN_DRIVER}"].memory.isLessThan(quantity("12Gi"))',
            f'cel.bind(own, {domain}, own.firmware.major() >= 2 && own.model in ["x", "y"])',
            f'device.driver == "{PLAIN_DRIVER}" && !("other.example.com" in device.attributes)',
        ],
        attributes=[
            f"{PLAIN_DRIVER}/model",
            f"{PLAIN_DRIVER}/numa",
            f"{PLAIN_DRIVER}/ready",
            f"{PLAIN_DRIVER}/firmware",
        ],
        bad_selector=f"{domain}.numa == 1",
    )
    return PLAIN_DRIVER, groups, offer, set()


def _plain_device(rng: Dice, number: int) -> dict[str, Any]:
    device: dict[str, Any] = {
        "name": f"dev-{number}",
        "attributes": {
            "model": {"string": rng.choice("xy")},
            "index": {"int": number},
            "ready": {"bool": rng.random() < 0.9},
            "firmware": {"version": rng.choice(("1.9.0", "2.0.0-rc.1", "2.1.0"))},
        },
        "capacity": {"memory": {"value": rng.choice(("8Gi", "10240Mi", "16Gi"))}},
    }
    if rng.random() < 0.8:
        name = "numa" if rng.hits("bare name", 0.5) else f"{PLAIN_DRIVER}/numa"
        device["attributes"][name] = rng.choice(({"int": 0}, {"int": 1}, {"int": 1}, {"string": "1"}))
    return device


def _shared(rng: Dice) -> tuple[str, list[dict[str, Any]], Offer, set[str]]:
    features = {"shares"}
    devices: list[dict[str, Any]] = []
    for number in range(rng.randint(1, 2)):
        memory: dict[str, Any] = {"value": rng.choice(("8Gi", "16Gi"))}
        policy = rng.choice(("range", "range", "values")) if rng.hits("request policy", 0.7) else None
        if policy == "range":
            features.add("request policy")
            memory["requestPolicy"] = {"default": "2Gi", "validRange": {"min": "1Gi", "max": "6Gi", "step": "1Gi"}}
        elif policy == "values":
            features.add("request policy")
            memory["requestPolicy"] = {"default": "1Gi", "validValues": ["1Gi", "4Gi", "8Gi"]}
        capacity: dict[str, Any] = {"memory": memory}
        if rng.random() < 0.5:
            features.add("request policy")
            capacity["cores"] = {
                "value": "4",
                "requestPolicy": {"default": "500m", "validRange": {"min": "250m", "step": "250m"}},
            }
        device: dict[str, Any] = {
            "name": f"share-{number}",
            "allowMultipleAllocations": True,
            "attributes": {"model": {"string": rng.choice("xy")}},
            "capacity": capacity,
        }
        if rng.hits("shares with counters", 0.35):
            features.add("shares with counters")
            device["consumesCounters"] = [{"counterSet": "board", "counters": {"lanes": {"value": "4"}}}]
        if rng.random() < 0.2:
            device.pop("allowMultipleAllocations")
            for entry in capacity.values():
                entry.pop("requestPolicy", None)
        devices.append(device)
    offer = Offer(
        driver=SHARE_DRIVER,
        selectors=["device.allowMultipleAllocations", f'device.attributes["{SHARE_DRIVER}"].model == "x"'],
        attributes=[f"{SHARE_DRIVER}/model"],
        bad_selector=f'device.attributes["{SHARE_DRIVER}"].absent',
        capacity=["memory", "cores"],
    )
    counters = {"sharedCounters": [{"name": "board", "counters": {"lanes": {"value": rng.choice(("4", "8"))}}}]}
    return SHARE_DRIVER, [counters, {"devices": devices}], offer, features


def _mark_devices(rng: Dice, groups: list[dict[str, Any]]) -> set[str]:
    """Taints and binding conditions on some devices."""
    features = set()
    devices = [device for group in groups for device in group["devices"]]
    if rng.hits("taints", 0.3):
        features.add("taints")
        for device in devices:
            if rng.random() < 0.25:
                effect = rng.choice(("NoSchedule", "NoSchedule", "NoExecute", "None"))
                taint = {"key": rng.choice(("sick", "busy")), "value": rng.choice(("", "very")), "effect": effect}
                device["taints"] = [{key: value for key, value in taint.items() if value}]
    if rng.hits("binding conditions", 0.14):
        features.add("binding conditions")
        device = rng.choice(devices)
        device["bindingConditions"] = ["attached"]
        device["bindingFailureConditions"] = ["broken"]
        device["bindsToNode"] = rng.random() < 0.5
    return features


def _scope(rng: Dice, groups: list[dict[str, Any]]) -> tuple[dict[str, Any], set[str]]:
    chance = 1.0 if rng.hits("per-device nodes", 0.2) else rng.random() * 0.8
    if chance < 0.55:
        return {"nodeName": NODE}, set()
    if chance < 0.65:
        return {"allNodes": True}, {"all nodes"}
    if chance < 0.8:
        zone = ZONE if rng.random() < 0.9 else "east"
        return {"nodeSelector": _zone_selector(zone)}, {"node selector"}
    for group in groups:
        for device in group["devices"]:
            device.update(
                rng.choice(
                    (
                        {"nodeName": NODE},
                        {"nodeName": NODE},
                        {"nodeName": NODE},
                        {"nodeName": "node-b"},
                        {"allNodes": True},
                        {"nodeSelector": _zone_selector(ZONE)},
                    )
                )
            )
    return {"perDeviceNodeSelection": True}, {"per-device nodes"}


def _zone_selector(zone: str) -> dict[str, Any]:
    return {"nodeSelectorTerms": [{"matchExpressions": [{"key": ZONE_LABEL, "operator": "In", "values": [zone]}]}]}


def _damage(rng: Dice, slices: list[dict[str, Any]]) -> set[str]:
    """Old generations, missing slices and duplicate names."""
    features = set()
    if rng.hits("old generation", 0.13):
        features.add("old generation")
        old = {**slices[-1], "metadata": {"name": "old-" + slices[-1]["metadata"]["name"]}}
        spec = old["spec"]
        old["spec"] = {**spec, "pool": {**spec["pool"], "generation": 1}}
        slices.append(old)
    if rng.hits("incomplete pool", 0.095):
        features.add("incomplete pool")
        for piece in slices:
            piece["spec"] = {**piece["spec"], "pool": {**piece["spec"]["pool"], "resourceSliceCount": len(slices) + 1}}
    elif rng.hits("invalid pool", 0.1):
        device_slices = [piece for piece in slices if piece["spec"].get("devices")]
        devices = device_slices[0]["spec"]["devices"]
        features.add("invalid pool")
        devices.append(devices[0])
    elif rng.hits("newer generation elsewhere", 0.1):
        features.add("newer generation elsewhere")
        spec = slices[-1]["spec"]
        kept = {key: value for key, value in spec.items() if key in {"driver", "pool"}}
        newer = {**kept, "nodeName": "node-b", "pool": {**spec["pool"], "generation": 3}}
        if "nodeName" in spec:
            slices[-1]["spec"] = {**spec, "nodeName": "node-b"}
        slices.append({"metadata": {"name": "newer-" + spec["pool"]["name"]}, "spec": newer})
    return features
