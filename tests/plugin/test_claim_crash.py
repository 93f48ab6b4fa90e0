"""The driver dies before and after each of its port calls: nothing is lost, nothing is left, nothing is given twice.

A scenario is an act of the kubelet. It is run once for every port call that it makes, so a new call is tried by itself;
what no scenario calls has to be named in `NOT_OF_A_CLAIM`.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from node_tap import PURE, UNTAPPED, Crash, Tap
from node_world import Ports, make_world
from tesela.core.shape import Policy, PolicyRule, Shape
from tesela.edge.host.host import Host
from tesela.edge.host.nvidia_smi import NvidiaSmi
from tesela.edge.kube.port import RESOURCE_CLAIMS, Kube
from tesela.edge.nvml.port import Nvml
from tesela.edge.simulator.faults import Fault
from tesela.edge.simulator.gpu import Process
from tesela.edge.store.cdi_files import CdiFiles
from tesela.edge.store.metadata_files import MetadataFiles
from tesela.edge.store.records import RecordStore

SLICING = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
PARAMETERS = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": SLICING}
TIME_SLICE = ({"source": "FromClaim", "opaque": {"driver": "gpu.nvidia.com", "parameters": PARAMETERS}},)
STATIC = Policy(rules=(PolicyRule(mode=Shape.STATIC, number=2),))
MACHINE = "a100-40gb:mig,h100-80gb:fabric,a100-40gb:mig"


@dataclass(frozen=True)
class Scenario:
    """What is allocated, what happens before the act, and what the administrator undoes for the next run."""

    devices: Callable
    before: Callable = lambda world, ref: None
    configs: tuple = ()


def partition(world):
    return [world.partition(0, "1g.5gb", 6)]


def partitions(world):
    return [world.partition(0, "3g.20gb", 4), world.partition(0, "1g.5gb", 0), world.partition(1, "1g.10gb", 2)]


def whole(world):
    return ["gpu-1"]


def static(world):
    return [world.partition(2, "2g.10gb", 0)]


def mig_on(world, ref):
    world.set_mig(1, on=True)


def mig_off(world, ref):
    world.set_mig(1, on=False)


def served(world, ref):
    world.serve(ref)


def lost(world, ref):
    """Its partition went, unnoticed."""
    world.serve(ref)
    world.reset(0)


def damaged(world, ref):
    world.serve(ref)
    world.record_path(ref).write_text("{")


def nothing_but_an_allocation(world, ref):
    damaged(world, ref)
    world.cdi_path(ref).unlink()


def half_given_back(world, ref):
    """Its compute instance is gone, its GPU instance could not be destroyed."""
    world.serve(ref)
    world.machine.inject(Fault(function="destroy_gpu_instance"))
    world.unprepare(ref)


def refused_by_nvml(world, ref):
    """The second of two steps fails, so the first is rolled back."""
    world.machine.inject(Fault(function="create_compute_instance", times=None))


def busy(world, ref):
    world.set_mig(1, on=False)
    world.machine.add_process("1", Process(pid=4711))


def in_use(world, ref):
    world.serve(ref)
    world.machine.add_process("0", Process(pid=4711, gi_id=world.instances(0)[0].gi_id))


def gpu_gone(world, ref):
    world.serve(ref)
    world.machine.lose("0", absent=True)
    world.lost_gpus.add(world.uuid(0))


def calm(world):
    """Nothing fails, nobody is busy, every GPU is there."""
    world.machine.release()
    for gpu in world.machine.snapshot().gpus:
        for pid in {process.pid for process in gpu.processes}:
            world.machine.remove_process(gpu.uuid, pid)
        if gpu.presence != "present":
            world.machine.reset(gpu.uuid)


PREPARES = {
    "partition": Scenario(partition),
    "partitions on two GPUs, one switched on": Scenario(partitions, mig_off),
    "whole": Scenario(whole),
    "whole, switched off": Scenario(whole, mig_on),
    "whole, time-sliced": Scenario(whole, configs=TIME_SLICE),
    "static": Scenario(static),
    "refused by NVML half way": Scenario(partition, refused_by_nvml),
    "refused, its GPU is busy": Scenario(lambda world: [world.partition(1, "1g.10gb", 2)], busy),
    "again": Scenario(partition, served),
    "again, its partition lost": Scenario(partition, lost),
    "again, its record damaged": Scenario(partition, damaged),
    "again, nothing but its allocation left": Scenario(partition, nothing_but_an_allocation),
}
UNPREPARES = {
    "partition": Scenario(partition, served),
    "partitions": Scenario(partitions, served),
    "whole, time-sliced": Scenario(whole, served, TIME_SLICE),
    "static": Scenario(static, served),
    "in use": Scenario(partition, in_use),
    "lost": Scenario(partition, lost),
    "gone with its GPU": Scenario(partition, gpu_gone),
    "damaged": Scenario(partition, damaged),
    "nothing but its allocation left": Scenario(partition, nothing_but_an_allocation),
    "half given back": Scenario(partition, half_given_back),
    "never prepared": Scenario(partition),
}


@pytest.fixture
def tap():
    return Tap()


@pytest.fixture
def world(tmp_path, tap):
    world = make_world(tmp_path, MACHINE, wrap=tap.wrap, policy=STATIC)
    world.install_smi()
    world.make_foreign(2, "2g.10gb", 0)
    return world


def crash_everywhere(world, tap, scenario, phase, act, finish):
    """Runs `act` until it makes no more calls, dying at each in turn; `finish` is what the kubelet does then."""
    for number in itertools.count():
        ref = world.claim(f"c{number}", *scenario.devices(world), configs=scenario.configs)
        tap.disarm()
        scenario.before(world, ref)
        tap.crash(number, phase)
        try:
            act(world, ref)
        except Crash:
            tap.disarm()
            if world.lost_gpus:  # a claim made anew after a loss is a new promise
                world.promised.pop(ref.uid, None)
        else:
            return
        calm(world)
        world.start()
        world.check()
        finish(world, ref)
        assert world.leftovers() == [], f"after a death at call {number}"
        world.check()
        world.kube.delete(RESOURCE_CLAIMS, ref.name, ref.namespace)
        world.lost_gpus.clear()


def prepare(world, ref):
    world.prepare(ref)


def unprepare(world, ref):
    world.unprepare(ref)


def prepare_and_unprepare(world, ref):
    world.serve(ref)
    world.check()
    assert world.unprepare(ref) is None


@pytest.mark.parametrize("phase", ["before", "after"])
@pytest.mark.parametrize("name", PREPARES)
def test_a_death_while_preparing(world, tap, name, phase):
    """Before each call the pod waits on and is served; after it, its pod was deleted meanwhile."""
    finish = prepare_and_unprepare if phase == "before" else unprepare

    crash_everywhere(world, tap, PREPARES[name], phase, prepare, finish)


@pytest.mark.parametrize("phase", ["before", "after"])
@pytest.mark.parametrize("name", UNPREPARES)
def test_a_death_while_unpreparing(world, tap, name, phase):
    crash_everywhere(world, tap, UNPREPARES[name], phase, unprepare, unprepare)


# The list of calls

PORTS = {
    "nvml": Nvml,
    "host": Host,
    "nvidia_smi": NvidiaSmi,
    "kube": Kube,
    "records": RecordStore,
    "cdi": CdiFiles,
    "metadata": MetadataFiles,
}
NOT_OF_A_CLAIM = {
    "the process itself": {"nvml.init", "nvml.shutdown"},
    "health, which is the GPU's and no claim's": {
        "nvml.get_ecc_mode",
        "nvml.get_remapped_rows",
        "nvml.get_supported_event_types",
        "nvml.get_total_ecc_errors",
        "nvml.open_event_set",
    },
    "looks at the machine, which have deaths of their own (test_claim_crash_start)": {
        "nvml.get_addressing_mode",
        "nvml.get_architecture",
        "nvml.get_brand",
        "nvml.get_cuda_compute_capability",
        "nvml.get_cuda_driver_version",
        "nvml.get_device_count",
        "nvml.get_driver_version",
        "nvml.get_field_values",
        "nvml.get_gpu_instance_possible_placements",
        "nvml.get_gpu_instance_profile_info",
        "nvml.get_memory_info",
        "nvml.get_name",
        "nvml.get_pci_info",
        "nvml.get_uuid",
        "nvml.get_virtualization_mode",
        "host.get_numa_node",
        "host.get_pcie_root",
        "cdi.list_ours",
        "cdi.list_readable",
        "metadata.list_claims",
    },
    "slices, whose writes have deaths of their own (test_publish_crash), and events": {
        f"kube.{verb}" for verb in ("create", "delete", "list", "replace", "replace_status", "watch")
    }
    | {"kube.get_server_version"},
    "the status of claims, written behind their back (test_claim_status)": {"kube.apply_status", "records.listen"},
    "usage of GPUs, for metrics alone": {
        "nvml.free_gpm_sample",
        "nvml.get_gpm_metrics",
        "nvml.get_gpm_sample",
        "nvml.get_gpm_support",
        "nvml.get_mig_gpm_sample",
        "nvml.get_mig_memory_info",
    },
    "a full disk, which has tests of its own (survive/test_disk_full)": {"records.mark_unpreparing"},
    "sweeps, which change nothing but by what is tried here": {"nvidia_smi.get_time_slice"},
    "for others than the node program": {
        "host.get_capability_major",
        "nvml.get_gpu_instance_by_id",
        "nvml.get_gpu_instance_remaining_capacity",
    },
}


def list_port_calls():
    return {
        f"{port}.{name}"
        for port, kind in PORTS.items()
        for name, _ in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and name not in PURE
    }


def test_every_port_is_tapped_or_named():
    assert PORTS.keys() | UNTAPPED.keys() == set(Ports.__dataclass_fields__)


def test_every_port_call_is_tried_or_named(world, tap):
    tried = set()
    for number, (act, scenario) in enumerate(
        [*((prepare, one) for one in PREPARES.values()), *((unprepare, one) for one in UNPREPARES.values())]
    ):
        ref = world.claim(f"c{number}", *scenario.devices(world), configs=scenario.configs)
        scenario.before(world, ref)
        tap.disarm()
        act(world, ref)
        tried.update(tap.calls)
        calm(world)
        world.look()
        world.unprepare(ref)
        world.lost_gpus.clear()
    named = set().union(*NOT_OF_A_CLAIM.values())

    assert (list_port_calls() - tried, named & tried) == (named, set())
