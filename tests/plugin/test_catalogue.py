"""The catalogue in deviceclasses/: each class picks exactly the devices that its name means, whatever else is there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import yaml
from tesela.core.allocator import (
    Allocated,
    allocate,
    parse_allocated,
    parse_claim,
    parse_class,
    parse_node,
    parse_slices,
)
from tesela.core.naming import PartitionName, parse_device_name
from tesela.core.quantity import parse_quantity
from tesela.core.roster import Roster, plan_roster
from tesela.core.selector import Attribute, AttributeKind, Match, NoMatch, SelectorDevice, evaluate_selector
from tesela.core.slices.pool import render_pool
from tesela.core.slices.state import ApiAbilities, PoolState
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.models import list_models, load_model
from tesela.edge.simulator.nvml import SimulatedNvml
from tesela.plugin.inventory import discover
from tesela.plugin.partition import Partitions

CATALOGUE = Path(__file__).resolve().parents[2] / "deviceclasses"
NODE = "node-1"
SUFFIXES = {"me": "+me", "me-all": "+me.all", "gfx": "+gfx", "no-me": "-me"}
NOTHING = Roster(boot_id="", module_token="", driver_version="", cuda_driver_version=0, gpus=())
EVERY_MODEL = ",".join(f"{model}:mig,{model}" for model in list_models())
MACHINES = [*(f"{model}:mig,{model}" for model in list_models()), EVERY_MODEL]
OTHERS_DEVICES = {
    "whole GPU of NVIDIA's driver": {"type": "gpu", "architecture": "Hopper", "productName": "NVIDIA H100 80GB HBM3"},
    "GPU for passthrough": {"type": "vfio"},
    "GPU of an unknown model": {"type": "gpu", "architecture": "Rubin", "productName": "NVIDIA R100"},
}


BOARDS = {
    ("NVIDIA A30", 24576): "a30-24gb",
    ("NVIDIA A100-SXM4-40GB", 40960): "a100-40gb",
    ("NVIDIA A100-PCIE-40GB", 40536): "a100-40gb",
    ("NVIDIA A100-SXM4-80GB", 81920): "a100-80gb",
    ("NVIDIA A100 80GB PCIe", 81920): "a100-80gb",
    ("NVIDIA H100 80GB HBM3", 81559): "h100-80gb",
    ("NVIDIA H100 PCIe", 81559): "h100-80gb",
    ("NVIDIA H100 NVL", 95830): "h100-94gb",
    ("NVIDIA H20", 97871): "h20-96gb",
    ("NVIDIA H200", 143771): "h200-141gb",
    ("NVIDIA H200 NVL", 143771): "h200-141gb",
    ("NVIDIA GH200 480GB", 97871): "gh200-96gb",
    ("NVIDIA GH200 144G HBM3e", 146831): "gh200-144gb",
    ("NVIDIA B200", 183359): "b200-180gb",
    ("NVIDIA GB200", 189471): "gb200-186gb",
    ("NVIDIA B300 SXM6 AC", 275040): "b300-269gb",
    ("NVIDIA GB300", 284208): "gb300-278gb",
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887): "rtx-pro-6000",
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887): "rtx-pro-6000",
    ("NVIDIA A30-4C", 4096): None,
    ("NVIDIA H200-18C", 18432): None,
    ("NVIDIA RTX PRO 6000 Blackwell DC-24Q", 24576): None,
    ("NVIDIA H20-3e", 143771): None,
    ("NVIDIA A100X", 81920): None,
}
"""The name and MiB that NVML gives of a board or of a vGPU, and the family whose class it belongs to."""


class Nowhere:
    """A host without a PCI tree."""

    def get_pcie_root(self, bus_id):
        return None

    def get_numa_node(self, bus_id):
        return None


@cache
def load_classes():
    paths = [*CATALOGUE.glob("*.yaml"), *(CATALOGUE / "profiles").glob("*.yaml")]
    found = [one for path in sorted(paths) for one in yaml.safe_load_all(path.read_text())]
    return {one["metadata"]["name"]: one for one in found if one["kind"] == "DeviceClass"}


@cache
def slices_of(machine):
    """What a node with these GPUs publishes."""
    nvml = SimulatedNvml(build_machine(machine))
    nvml.init()
    seen = discover(nvml, Nowhere(), Partitions(nvml))
    roster = plan_roster(NOTHING, seen, boot_id="boot-1", module_token="module-1")
    pool = render_pool(PoolState(pool=NODE, roster=roster), ApiAbilities())
    return parse_slices(
        {
            "metadata": {"name": f"{NODE}-{position:03}"},
            "spec": {
                "driver": "gpu.nvidia.com",
                "nodeName": NODE,
                "pool": {"name": NODE, "generation": 1, "resourceSliceCount": len(pool.slices)},
                "sharedCounters": list(content.counter_sets),
                "devices": list(content.devices),
            },
        }
        for position, content in enumerate(pool.slices)
    )


def model_of(machine, number):
    return re.split(r"[:,]", machine.split(",")[number])[0]


def meant_by(name):
    """Family and profile that a class of the catalogue is named after; the empty profile is the whole GPU."""
    family, cut, profile = re.fullmatch(r"nvidia-([a-z0-9-]+?)(-(\dg-.*))?", name).groups()
    if not cut:
        return family, ""
    slices, memory, suffix = re.fullmatch(r"(\dg)-(\d+gb)(?:-(.*))?", profile).groups()
    return family, f"{slices}.{memory}{SUFFIXES[suffix] if suffix else ''}"


def profile_of(model, name):
    """The profile's name in the simulator's table; a name of a device says only what a DNS label can."""
    parsed = parse_device_name(name)
    return load_model(model).profile_of_id(parsed.profile_id).name if isinstance(parsed, PartitionName) else ""


@cache
def kinds_of(machine):
    """Model and profile of every device, by its name."""
    devices = [device.id.device for one in slices_of(machine) for device in one.devices]
    models = {device: model_of(machine, parse_device_name(device).number) for device in devices}
    return {device: (model, profile_of(model, device)) for device, model in models.items()}


def devices_meant(name, machine):
    return {device for device, kind in kinds_of(machine).items() if kind == meant_by(name)}


def evaluate(device_class, device):
    (selector,) = device_class["spec"]["selectors"]
    return evaluate_selector(selector["cel"]["expression"], device)


def as_seen(device):
    return SelectorDevice(
        driver=device.id.driver,
        attributes=device.attributes,
        capacity={name: capacity.value for name, capacity in device.capacity.items()},
    )


def whole_gpu(product, memory_mib, architecture):
    facts = {"type": "gpu", "profile": "", "productName": product, "architecture": architecture}
    return SelectorDevice(
        driver="gpu.nvidia.com",
        attributes={name: Attribute(AttributeKind.STRING, text) for name, text in facts.items()},
        capacity={"memory": parse_quantity(f"{memory_mib}Mi")},
    )


def outcomes(device_class, machine):
    return {
        device.id.device: evaluate(device_class, as_seen(device))
        for one in slices_of(machine)
        for device in one.devices
    }


PROFILE_CLASSES = [name for name in load_classes() if name.startswith("nvidia-")]


@pytest.mark.parametrize(("product", "memory_mib"), BOARDS)
def test_a_board_by_its_real_name_is_in_the_class_of_its_family_alone(product, memory_mib):
    family = BOARDS[product, memory_mib]
    picked = {
        name
        for name in PROFILE_CLASSES
        for architecture in ("Ampere", "Hopper", "Blackwell")
        if evaluate(load_classes()[name], whole_gpu(product, memory_mib, architecture)) == Match()
    }

    assert picked == ({f"nvidia-{family}"} if family else set())


def test_the_quota_of_the_examples_names_every_class_that_reaches_its_boards():
    """One that is left out is a way around it."""
    (quota,) = yaml.safe_load_all((CATALOGUE / "examples" / "quota.yaml").read_text())
    limited = {line.removesuffix(".deviceclass.resource.k8s.io/devices") for line in quota["spec"]["hard"]}

    assert limited == {name for name in load_classes() if not name.startswith("nvidia-") or "-h100-80gb" in name}


@pytest.mark.parametrize("machine", MACHINES)
def test_a_class_picks_exactly_the_devices_that_its_name_means(machine):
    wrong = {}
    for name in PROFILE_CLASSES:
        seen, meant = outcomes(load_classes()[name], machine), devices_meant(name, machine)
        if odd := {device for device in seen if seen[device] != (Match() if device in meant else NoMatch())}:
            wrong[name] = odd

    assert wrong == {}


def test_every_device_of_every_model_is_in_one_class_and_no_more():
    picked = [
        device
        for name in PROFILE_CLASSES
        for device, outcome in outcomes(load_classes()[name], EVERY_MODEL).items()
        if outcome == Match()
    ]

    assert sorted(picked) == sorted(device.id.device for one in slices_of(EVERY_MODEL) for device in one.devices)


@pytest.mark.parametrize(("name", "kind"), [("gpu.nvidia.com", "gpu"), ("mig.nvidia.com", "mig")])
def test_a_general_class_picks_its_kind(name, kind):
    seen = outcomes(load_classes()[name], EVERY_MODEL)

    assert {device for device, outcome in seen.items() if outcome == Match()} == {
        device.id.device
        for one in slices_of(EVERY_MODEL)
        for device in one.devices
        if device.attributes["type"].value == kind
    }


@pytest.mark.parametrize("facts", OTHERS_DEVICES.values(), ids=OTHERS_DEVICES)
def test_what_another_driver_of_this_name_publishes_aborts_no_scheduling(facts):
    """NVIDIA's driver publishes no `profile` for a whole GPU; nodes with it may be in the same cluster."""
    document = {
        "metadata": {"name": "theirs"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": NODE,
            "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {
                    "name": "gpu-0",
                    "attributes": {name: {"string": text} for name, text in facts.items()},
                    "capacity": {"memory": {"value": "81559Mi"}},
                }
            ],
        },
    }
    (device,) = parse_slices([document])[0].devices

    answers = {name: evaluate(one, as_seen(device)) for name, one in load_classes().items()}

    assert {name: answer for name, answer in answers.items() if not isinstance(answer, Match | NoMatch)} == {}


