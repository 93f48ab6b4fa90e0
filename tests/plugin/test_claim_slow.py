"""NVML answers, slowly: many slow calls add up, and the kubelet is answered in time all the same, with nothing left.

Calls that begin after the deadline are counted, not seconds: one may be on its way when the time is over.
"""

from __future__ import annotations

import contextlib
import math
import time

import pytest
from tesela.core.model import Refusal
from tesela.edge.simulator.faults import Latency
from tesela.plugin.service import ClaimService

CALL_S = 0.03
DEADLINES_S = [0.01, 0.1, 0.25, 0.4, 0.6]
"""From none to nearly all of the calls of a first prepare."""


class Late:
    """Counts the calls of NVML that begin too late, from `begin` on."""

    def __init__(self, deadline_s):
        self.deadline_s, self.at_s, self.count = deadline_s, math.inf, 0

    @contextlib.contextmanager
    def begin(self):
        """Once the service's own time runs: before that a busy machine may take any time, which is not the driver's."""
        self.at_s = time.monotonic() + self.deadline_s
        yield

    def __call__(self, function, phase):
        self.count += phase == "before" and time.monotonic() > self.at_s


@pytest.fixture
def slow(build):
    """Two H100, one in MIG mode and one not, whose every call takes its time."""
    world = build("h100-80gb:mig,h100-80gb")
    world.machine.inject(Latency(function="*", seconds=CALL_S))
    return world


def call(world, verb, ref, deadline_s):
    """The service's answer, and how many calls of NVML began too late for it."""
    late = Late(deadline_s)
    world.machine.on_call.append(late)
    answer = getattr(ClaimService(world.node, late.begin), verb)([ref], deadline_s)[ref.uid]
    world.machine.on_call.remove(late)
    return answer, late.count


def partition(world):
    return [world.partition(0, "1g.10gb", 0)]


def partitions(world):
    return [world.partition(0, "1g.10gb", start) for start in range(4)]


def switched(world):
    return [world.partition(1, "1g.10gb", 0)]


@pytest.mark.parametrize("devices", [partition, partitions, switched])
@pytest.mark.parametrize("deadline_s", DEADLINES_S)
def test_a_prepare_begins_nothing_after_its_deadline(slow, devices, deadline_s):
    _, late = call(slow, "prepare", slow.claim("a", *devices(slow)), deadline_s)

    assert late <= 1


@pytest.mark.parametrize("devices", [partitions, switched])
def test_a_prepare_that_is_too_slow_is_refused_in_words(slow, devices):
    names = devices(slow)

    answer, _ = call(slow, "prepare", slow.claim("a", *names), DEADLINES_S[-1])

    assert isinstance(answer, Refusal)
    assert ("claim default/a: device " in answer.message, "no time left for" in answer.message) == (True, True)


@pytest.mark.parametrize("devices", [partition, partitions, switched])
@pytest.mark.parametrize("deadline_s", DEADLINES_S)
def test_a_prepare_that_was_too_slow_is_made_good_once_nvml_is_fast(slow, devices, deadline_s):
    ref = slow.claim("a", *devices(slow))
    call(slow, "prepare", ref, deadline_s)
    slow.machine.release()
    slow.serve(ref)

    assert (slow.unprepare(ref), slow.leftovers()) == (None, [])


@pytest.mark.parametrize("deadline_s", [0.01, 0.1, 0.25])
def test_an_unprepare_begins_nothing_after_its_deadline(slow, deadline_s):
    ref = slow.claim("a", *partitions(slow))
    slow.machine.release()
    slow.serve(ref)
    slow.machine.inject(Latency(function="*", seconds=CALL_S))
    slow.promised.clear()

    _, late = call(slow, "unprepare", ref, deadline_s)

    assert late <= 1


def test_an_unprepare_that_was_too_slow_goes_on_from_there(slow):
    ref = slow.claim("a", *partitions(slow))
    slow.machine.release()
    slow.serve(ref)
    slow.machine.inject(Latency(function="*", seconds=CALL_S))
    slow.promised.clear()
    refusal, _ = call(slow, "unprepare", ref, 0.4)
    slow.machine.release()

    assert ("no time left for GPU" in refusal, slow.unprepare(ref), slow.leftovers()) == (True, None, [])


@pytest.mark.parametrize("function", ["create_gpu_instance", "create_compute_instance", "set_mig_mode"])
def test_time_is_kept_to_undo_what_took_too_long(build, function):
    """Over half of the time goes into one step of the effects: the answer comes in time, and nothing is left."""
    world = build("h100-80gb")
    ref = world.claim("a", world.partition(0, "1g.10gb", 0))
    world.machine.inject(Latency(function=function, seconds=1.2))

    answer, late = call(world, "prepare", ref, 2.0)

    assert (isinstance(answer, Refusal), late, world.leftovers()) == (True, 0, [])


def test_a_time_slice_is_not_begun_after_the_deadline(build):
    world = build("h100-80gb")
    calls = world.install_smi()
    sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
    config = {"source": "FromClaim", "opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}
    ref = world.claim("a", "gpu-0", configs=(config,))
    world.set_mig(0, on=True)
    world.machine.inject(Latency(function="set_mig_mode", seconds=0.6))

    call(world, "prepare", ref, 0.8)

    assert [line for line in calls.read_text().splitlines() if "--set-timeslice 3" in line] == []
