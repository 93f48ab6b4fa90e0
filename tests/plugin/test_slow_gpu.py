"""One GPU fails, hangs or is busy: the others are published, prepared and given back as if nothing were."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial

import pytest
from tesela.core.errors import NvmlError, NvmlTimeout
from tesela.edge.nvml import codes
from tesela.edge.nvml.watchdog import WatchedNvml
from tesela.edge.simulator.faults import Fault, Hang
from tesela.edge.store.locks import hold
from tesela.edge.store.roster import RosterStore

WATCHDOG_S = 1.0
PATIENT_S = 30.0


def watch(ports, timeout_s=WATCHDOG_S):
    """The driver's NVML stands under a watchdog, as in the running program."""
    return replace(ports, nvml=WatchedNvml(ports.nvml, timeout_s=timeout_s))


@pytest.fixture
def watched(build):
    world = build("h100-80gb:mig*3", wrap=watch)
    yield world
    world.machine.release()


@pytest.fixture
def patient(build):
    """The same, whose watchdog waits longer than any test: a call hangs until the machine is released."""
    world = build("h100-80gb:mig*3", wrap=partial(watch, timeout_s=PATIENT_S))
    yield world
    world.machine.release()


def generations(world):
    """As another process reads them."""
    return [known.generation for known in RosterStore(world.state_dir).read_roster().gpus]


def start_with(world, fail):
    """A start whose NVML does not tell the UUID of the GPU at index 1; `fail` is what it does instead."""

    class Mute:
        def __init__(self, inner):
            self._inner = inner

        def __getattr__(self, name):
            return getattr(self._inner, name)

        def get_uuid(self, index):
            if index == 1:
                fail()
            return self._inner.get_uuid(index)

    world.wrap = lambda ports: watch(replace(ports, nvml=Mute(ports.nvml)))
    world.start()


def refuse_power():
    raise NvmlError(8, "nvmlDeviceGetHandleByIndex_v2", "Insufficient External Power")


def never_return():
    threading.Event().wait(30)


@pytest.mark.parametrize("fail", [refuse_power, never_return])
def test_a_gpu_that_does_not_tell_its_uuid_stays_as_it_was_known(watched, fail):
    before = watched.node.lookout.roster

    start_with(watched, fail)

    assert watched.node.lookout.roster == before


@pytest.mark.parametrize("fail", [refuse_power, never_return])
def test_a_gpu_that_does_not_tell_its_uuid_keeps_no_other_from_serving(watched, fail):
    start_with(watched, fail)

    watched.serve(watched.claim("a", watched.partition(2, "1g.10gb", 0)))


def test_a_gpu_never_seen_that_does_not_tell_its_uuid_is_left_out(watched):
    RosterStore(watched.state_dir).path.unlink()

    start_with(watched, refuse_power)

    assert [known.number for known in watched.node.lookout.roster.gpus] == [0, 2]


def test_a_sentence_of_the_watchdog_speaks_of_no_claim(watched):
    watched.machine.inject(Hang(function="get_device_count"))

    with pytest.raises(NvmlTimeout, match="look for Xid errors in the node's kernel log") as said:
        watched.start()

    assert "claim" not in str(said.value)


# After a module reload every GPU's generation rises


def test_a_prepare_waits_for_no_gpu_that_hangs_in_the_look(patient):
    """The look stays inside GPU 0 while GPU 2 is prepared, with the generation that the reload asks for."""
    patient.reload_module()
    patient.machine.inject(Hang(function="get_name", gpu=patient.uuid(0)))
    look = threading.Thread(target=patient.node.lookout.refresh)
    look.start()
    assert patient.machine.wait_for_hung_calls(1, timeout_s=PATIENT_S)

    record = patient.serve(patient.claim("a", patient.partition(2, "1g.10gb", 0)))

    still_looking = look.is_alive()
    patient.machine.release()
    look.join(PATIENT_S)
    assert (still_looking, record.devices[0].generation) == (True, 2)


def test_a_prepare_asks_no_other_gpu_after_a_reload(watched):
    watched.reload_module()
    watched.machine.inject(Hang(function="*", gpu=watched.uuid(0), times=None))

    record = watched.serve(watched.claim("a", watched.partition(2, "1g.10gb", 0)))

    assert (record.devices[0].generation, watched.node.nvml.wedged_gpus()) == (2, frozenset())


def test_an_unprepare_waits_for_no_gpu_that_hangs_in_the_second_look(patient):
    """Partitions of three GPUs are gone; the second look hangs at the last GPU, whose lock alone it holds then."""
    refs = [patient.claim(f"c{number}", patient.partition(number, "1g.10gb", 0)) for number in range(3)]
    for ref in refs:
        patient.serve(ref)
    numbers = sorted(range(3), key=patient.uuid)
    patient.reload_module()  # which leaves MIG mode off, so that a first look asks for no instances
    patient.machine.inject(Hang(function="get_gpu_instances", gpu=patient.uuid(numbers[-1])))
    look = threading.Thread(target=patient.node.lookout.refresh)
    look.start()
    assert patient.machine.wait_for_hung_calls(1, timeout_s=PATIENT_S)

    answers = [patient.unprepare(refs[number]) for number in numbers[:-1]]

    still_looking = look.is_alive()
    patient.machine.release()
    look.join(PATIENT_S)
    assert (still_looking, answers) == (True, [None, None])


def test_a_gpu_in_use_holds_up_the_generation_of_no_other(watched):
    watched.node.lookout._gpu_wait_s = 0
    watched.reload_module()
    with hold(watched.node.locks.gpu_lock(watched.uuid(0)), 0, "GPU"):
        watched.node.lookout.refresh()
        meanwhile = generations(watched)

    watched.node.lookout.refresh()
    assert (meanwhile, generations(watched)) == ([1, 2, 2], [2, 2, 2])


def test_a_gpu_that_is_silent_at_the_second_look_after_a_reload_rises_all_the_same(watched):
    """Its partitions are gone in any case; a look at a reset, where nothing else tells, would wait for an answer."""
    watched.serve(watched.claim("a", watched.partition(0, "1g.10gb", 0)))
    watched.reload_module()
    watched.machine.inject(Fault(function="get_gpu_instances", gpu=watched.uuid(0), code=codes.UNKNOWN))

    watched.look()

    assert generations(watched) == [2, 2, 2]


def test_a_gpu_in_use_is_not_forgotten_where_the_roster_tells_no_epoch_of_it(watched):
    """As the first rosters were written."""
    watched.node.lookout._gpu_wait_s = 0
    store = RosterStore(watched.state_dir)
    before = store.read_roster()
    store.write_roster(replace(before, gpus=tuple(replace(known, epoch="") for known in before.gpus)))
    watched.reload_module()
    with hold(watched.node.locks.gpu_lock(watched.uuid(0)), 0, "GPU"):
        watched.node.lookout.refresh()

    watched.node.lookout.refresh()

    assert generations(watched) == [2, 2, 2]


def test_a_look_that_another_process_has_overtaken_takes_nothing_back(watched):
    known = watched.node.lookout.roster.find_number(0)
    planned = replace(known, generation=known.generation + 1)
    other = watched.build()
    for _ in range(2):
        watched.reload_module()
        other.lookout.refresh()

    watched.node.lookout._settle_locked(known, planned, emptied=False)

    assert generations(watched) == [3, 3, 3]
