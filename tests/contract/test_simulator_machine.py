"""What only a simulator can do: faults and latencies as data, hangs, hooks, processes, and forced circumstances."""

from __future__ import annotations

import threading
import time

import pytest
from polling import until
from tesela.core.errors import DocumentError, NvmlError
from tesela.core.model import Placement
from tesela.edge.nvml import codes
from tesela.edge.nvml.port import MigMode
from tesela.edge.simulator.faults import Fault, Hang, Latency
from tesela.edge.simulator.gpu import Process
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.nvml import SimulatedNvml

ONE_G = 19


def at(start: int) -> Placement:
    return Placement(start=start, size=1)


@pytest.fixture
def machine():
    machine = build_machine("a100-40gb:mig*2,h100-80gb")
    yield machine
    machine.release()


@pytest.fixture
def nvml(machine):
    nvml = SimulatedNvml(machine)
    nvml.init()
    return nvml


@pytest.fixture
def gpu(nvml):
    return nvml.get_uuid(0)


def code_of(call, *arguments) -> int:
    try:
        call(*arguments)
    except NvmlError as error:
        return error.code
    return codes.SUCCESS


# Faults


def test_a_fault_passes_some_calls_then_meets_some(machine, nvml, gpu):
    machine.inject(Fault(function="get_name", code=codes.UNKNOWN, after=1, times=2))
    assert [code_of(nvml.get_name, gpu) for _ in range(4)] == [0, 999, 999, 0]


def test_a_fault_can_last(machine, nvml, gpu):
    machine.inject(Fault(function="get_name", times=None))
    assert {code_of(nvml.get_name, gpu) for _ in range(5)} == {codes.UNKNOWN}


def test_a_fault_can_concern_one_gpu(machine, nvml):
    machine.inject(Fault(function="get_name", gpu="1"))
    assert [code_of(nvml.get_name, nvml.get_uuid(i)) for i in (0, 1)] == [0, 999]


def test_nvmls_name_of_a_function_is_understood(machine, nvml, gpu):
    machine.inject(Fault(function="nvmlDeviceGetName"))
    assert code_of(nvml.get_name, gpu) == codes.UNKNOWN


def test_a_fault_before_the_effect_leaves_no_effect(machine, nvml, gpu):
    machine.inject(Fault(function="create_gpu_instance"))
    code_of(nvml.create_gpu_instance, gpu, ONE_G, at(0))
    assert machine.gpu(gpu).instances == ()


def test_a_fault_after_the_effect_loses_only_the_answer(machine, nvml, gpu):
    machine.inject(Fault(function="create_gpu_instance", when="after"))
    answer = code_of(nvml.create_gpu_instance, gpu, ONE_G, at(0))
    assert (answer, len(machine.gpu(gpu).instances)) == (codes.UNKNOWN, 1)


def test_a_destroy_can_claim_success_and_leave_the_instance(machine, nvml, gpu):
    made = nvml.create_gpu_instance(gpu, ONE_G, at(0))
    machine.inject(Fault(function="destroy_gpu_instance", code=codes.SUCCESS))
    nvml.destroy_gpu_instance(gpu, made.gi_id)
    assert [i.gi_id for i in machine.gpu(gpu).instances] == [made.gi_id]


def test_a_mode_change_can_stay_pending_with_a_status(machine, nvml):
    hopper = nvml.get_uuid(2)
    machine.inject(Fault(function="set_mig_mode", activation_status=codes.RESET_REQUIRED))
    status = nvml.set_mig_mode(hopper, codes.MIG_ENABLED)
    assert (status, nvml.get_mig_mode(hopper)) == (codes.RESET_REQUIRED, MigMode(current=0, pending=1))


@pytest.mark.parametrize(
    ("fault", "field"),
    [
        (Fault(function="destroy"), "function"),
        (Fault(function="get_name", gpu="9"), "gpu"),
        (Fault(function="get_name", times=0), "times"),
        (Fault(function="get_name", after=-1), "after"),
        (Fault(function="get_name", code=codes.SUCCESS), "code"),
        (Fault(function="destroy_gpu_instance", code=codes.SUCCESS, when="after"), "code"),
        (Fault(function="get_name", activation_status=19), "activation_status"),
        (Latency(function="get_name", seconds=-1), "seconds"),
    ],
)
def test_faults_that_nothing_could_show_are_refused(machine, fault, field):
    with pytest.raises(DocumentError) as refused:
        machine.inject(fault)
    assert refused.value.path == field


