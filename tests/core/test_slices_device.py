from __future__ import annotations

import json
from dataclasses import replace

import pytest
from gpu_models import GIB, PROFILES, a100, h100, known, live, roster, t4
from slice_world import devices_of, state
from tesela.core.model import Shape
from tesela.core.shape import Policy, PolicyRule
from tesela.core.slices.device import render_bus_id
from tesela.core.slices.versions import render_cuda_version, render_version

STATIC = Policy(rules=(PolicyRule(mode=Shape.STATIC),))
PARTITION = "gpu-0-mig-1g5gb-19-6"
OPTIONAL = {
    "resource.kubernetes.io/pcieRoot",
    "resource.kubernetes.io/numaNode",
    "resource.kubernetes.io/pciBusID",
    "fabricClique",
}


def attributes(device):
    return {name: next(iter(value.values())) for name, value in device["attributes"].items()}


def capacity(device):
    return {name: value["value"] for name, value in device["capacity"].items()}


def test_a_partition_on_demand():
    gpu = a100(0, pcie_root="pci0000:00", numa_node=0, addressing_mode="None")

    device = devices_of(state(roster(gpu)))[PARTITION]

    assert attributes(device) == {
        "type": "mig",
        "uuid": "",
        "parentUUID": gpu.uuid,
        "profile": "1g.5gb",
        "productName": "NVIDIA A100-SXM4-40GB",
        "brand": "Nvidia",
        "architecture": "Ampere",
        "addressingMode": "None",
        "health": "healthy",
        "cudaComputeCapability": "8.0.0",
        "driverVersion": "580.95.5",
        "cudaDriverVersion": "13.0.0",
        "index": 0,
        "placementStart": 6,
        "placementSize": 1,
        "resource.kubernetes.io/pciBusID": "0000:07:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:00",
        "resource.kubernetes.io/numaNode": 0,
    }


def test_the_capacities_of_a_partition():
    assert capacity(devices_of(state(roster(a100())))["gpu-0-mig-3g20gb-9-4"]) == {
        "memory": "19968Mi",
        "multiprocessors": "42",
        "copyEngines": "3",
        "decoders": "2",
        "encoders": "0",
        "jpegEngines": "0",
        "ofaEngines": "0",
    }


def test_a_partition_takes_its_engines_and_its_memory_slices():
    (consumed,) = devices_of(state(roster(a100())))["gpu-0-mig-3g20gb-9-4"]["consumesCounters"]

    assert (consumed["counterSet"], capacity({"capacity": consumed["counters"]})) == (
        "gpu-0-counter-set",
        {
            "memory": "19968Mi",
            "multiprocessors": "42",
            "copy-engines": "3",
            "decoders": "2",
            "encoders": "0",
            "jpeg-engines": "0",
            "ofa-engines": "0",
            "memory-slice-4": "1",
            "memory-slice-5": "1",
            "memory-slice-6": "1",
            "memory-slice-7": "1",
        },
    )


def test_a_whole_gpu_is_its_own_parent_and_spans_the_grid():
    found = attributes(devices_of(state(roster(h100())))["gpu-0"])

    assert (found["type"], found["uuid"], found["profile"], found["placementStart"], found["placementSize"]) == (
        "gpu",
        found["parentUUID"],
        "",
        0,
        8,
    )


def test_a_whole_gpu_reports_the_memory_that_nvml_reports():
    assert capacity(devices_of(state(roster(h100())))["gpu-0"])["memory"] == "81559Mi"


def test_a_whole_gpu_of_40_gib_matches_a_selector_of_40_gib():
    gpu = a100(0, mig_enabled=False, memory_bytes=40 * GIB)

    assert capacity(devices_of(state(roster(gpu)))["gpu-0"])["memory"] == "40Gi"


@pytest.mark.parametrize("gpu", [a100(), h100(), t4(), t4(0, memory_bytes=None), a100(0, pci_bus_id="?")])
def test_every_device_has_every_attribute_and_capacity_that_selectors_use(gpu):
    devices = devices_of(state(roster(gpu, h100(9)))).values()

    keys = {(frozenset(d["attributes"]) - OPTIONAL, frozenset(d["capacity"])) for d in devices}

    assert len(keys) == 1


@pytest.mark.parametrize("facts", [{"pcie_root": None}, {"numa_node": -1}, {"pci_bus_id": ""}, {"fabric_clique": None}])
def test_what_constraints_compare_is_left_out_when_unknown(facts):
    complete = {"pcie_root": "pci0000:00", "numa_node": 1, "fabric_clique": "uuid.1"}

    devices = devices_of(state(roster(h100(0, **{**complete, **facts})))).values()

    assert {len(OPTIONAL & set(device["attributes"])) for device in devices} == {3}


@pytest.mark.parametrize("profiles", PROFILES.values(), ids=PROFILES)
def test_at_most_30_attributes_and_capacities(profiles):
    gpu = h100(0, profiles=profiles, pcie_root="pci0000:00", numa_node=1, fabric_clique="uuid.1")

    counts = [len(d["attributes"]) + len(d["capacity"]) for d in devices_of(state(roster(gpu))).values()]

    assert max(counts) <= 30


def test_no_memory_slice_capacities():
    gpu = a100()
    fixed = state(roster(gpu), policy=STATIC, live=(live(gpu, "7g.40gb", 0),))

    assert "memorySlice" not in json.dumps(devices_of(fixed))


def test_a_static_partition_shows_its_uuid():
    gpu = a100()
    fixed = state(roster(gpu), policy=STATIC, live=(live(gpu, "1g.5gb", 6, gi_id=4),))

    assert attributes(devices_of(fixed)[PARTITION])["uuid"] == "MIG-00000000-0000-4000-8000-000000000004"


def test_a_gone_gpu_says_so_in_health():
    gone = known(h100(), present=False)

    assert {attributes(device)["health"] for device in devices_of(state(roster(gone))).values()} == {"gone"}


def test_unknown_versions_compare_as_zero():
    unknown = replace(roster(h100(0, cuda_compute_capability="")), driver_version="", cuda_driver_version=0)

    found = attributes(devices_of(state(unknown))["gpu-0"])

    assert {found[name] for name in ("cudaComputeCapability", "driverVersion", "cudaDriverVersion")} == {"0.0.0"}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("580.95.05", "580.95.5"),
        ("580.126.20", "580.126.20"),
        ("550.54", "550.54.0"),
        ("9.0", "9.0.0"),
        ("390.48.01.2", "390.48.1"),
        ("", "0.0.0"),
        ("unknown", "0.0.0"),
        ("9" * 30, "0.0.0"),
    ],
)
def test_version(text, version):
    assert render_version(text) == version


@pytest.mark.parametrize(("number", "version"), [(13000, "13.0.0"), (12080, "12.8.0"), (0, "0.0.0")])
def test_cuda_version(number, version):
    assert render_cuda_version(number) == version


@pytest.mark.parametrize(
    ("text", "bus_id"),
    [
        ("00000000:65:00.0", "0000:65:00.0"),
        ("0000:07:00.0", "0000:07:00.0"),
        ("0000AB12:65:0A.0", "ab12:65:0a.0"),
        ("00010000:65:00.0", "10000:65:00.0"),
        ("", None),
    ],
)
def test_pci_bus_id(text, bus_id):
    assert render_bus_id(text) == bus_id