def test_a_device_of_another_driver_is_never_looked_at():
    device = SelectorDevice(driver="other.example.com", attributes={}, capacity={})

    assert {evaluate(one, device) for one in load_classes().values()} == {NoMatch()}


@pytest.mark.parametrize("name", [name for name in PROFILE_CLASSES if devices_meant(name, EVERY_MODEL)])
def test_the_scheduler_allocates_what_a_class_means_on_a_node_of_every_model(name):
    device_class = parse_class(load_classes()[name])
    request = {"name": "gpu", "exactly": {"deviceClassName": name, "allocationMode": "ExactCount", "count": 1}}
    claim = parse_claim(
        {
            "metadata": {"name": "claim", "namespace": "default", "uid": "uid"},
            "spec": {"devices": {"requests": [request]}},
        }
    )
    node = parse_node({"metadata": {"name": NODE}})

    verdict = allocate(
        [claim], {name: device_class}, slices_of(EVERY_MODEL), node, parse_allocated([]), max_steps=50_000
    )

    assert isinstance(verdict, Allocated)
    assert {result.device.id.device for one in verdict.claims for result in one.results} <= devices_meant(
        name, EVERY_MODEL
    )


@pytest.mark.parametrize("model", list_models())
def test_the_catalogue_has_every_profile_of_a_simulated_model(model):
    listed = {profile for family, profile in map(meant_by, PROFILE_CLASSES) if family == model}

    assert {profile.name for profile in load_model(model).profiles} - listed == set()


def test_class_names_fit_where_kubernetes_puts_them():
    """As an implicit extended resource the name stands behind a slash: 63 characters."""
    assert [name for name in load_classes() if len(name) > 63] == []