def test_release_forgets_every_fault(machine, nvml, gpu):
    machine.inject(Fault(function="*", times=None))
    machine.release()
    assert code_of(nvml.get_name, gpu) == codes.SUCCESS


# Time


def test_a_slow_call_is_slow(machine, nvml, gpu):
    machine.inject(Latency(function="get_name", seconds=0.05))
    began = time.monotonic()
    nvml.get_name(gpu)
    assert time.monotonic() - began >= 0.05


def test_a_hang_on_one_gpu_leaves_the_others_alone(machine, nvml, gpu):
    machine.inject(Hang(function="create_gpu_instance", gpu=gpu))
    stuck = threading.Thread(target=nvml.create_gpu_instance, args=(gpu, ONE_G, at(0)))
    stuck.start()
    machine.wait_for_hung_calls(1, timeout_s=5)
    made = nvml.create_gpu_instance(nvml.get_uuid(1), ONE_G, at(0))
    machine.release()
    stuck.join()
    assert made.placement == at(0)


def test_release_ends_a_latency_that_has_begun(machine, nvml, gpu):
    machine.inject(Latency(function="get_name", seconds=60))
    caller = threading.Thread(target=nvml.get_name, args=(gpu,))
    caller.start()
    assert until(lambda: [call.phase for call in machine.list_calls()] == ["slow"])
    machine.release()
    caller.join(10)
    assert not caller.is_alive()


def test_a_released_call_does_its_work(machine, nvml, gpu):
    machine.inject(Hang(function="create_gpu_instance", gpu=gpu))
    stuck = threading.Thread(target=nvml.create_gpu_instance, args=(gpu, ONE_G, at(0)))
    stuck.start()
    machine.wait_for_hung_calls(1, timeout_s=5)
    machine.release()
    stuck.join()
    assert len(machine.gpu(gpu).instances) == 1


