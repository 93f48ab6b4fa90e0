"""Which of our devices a device plugin's ids mean."""

from __future__ import annotations

import pytest
from gpu_models import a100, h100, live, roster
from slice_world import devices_of, state, taints_of
from tesela.core.device_plugins import PluginUse, list_offered, plan_offered_fences, plan_plugin_fences
from tesela.core.model import Placement

ROSTER = roster(a100(0), h100(1))
PARTITION = live(a100(0), "1g.5gb", 4)
ON_GPU_0, ON_GPU_1 = (a100(0).uuid, None), (h100(1).uuid, None)


def use(device_id, *, resource="nvidia.com/gpu", pod="team/trainer"):
    return PluginUse(resource=resource, device_id=device_id, pod=pod)


def places(*uses):
    return [(one.gpu_uuid, one.placement) for one in plan_plugin_fences(uses, ROSTER, [PARTITION])]


@pytest.mark.parametrize(
    ("device_id", "place"),
    [
        (h100(1).uuid, ON_GPU_1),
        (f"{h100(1).uuid}::3", ON_GPU_1),
        ("1", ON_GPU_1),
        ("1::0", ON_GPU_1),
        ("0:2", ON_GPU_0),
        (PARTITION.mig_uuid, (a100(0).uuid, Placement(start=4, size=1))),
        (f"{PARTITION.mig_uuid}::1", (a100(0).uuid, Placement(start=4, size=1))),
    ],
)
def test_an_id_means_a_gpu_or_a_partition(device_id, place):
    assert places(use(device_id)) == [place]


@pytest.mark.parametrize("device_id", ["GPU-00000000-0000-0000-0000-000000000000", "MIG-gone", "7", "", "::1"])
def test_an_id_that_nobody_knows_fences_nothing(device_id):
    assert places(use(device_id)) == []


def test_what_is_not_nvidias_fences_nothing():
    assert places(use("0", resource="example.com/fpga")) == []


def test_a_gpu_that_was_given_is_tainted_whole_with_the_pod_s_name():
    fences = plan_plugin_fences([use("1")], ROSTER, [])

    devices = devices_of(state(ROSTER, fences=fences))

    tainted = {name.partition("-mig")[0] for name, device in devices.items() if taints_of(device)}
    taint = ("gpu.nvidia.com/foreign", "device-plugin-team-trainer")
    assert (tainted, taints_of(devices["gpu-1"])) == ({"gpu-1"}, {taint})


def test_a_long_name_fits_a_label():
    (fence,) = plan_plugin_fences([use("1", pod=f"team/{'x' * 200}")], ROSTER, [])

    assert len(fence.value) == 63


# What it offers


@pytest.mark.parametrize(
    "resource",
    ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.10gb.me.shared"],
)
def test_a_resource_of_nvidia_s_device_plugin_is_offered(resource):
    assert list_offered({"cpu": "4", resource: "2"}) == (resource,)


@pytest.mark.parametrize("resource", ["nvidia.com/hostdev", "nvidia.com/gpu-fabric", "example.com/gpu", "cpu"])
def test_other_resources_are_not(resource):
    assert list_offered({resource: "2"}) == ()


def test_a_plugin_that_went_away_offers_nothing():
    assert list_offered({"nvidia.com/gpu": "0"}) == ()


def test_while_a_plugin_offers_gpus_every_device_is_tainted():
    fences = plan_offered_fences(["nvidia.com/gpu"], ROSTER)

    tainted = {taints_of(device) == {("gpu.nvidia.com/foreign", "device-plugin")} for device in list_devices(fences)}
    assert tainted == {True}


def test_without_an_offer_nothing_is_tainted():
    assert plan_offered_fences([], ROSTER) == ()


def list_devices(fences):
    return list(devices_of(state(ROSTER, fences=fences)).values())
