"""A look at the machine beside prepares and unprepares: what moves while we look is no fault of the GPU."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from tesela.core.model import Placement
from tesela.edge.nvml import codes
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.nvml import SimulatedNvml
from tesela.plugin.inventory import discover
from tesela.plugin.partition import Partitions

ONE_SLICE = 19
"""NVML's id of 1g.5gb on an A100."""


class Nowhere:
    """A host without a PCI tree."""

    def get_pcie_root(self, bus_id):
        return None

    def get_numa_node(self, bus_id):
        return None


class Vanishing(SimulatedNvml):
    """Another thread destroys the instance that is being described."""

    def get_compute_instances(self, gpu_uuid, gi_id, profile_id):
        self.destroy_gpu_instance(gpu_uuid, gi_id)
        return super().get_compute_instances(gpu_uuid, gi_id, profile_id)


class Counting(SimulatedNvml):
    """Counts the questions for profiles."""

    asked = 0

    def get_gpu_instance_profile_info(self, gpu_uuid, profile_enum):
        self.asked += 1
        return super().get_gpu_instance_profile_info(gpu_uuid, profile_enum)


def look(nvml, before=None):
    return discover(nvml, Nowhere(), Partitions(nvml), before)


@pytest.fixture
def vanishing():
    nvml = Vanishing(build_machine("a100-40gb:mig"))
    nvml.init()
    nvml.create_gpu_instance(nvml.get_uuid(0), ONE_SLICE, Placement(start=0, size=1))
    return nvml


@pytest.fixture
def counting():
    nvml = Counting(build_machine("a100-40gb:mig"))
    nvml.init()
    return nvml


def test_a_gpu_whose_instance_goes_during_a_look_is_still_there(vanishing):
    assert [gpu.index for gpu in look(vanishing).gpus] == [0]


def test_an_instance_that_goes_during_a_look_is_left_out(vanishing):
    assert look(vanishing).partitions == ()


def test_profiles_are_asked_for_once(counting):
    first = look(counting)
    counting.asked = 0

    look(counting, first)

    assert counting.asked == 0


def test_what_may_change_is_asked_for_at_each_look():
    machine = build_machine("h100-80gb")
    nvml = SimulatedNvml(machine)
    nvml.init()
    first = look(nvml)

    nvml.set_mig_mode(first.gpus[0].uuid, codes.MIG_ENABLED)

    assert [gpu.mig_enabled for gpu in look(nvml, first).gpus] == [True]


def test_profiles_are_kept_from_look_to_look(counting):
    first = look(counting)

    assert look(counting, first).gpus == first.gpus


def test_another_driver_version_is_asked_for_its_profiles_anew(counting):
    first = look(counting)
    counting.asked = 0

    look(counting, replace(first, driver_version="1.0"))

    assert counting.asked == codes.GPU_INSTANCE_PROFILE_COUNT


class Unaddressed(SimulatedNvml):
    """NVML that gives the first GPU no PCI address."""

    def get_pci_info(self, gpu_uuid):
        info = super().get_pci_info(gpu_uuid)
        return replace(info, bus_id="") if gpu_uuid == self.get_uuid(0) else info


def test_a_gpu_without_a_pci_address_is_there_without_its_topology():
    nvml = Unaddressed(build_machine("a100-40gb*2"))
    nvml.init()

    assert [bool(gpu.pci_bus_id) for gpu in look(nvml).gpus] == [False, True]


# A vGPU in a guest


@pytest.fixture
def guest():
    nvml = SimulatedNvml(build_machine("h100-80gb:vgpu"))
    nvml.init()
    return nvml


def test_a_vgpu_in_a_guest_offers_no_partition(guest):
    (gpu,) = look(guest).gpus

    assert (gpu.mig_enabled, gpu.resetless_mig, gpu.profiles) == (None, False, ())


def test_a_vgpu_in_a_guest_is_told_once(guest, caplog):
    with caplog.at_level(logging.INFO):
        look(guest, look(guest))

    assert len([one for one in caplog.messages if "is a vGPU in a guest" in one]) == 1
