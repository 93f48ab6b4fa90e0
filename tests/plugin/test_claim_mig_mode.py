"""The MIG mode: switched by a prepare that needs the other one, never behind anybody's back, and truthfully."""

from __future__ import annotations

import pytest
from tesela.edge.nvml import codes
from tesela.edge.simulator.faults import Fault
from tesela.edge.simulator.gpu import Process

BUSY = Process(pid=4711, name="trainer")
AGENT = Process(pid=4712, name="exporter", kind="open")


def modes(world, number):
    gpu = world.machine.gpu(str(number))
    return gpu.mig_current, gpu.mig_pending


def test_a_partition_switches_an_idle_hopper_on(world):
    world.serve(world.claim("a", world.partition(2, "1g.10gb", 0)))

    assert modes(world, 2) == (1, 1)


def test_a_whole_hopper_switches_it_off(world):
    world.set_mig(2, on=True)

    world.serve(world.claim("a", "gpu-2"))

    assert modes(world, 2) == (0, 0)


def test_the_end_of_a_claim_switches_nothing(world):
    ref = world.claim("a", world.partition(2, "1g.10gb", 0))
    world.serve(ref)
    world.unprepare(ref)

    assert modes(world, 2) == (1, 1)


def test_whole_and_partition_take_turns(world):
    for number in range(2):
        cut = world.claim(f"cut-{number}", world.partition(2, "7g.80gb", 0))
        whole = world.claim(f"whole-{number}", "gpu-2")
        for ref in (cut, whole):
            world.serve(ref)
            world.unprepare(ref)

    assert modes(world, 2) == (0, 0)


def test_an_ampere_that_is_not_in_mig_mode_is_refused_with_the_way_to_it(world):
    sentence = world.refuse(world.claim("a", world.partition(1, "1g.5gb", 0)))

    assert (f"nvidia-smi -i {world.uuid(1)} -mig 1" in sentence, modes(world, 1)) == (True, (0, 0))


def test_an_ampere_in_mig_mode_is_not_given_whole(world):
    sentence = world.refuse(world.claim("a", "gpu-0"))

    assert (f"nvidia-smi -i {world.uuid(0)} -mig 0" in sentence, modes(world, 0)) == (True, (1, 1))


def test_a_busy_gpu_is_refused_naming_the_process_from_nvmls_list(world):
    world.machine.add_process("2", BUSY)

    sentence = world.refuse(world.claim("a", world.partition(2, "1g.10gb", 0)))

    assert ("In use by another client (19)" in sentence, "trainer (pid 4711)" in sentence) == (True, True)


def test_a_busy_gpu_is_refused_naming_who_has_its_device_file_open(world):
    world.machine.add_process("2", AGENT)

    assert "exporter (pid 4712)" in world.refuse(world.claim("a", world.partition(2, "1g.10gb", 0)))


def test_after_a_refusal_the_pending_mode_is_as_before(world):
    world.machine.add_process("2", BUSY)

    world.refuse(world.claim("a", world.partition(2, "1g.10gb", 0)))

    assert modes(world, 2) == (0, 0)


def test_the_claim_is_served_once_the_gpu_is_idle(world):
    ref = world.claim("a", world.partition(2, "1g.10gb", 0))
    world.machine.add_process("2", BUSY)
    world.refuse(ref)
    world.machine.remove_process("2", BUSY.pid)

    world.serve(ref)


@pytest.mark.parametrize("status", [codes.RESET_REQUIRED, codes.IN_USE])
def test_a_success_that_is_only_pending_is_a_refusal(world, status):
    world.machine.inject(Fault(function="set_mig_mode", code=codes.SUCCESS, activation_status=status))

    sentence = world.refuse(world.claim("a", world.partition(2, "1g.10gb", 0)))

    assert (f"({status})" in sentence, modes(world, 2)) == (True, (0, 0))


def test_a_switch_that_fails_after_it_became_pending_is_set_back(world):
    world.machine.add_process("2", BUSY)
    world.machine.inject(Fault(function="set_mig_mode", when="after"))

    world.refuse(world.claim("a", world.partition(2, "1g.10gb", 0)))

    assert modes(world, 2) == (0, 0)


def test_a_holder_that_cannot_be_named_does_not_hide_the_cause(world):
    world.machine.add_process("2", BUSY)
    world.machine.inject(Fault(function="get_compute_running_processes", code=codes.NOT_SUPPORTED))

    sentence = world.refuse(world.claim("a", world.partition(2, "1g.10gb", 0)))

    assert "MIG mode of GPU" in sentence


def test_a_refused_switch_leaves_nothing(world):
    world.machine.add_process("2", BUSY)

    world.refuse(world.claim("a", world.partition(2, "1g.10gb", 0)))

    assert world.leftovers() == []