def test_racing_creations_share_out_the_slices(machine, nvml, gpu):
    answers: list[int] = []
    start = threading.Barrier(8)

    def race(slot):
        start.wait(timeout=10)
        answers.append(code_of(nvml.create_gpu_instance, gpu, ONE_G, at(slot // 2)))

    racers = [threading.Thread(target=race, args=(slot,)) for slot in range(8)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert sorted(answers) == [codes.SUCCESS] * 4 + [codes.INSUFFICIENT_RESOURCES] * 4


# Hooks


def test_a_hook_is_told_of_every_call_before_and_after(machine, nvml, gpu):
    told: list[tuple[str, str]] = []
    machine.on_call.append(lambda function, phase: told.append((function, phase)))
    nvml.get_name(gpu)
    assert told == [("get_name", "before"), ("get_name", "after")]


class Crash(BaseException):
    """What a test raises in place of dying."""


@pytest.mark.parametrize(("phase", "left"), [("before", 0), ("after", 1)])
def test_a_crash_at_a_call_leaves_what_the_phase_says(machine, nvml, gpu, phase, left):
    def die(function, now):
        if (function, now) == ("create_gpu_instance", phase):
            raise Crash

    machine.on_call.append(die)
    with pytest.raises(Crash):
        nvml.create_gpu_instance(gpu, ONE_G, at(0))
    assert len(machine.gpu(gpu).instances) == left


# Circumstances


def test_an_id_can_be_forced(machine, nvml, gpu):
    machine.force_gi_id(gpu, 3)
    assert nvml.create_gpu_instance(gpu, ONE_G, at(6)).gi_id == 3


def test_a_placement_whose_usual_id_was_forced_away_gets_a_free_one(machine, nvml, gpu):
    machine.force_gi_id(gpu, 13)
    forced = nvml.create_gpu_instance(gpu, ONE_G, at(0))
    assert nvml.create_gpu_instance(gpu, ONE_G, at(6)).gi_id != forced.gi_id


def test_an_id_in_use_cannot_be_forced(machine, nvml, gpu):
    made = nvml.create_gpu_instance(gpu, ONE_G, at(0))
    with pytest.raises(DocumentError, match="in use"):
        machine.force_gi_id(gpu, made.gi_id)


@pytest.mark.parametrize(
    "process", [Process(pid=1, gi_id=3), Process(pid=1, gi_id=7, ci_id=0), Process(pid=1, ci_id=0)]
)
def test_a_process_needs_its_instance(machine, nvml, gpu, process):
    nvml.create_gpu_instance(gpu, ONE_G, at(0))
    with pytest.raises(DocumentError):
        machine.add_process(gpu, process)


def test_a_gpu_instance_with_a_process_is_in_use(machine, nvml, gpu):
    made = nvml.create_gpu_instance(gpu, ONE_G, at(0))
    machine.add_process(gpu, Process(pid=1, gi_id=made.gi_id))
    assert code_of(nvml.destroy_gpu_instance, gpu, made.gi_id) == codes.IN_USE


def test_an_ended_process_frees_its_instance(machine, nvml, gpu):
    made = nvml.create_gpu_instance(gpu, ONE_G, at(0))
    machine.add_process(gpu, Process(pid=1, gi_id=made.gi_id))
    machine.remove_process(gpu, 1)
    assert code_of(nvml.destroy_gpu_instance, gpu, made.gi_id) == codes.SUCCESS


def test_a_process_that_is_not_there_cannot_end(machine, gpu):
    with pytest.raises(DocumentError, match="no context"):
        machine.remove_process(gpu, 4)


def test_a_gpu_in_use_is_not_reset(machine, gpu):
    machine.add_process(gpu, Process(pid=77))
    with pytest.raises(DocumentError, match="in use by 77"):
        machine.reset(gpu)


def test_a_reset_can_be_forced(machine, gpu):
    machine.add_process(gpu, Process(pid=77))
    machine.reset(gpu, force=True)
    assert machine.gpu(gpu).processes == ()


def test_a_reboot_has_a_new_boot_id(machine):
    before = machine.snapshot().boot_id
    machine.reboot()
    assert machine.snapshot().boot_id != before


def test_a_driver_reload_keeps_the_boot_id(machine):
    before = machine.snapshot()
    machine.reload_driver()
    after = machine.snapshot()
    assert (after.boot_id, after.driver_loads) == (before.boot_id, before.driver_loads + 1)


def test_minors_move_at_a_toggle_where_told(machine, nvml):
    machine.shift_minors = True
    nvml.set_mig_mode(nvml.get_uuid(2), codes.MIG_ENABLED)
    assert [g.minor for g in machine.snapshot().gpus] == [0, 1, 3]


def test_minors_move_at_a_reboot_where_told(machine):
    machine.shift_minors = True
    machine.reboot()
    assert [g.minor for g in machine.snapshot().gpus] == [1, 2, 0]


def test_minors_can_be_told_to_move_by_the_text():
    machine = build_machine("h100-80gb*2,shift-minors")
    machine.reboot()
    assert [g.minor for g in machine.snapshot().gpus] == [1, 0]


def test_mig_cannot_be_managed_from_a_vgpu():
    nvml = SimulatedNvml(build_machine("h100-80gb:vgpu"))
    nvml.init()
    assert code_of(nvml.set_mig_mode, nvml.get_uuid(0), codes.MIG_ENABLED) == codes.NOT_SUPPORTED


def test_a_vgpu_says_what_it_is():
    nvml = SimulatedNvml(build_machine("h100-80gb:vgpu"))
    nvml.init()
    assert nvml.get_virtualization_mode(nvml.get_uuid(0)) == codes.VIRTUALIZATION_VGPU_GUEST


def test_a_field_can_be_one_that_the_driver_lacks(machine, nvml, gpu):
    machine.set_field(gpu, codes.FIELD_RESETLESS_MIG, None)
    assert nvml.get_field_values(gpu, [codes.FIELD_RESETLESS_MIG]) == (None,)


def test_a_lost_gpu_comes_back_empty(machine, nvml, gpu):
    nvml.create_gpu_instance(gpu, ONE_G, at(0))
    machine.lose(gpu)
    machine.reset(gpu)
    assert machine.gpu(gpu).instances == ()
