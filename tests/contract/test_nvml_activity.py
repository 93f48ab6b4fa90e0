"""The contract of the NVML port, fourth part: memory of MIG devices, and how busy SMs were (GPM)."""

from __future__ import annotations

import pytest
from contract.nvml_backends import A100, BACKENDS, H100, PRO, at, code_of, open_initialised
from tesela.edge.nvml import codes
from tesela.edge.simulator.gpu import Process

GIB = 1 << 30
ONE_SLICE = 0
SM = codes.GPM_SM_UTILIZATION


@pytest.fixture(params=BACKENDS)
def world(request):
    with open_initialised(request.param) as world:
        yield world


def make_device(world, index: int, *, start: int = 0):
    """A GPU instance of the first profile at `start`, with a compute instance that fills it."""
    gpu = world.gpu(index)
    profile = world.nvml.get_gpu_instance_profile_info(gpu, ONE_SLICE)
    size = world.nvml.get_gpu_instance_possible_placements(gpu, profile.profile_id)[0].size
    gi_id = world.nvml.create_gpu_instance(gpu, profile.profile_id, at(start, size)).gi_id
    inner = world.nvml.get_compute_instance_profile_info(gpu, gi_id, ONE_SLICE)
    return gpu, world.nvml.create_compute_instance(gpu, gi_id, inner.profile_id)


def stop_clock(world):
    """The machine's clock as a function that moves it."""
    now = [world.machine.clock()]
    world.machine.clock = lambda: now[0]

    def move(seconds: float) -> None:
        now[0] += seconds

    return move


def test_memory_of_a_mig_device_is_that_of_its_partition(world):
    gpu, device = make_device(world, A100)
    world.machine.add_process(gpu, Process(pid=7, gi_id=device.gi_id, memory_bytes=GIB))

    memory = world.nvml.get_mig_memory_info(gpu, device.mig_uuid)

    assert (memory.total_bytes < 6 * GIB, memory.used_bytes, memory.total_bytes - memory.free_bytes) == (True, GIB, GIB)


def test_no_memory_of_a_mig_device_that_is_gone(world):
    gpu, device = make_device(world, A100)
    world.nvml.destroy_compute_instance(gpu, device.gi_id, device.ci_id)

    assert code_of(world.nvml.get_mig_memory_info, gpu, device.mig_uuid) == codes.NOT_FOUND


def test_no_memory_of_a_mig_device_of_another_gpu(world):
    _, device = make_device(world, A100)

    assert code_of(world.nvml.get_mig_memory_info, world.gpu(PRO), device.mig_uuid) == codes.NOT_FOUND


@pytest.mark.parametrize("name", ["GPU-0", "", "MIG-", "MIG-\0"])
def test_no_memory_of_what_is_no_mig_device(world, name):
    assert code_of(world.nvml.get_mig_memory_info, world.gpu(A100), name) in {codes.NOT_FOUND, codes.INVALID_ARGUMENT}


@pytest.mark.parametrize(("index", "has_gpm"), [(A100, False), (H100, True), (PRO, True)])
def test_gpm_begins_with_hopper(world, index, has_gpm):
    assert world.nvml.get_gpm_support(world.gpu(index)) == has_gpm


def test_no_sample_before_hopper(world):
    assert code_of(world.nvml.get_gpm_sample, world.gpu(A100)) == codes.NOT_SUPPORTED


def test_no_sample_of_an_instance_that_is_not_there(world):
    assert code_of(world.nvml.get_mig_gpm_sample, world.gpu(PRO), 5) == codes.NOT_FOUND


def test_a_gpu_that_computed_half_the_time_was_half_as_busy_as_it_can_be(world):
    gpu, move = world.gpu(H100), stop_clock(world)
    before = world.nvml.get_gpm_sample(gpu)
    move(1)
    world.machine.add_process(gpu, Process(pid=7))
    move(1)
    after = world.nvml.get_gpm_sample(gpu)

    assert world.nvml.get_gpm_metrics(before, after, [SM]) == (pytest.approx(48),)


def test_a_partition_is_as_busy_as_its_own_processes_make_it(world):
    move = stop_clock(world)
    gpu, busy = make_device(world, PRO)
    _, idle = make_device(world, PRO, start=3)
    world.machine.add_process(gpu, Process(pid=7, gi_id=busy.gi_id))
    before = [world.nvml.get_mig_gpm_sample(gpu, one.gi_id) for one in (busy, idle)]
    move(1)
    after = [world.nvml.get_mig_gpm_sample(gpu, one.gi_id) for one in (busy, idle)]

    values = [world.nvml.get_gpm_metrics(*pair, [SM]) for pair in zip(before, after, strict=True)]

    assert values == [(pytest.approx(96),), (0.0,)]


def test_a_metric_that_nobody_has_is_none_beside_those_that_are(world):
    gpu, move = world.gpu(H100), stop_clock(world)
    before = world.nvml.get_gpm_sample(gpu)
    move(1)
    after = world.nvml.get_gpm_sample(gpu)

    assert world.nvml.get_gpm_metrics(before, after, [4711, SM]) == (None, 0.0)


def test_samples_of_two_gpus_cannot_be_compared(world):
    move = stop_clock(world)
    before = world.nvml.get_gpm_sample(world.gpu(H100))
    move(1)
    after = world.nvml.get_gpm_sample(world.gpu(PRO))

    assert code_of(world.nvml.get_gpm_metrics, before, after, [SM]) == codes.INVALID_ARGUMENT


def test_samples_of_an_instance_and_its_successor_cannot_be_compared(world):
    move = stop_clock(world)
    gpu, first = make_device(world, PRO)
    before = world.nvml.get_mig_gpm_sample(gpu, first.gi_id)
    world.nvml.destroy_compute_instance(gpu, first.gi_id, first.ci_id)
    world.nvml.destroy_gpu_instance(gpu, first.gi_id)
    _, second = make_device(world, PRO)
    move(1)
    after = world.nvml.get_mig_gpm_sample(gpu, second.gi_id)

    assert code_of(world.nvml.get_gpm_metrics, before, after, [SM]) == codes.INVALID_ARGUMENT


def test_a_sample_is_given_back(world):
    sample = world.nvml.get_gpm_sample(world.gpu(H100))

    assert world.nvml.free_gpm_sample(sample) is None
