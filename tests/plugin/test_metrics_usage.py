"""What claims use: asked apart from scrapes, told only while it is true, and nothing of NVML's kept too long."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from gpu_models import a100, h100, known, roster
from polling import until
from slice_world import holding
from tesela.core.errors import NvmlError, NvmlTimeout
from tesela.core.record import ClaimState
from tesela.edge.nvml import codes
from tesela.edge.nvml.port import MemoryInfo
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.nvml import SimulatedNvml
from tesela.edge.telemetry.snapshot import Usage
from tesela.plugin.usage import UsageSampler, list_held
from tesela.plugin.usage_source import NvmlUsage

MEMORY = MemoryInfo(total_bytes=100, free_bytes=90, used_bytes=10)


class Source:
    """Answers with MEMORY, once `may_answer` is set; fails for the GPUs in `failing`."""

    def __init__(self, *, failing=(), error=None):
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.failing = set(failing)
        self.error = error or NvmlTimeout("hangs")
        self.closed = 0
        self.kept = set()

    def get_memory(self, held):
        assert self.may_answer.wait(20)
        if held.gpu_uuid in self.failing:
            raise self.error
        return MEMORY

    def get_sm_activity(self, held):
        return 0.25

    def keep(self, uuids):
        self.kept = set(uuids)

    def close(self):
        self.closed += 1


@pytest.fixture
def sample():
    """Builds a running sampler of two GPUs that two claims hold whole."""
    samplers = []

    def build(source, **fields):
        records = [holding(h100(), "gpu-0", claim="one"), holding(h100(1), "gpu-1", claim="two")]
        given = {"records": lambda: records, "roster": lambda: roster(h100(), h100(1)), **fields}
        sampler = UsageSampler(source=source, **given)
        sampler.start()
        samplers.append(sampler)
        return sampler

    yield build
    for sampler in samplers:
        sampler.stop(10)


def used(usage):
    return {one.claim: one.memory_used_bytes for one in usage}


def test_a_scrape_gets_the_figures_of_its_moment(sample):
    assert used(sample(Source()).read(20)) == {"one": 10, "two": 10}


def test_a_gpu_that_does_not_answer_costs_its_own_figures_alone(sample):
    assert used(sample(Source(failing=[h100(1).uuid])).read(20)) == {"one": 10, "two": None}


def test_a_scrape_does_not_wait_for_nvml(sample):
    source = Source()
    source.may_answer.clear()
    sampler = sample(source)

    found = sampler.read(0.01)
    source.may_answer.set()

    assert found == ()


def test_what_is_too_old_is_not_told(sample):
    source, now = Source(), [0.0]
    sampler = sample(source, clock=lambda: now[0])
    sampler.read(20)
    source.may_answer.clear()
    now[0] = 61.0

    found = sampler.read(0.01)
    source.may_answer.set()

    assert found == ()


def test_what_is_fresh_enough_is_told_while_nvml_is_slow(sample):
    source, now = Source(), [0.0]
    sampler = sample(source, clock=lambda: now[0])
    sampler.read(20)
    source.may_answer.clear()
    now[0] = 30.0

    found = sampler.read(0.01)
    source.may_answer.set()

    assert used(found) == {"one": 10, "two": 10}


def test_a_claim_that_is_gone_has_no_figures_while_nvml_is_slow(sample):
    source, records = Source(), []
    records += [holding(h100(), "gpu-0", claim="one"), holding(h100(1), "gpu-1", claim="two")]
    sampler = sample(source, records=lambda: tuple(records))
    sampler.read(20)
    source.may_answer.clear()
    del records[0]

    found = sampler.read(0.01)
    source.may_answer.set()

    assert used(found) == {"two": 10}


def test_while_it_is_paused_nothing_is_known_and_nobody_waits(sample):
    sampler = sample(Source())
    sampler.read(20)
    sampler.pause(20)

    began_s = time.monotonic()
    found = sampler.read(20)

    assert (found, time.monotonic() - began_s < 10) == ((), True)


def test_nothing_is_asked_while_nobody_scrapes(sample):
    source = Source()
    sample(source)

    assert not until(lambda: source.kept, 0.1)


def test_a_turn_that_no_scrape_asked_for_asks_nothing_and_gives_everything_back(sample):
    source = Source()
    sampler = sample(source)
    sampler.read(20)
    source.may_answer.clear()  # a question would not come back

    sampler._turn()

    assert source.kept == set()


def test_before_nvml_closes_everything_is_given_back(sample):
    source = Source()
    sampler = sample(source)

    assert (sampler.pause(10), source.closed) == (True, 1)


# What is held


def test_a_partition_is_named_by_its_mig_device():
    record = holding(a100(), "gpu-0-mig-1g5gb-19-0")
    device = record.devices[0]
    partition = replace(device.partitions[0], mig_uuid="MIG-1", gi_id=7)
    record = replace(record, devices=(replace(device, partitions=(partition,)),))

    assert list_held([record], roster(a100())) == (
        Usage(
            gpu_uuid=a100().uuid,
            uuid="MIG-1",
            profile="1g.5gb",
            namespace="default",
            claim="claim-1",
            gi_id=7,
            memory_total_bytes=4864 << 20,
        ),
    )


@pytest.mark.parametrize(
    "record",
    [
        holding(h100(), "gpu-0", admin_access=True),
        replace(holding(h100(), "gpu-0"), state=ClaimState.PREPARING),
        holding(h100(5), "gpu-5"),
    ],
)
def test_admin_access_half_done_claims_and_unknown_gpus_use_nothing(record):
    assert list_held([record], roster(h100())) == ()


def test_a_gone_gpu_tells_nothing():
    assert list_held([holding(h100(), "gpu-0")], roster(known(h100(), present=False))) == ()


# NVML


class Counting(SimulatedNvml):
    """Counts the samples that are out."""

    def __init__(self, machine):
        super().__init__(machine)
        self.out = 0

    def get_gpm_sample(self, gpu_uuid):
        sample = super().get_gpm_sample(gpu_uuid)
        self.out += 1
        return sample

    def get_mig_gpm_sample(self, gpu_uuid, gi_id):
        sample = super().get_mig_gpm_sample(gpu_uuid, gi_id)
        self.out += 1
        return sample

    def free_gpm_sample(self, sample):
        super().free_gpm_sample(sample)
        self.out -= 1


@pytest.fixture
def open_nvml():
    def build(gpus):
        machine = build_machine(gpus)
        nvml = Counting(machine)
        nvml.init()
        return nvml, machine.snapshot().gpus[0].uuid

    return build


def whole(uuid):
    return Usage(gpu_uuid=uuid, uuid=uuid, profile="", namespace="default", claim="one")


def test_activity_needs_two_samples(open_nvml):
    nvml, uuid = open_nvml("h100-80gb")
    now = [0.0]
    source = NvmlUsage(nvml, clock=lambda: now[0])
    first = source.get_sm_activity(whole(uuid))
    now[0] = 15.0

    second = source.get_sm_activity(whole(uuid))

    assert (first, second) == (None, 0.0)


def test_two_scrapes_at_once_see_the_same_figure(open_nvml):
    nvml, uuid = open_nvml("h100-80gb")
    now = [0.0]
    source = NvmlUsage(nvml, clock=lambda: now[0])
    source.get_sm_activity(whole(uuid))
    now[0] = 15.0
    seen = source.get_sm_activity(whole(uuid))
    now[0] = 15.1

    assert source.get_sm_activity(whole(uuid)) == seen


def test_one_sample_is_out_for_each_device(open_nvml):
    nvml, uuid = open_nvml("h100-80gb")
    now = [0.0]
    source = NvmlUsage(nvml, clock=lambda: now[0])
    for _ in range(5):
        source.get_sm_activity(whole(uuid))
        now[0] += 15.0

    assert nvml.out == 1


def test_a_device_that_is_held_no_longer_gives_its_sample_back(open_nvml):
    nvml, uuid = open_nvml("h100-80gb")
    source = NvmlUsage(nvml)
    source.get_sm_activity(whole(uuid))
    source.keep(())

    assert nvml.out == 0


def test_a_gpu_without_gpm_is_asked_once(open_nvml):
    nvml, uuid = open_nvml("a100-40gb")
    source = NvmlUsage(nvml)
    told = [source.get_sm_activity(whole(uuid)) for _ in range(2)]

    assert (told, source._without_gpm) == ([None, None], {uuid})


@pytest.fixture
def partitioned(open_nvml):
    """NVML of an H100 with a partition that a claim holds, and that partition."""
    nvml, uuid = open_nvml("h100-80gb:mig")
    profile = nvml.get_gpu_instance_profile_info(uuid, 0)
    place = nvml.get_gpu_instance_possible_placements(uuid, profile.profile_id)[0]
    gi_id = nvml.create_gpu_instance(uuid, profile.profile_id, place).gi_id
    inner = nvml.get_compute_instance_profile_info(uuid, gi_id, 0)
    device = nvml.create_compute_instance(uuid, gi_id, inner.profile_id)
    return nvml, device, replace(whole(uuid), uuid=device.mig_uuid, profile="1g.10gb", gi_id=gi_id)


def test_a_partition_tells_its_own_activity(partitioned):
    nvml, _, held = partitioned
    now = [0.0]
    source = NvmlUsage(nvml, clock=lambda: now[0])
    first = source.get_sm_activity(held)
    now[0] = 15.0

    assert (first, source.get_sm_activity(held)) == (None, 0.0)


def test_a_partition_that_went_between_two_samples_is_unknown_and_leaves_none_out(partitioned):
    nvml, device, held = partitioned
    now = [0.0]
    source = NvmlUsage(nvml, clock=lambda: now[0])
    source.get_sm_activity(held)
    nvml.destroy_compute_instance(held.gpu_uuid, device.gi_id, device.ci_id)
    nvml.destroy_gpu_instance(held.gpu_uuid, device.gi_id)
    now[0] = 15.0

    with pytest.raises(NvmlError):
        source.get_sm_activity(held)

    assert nvml.out == 0


def test_a_mig_device_tells_its_own_memory(world):
    ref = world.claim("one", world.partition(0, "1g.5gb", 0))
    (held,) = list_held([world.serve(ref)], world.node.lookout.roster)

    assert NvmlUsage(world.admin).get_memory(held).total_bytes < 8 << 30


def test_a_mig_device_that_is_gone_is_unknown(world):
    ref = world.claim("one", world.partition(0, "1g.5gb", 0))
    (held,) = list_held([world.serve(ref)], world.node.lookout.roster)

    with pytest.raises(NvmlError) as caught:
        NvmlUsage(world.admin).get_memory(replace(held, uuid="MIG-00000000-0000-4000-8000-000000000000"))

    assert caught.value.code == codes.NOT_FOUND
