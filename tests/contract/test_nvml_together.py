"""Calls that go through the watchdog together: one change of threads, a limit for each, nothing done in secret."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from contract.nvml_watched import LIMIT_S
from polling import until
from tesela.core.errors import NvmlError, NvmlTimeout
from tesela.core.model import Placement
from tesela.edge.nvml import codes
from tesela.edge.nvml.watchdog import WatchedNvml, together
from tesela.edge.nvml.worker import LIMITS_IN_LINE
from tesela.edge.simulator.faults import Fault, Hang, Latency
from tesela.edge.simulator.nvml import SimulatedNvml

GPUS = "a100-40gb:mig*2"
ONE_G = 19
QUICK_S = LIMIT_S / 4
"""A call that is slow, and far from its limit on a busy machine too."""
PATIENT_S = 30.0


def listen_to_threads(machine) -> set[int]:
    seen: set[int] = set()
    machine.on_call.append(lambda _function, _phase: seen.add(threading.get_ident()))
    return seen


def make(nvml, gpu, count: int) -> Callable[[], None]:
    def work() -> None:
        for start in range(count):
            nvml.create_gpu_instance(gpu, ONE_G, Placement(start=start, size=1))

    return work


def make_two(nvml, gpu) -> Callable[[], None]:
    return make(nvml, gpu, 2)


def test_the_result_comes_back(nvml):
    gpu = nvml.get_uuid(0)
    assert nvml.together(gpu, lambda: (nvml.get_minor_number(gpu), nvml.get_index(gpu))) == (0, 0)


def test_what_a_call_raises_comes_back(machine, nvml):
    gpu = nvml.get_uuid(0)
    machine.inject(Fault(function="get_name", code=3))
    with pytest.raises(NvmlError, match="nvmlDeviceGetName"):
        nvml.together(gpu, lambda: nvml.get_name(gpu))


def test_all_calls_are_made_by_the_gpus_one_thread(machine, nvml):
    gpu = nvml.get_uuid(0)
    nvml.get_name(gpu)
    threads = listen_to_threads(machine)
    nvml.together(gpu, make_two(nvml, gpu))
    nvml.get_name(gpu)
    assert len(threads) == 1


def test_together_within_together_is_one(nvml):
    gpu = nvml.get_uuid(0)
    assert nvml.together(gpu, lambda: nvml.together(gpu, lambda: nvml.get_index(gpu))) == 0


def test_each_call_has_the_whole_limit(machine, nvml):
    gpu = nvml.get_uuid(0)
    machine.inject(Latency(function="create_gpu_instance", seconds=QUICK_S))
    nvml.together(gpu, make(nvml, gpu, 6))
    assert len(nvml.get_gpu_instances(gpu, ONE_G)) == 6


def test_the_call_that_does_not_return_is_named(machine, nvml):
    gpu = nvml.get_uuid(0)
    machine.inject(Hang(function="create_gpu_instance", gpu=gpu, after=1))
    with pytest.raises(NvmlTimeout, match=r"^nvmlDeviceCreateGpuInstanceWithPlacement on GPU \S+ did not return"):
        nvml.together(gpu, make_two(nvml, gpu))


def test_nothing_is_done_after_a_call_that_came_back_too_late(machine, nvml):
    gpu = nvml.get_uuid(0)
    machine.inject(Hang(function="create_gpu_instance", gpu=gpu))
    with pytest.raises(NvmlTimeout):
        nvml.together(gpu, make_two(nvml, gpu))
    machine.release()
    assert until(lambda: not nvml.wedged_gpus(), timeout_s=5)
    assert len(nvml.get_gpu_instances(gpu, ONE_G)) == 1


def test_a_call_that_came_back_too_late_is_told_as_what_it_did(machine, nvml, caplog):
    gpu = nvml.get_uuid(0)
    machine.inject(Hang(function="create_gpu_instance", gpu=gpu))
    with pytest.raises(NvmlTimeout):
        nvml.together(gpu, make_two(nvml, gpu))
    machine.release()
    assert until(lambda: not nvml.wedged_gpus(), timeout_s=5)
    told = [line for line in caplog.messages if "returned after" in line]
    assert [line.split(" s and ")[1] for line in told] == ["succeeded; the rest of its step is not made"]


def test_who_waits_behind_a_step_that_gets_on_is_served(machine, nvml):
    gpu = nvml.get_uuid(0)
    machine.inject(Latency(function="create_gpu_instance", seconds=QUICK_S))
    step = threading.Thread(target=lambda: nvml.together(gpu, make(nvml, gpu, 6)))
    step.start()
    assert until(machine.list_calls, timeout_s=5)
    assert nvml.get_index(gpu) == 0
    step.join()


def test_nobody_waits_in_line_for_ever(machine, nvml):
    gpu = nvml.get_uuid(0)
    machine.inject(Latency(function="get_name", seconds=QUICK_S))

    def work() -> None:
        for _ in range(round((LIMITS_IN_LINE + 2) * LIMIT_S / QUICK_S)):
            nvml.get_name(gpu)

    step = threading.Thread(target=lambda: nvml.together(gpu, work))
    step.start()
    assert until(machine.list_calls, timeout_s=5)
    with pytest.raises(NvmlTimeout, match=r"^nvmlDeviceGetIndex on .* not tried, others have kept it busy for 1.2 s"):
        nvml.get_index(gpu)
    step.join()


def test_a_step_ends_when_nvml_is_being_shut_down(machine, inner):
    nvml = WatchedNvml(inner, timeout_s=PATIENT_S)
    nvml.init()
    gpu = nvml.get_uuid(0)
    failed: list[NvmlError] = []
    has_begun = threading.Event()

    def stay_until_then(_function: str, _phase: str) -> None:
        has_begun.set()
        until(lambda: nvml._closing)

    def step() -> None:
        try:
            nvml.together(gpu, make_two(nvml, gpu))
        except NvmlError as error:
            failed.append(error)

    machine.on_call.append(stay_until_then)
    thread = threading.Thread(target=step)
    thread.start()
    assert has_begun.wait(PATIENT_S)
    nvml.shutdown()
    thread.join()
    assert [error.code for error in failed] == [codes.UNINITIALIZED]


def test_a_listener_that_fails_costs_no_call(machine, nvml):
    gpu = nvml.get_uuid(0)
    nvml.listen(lambda: 1 // 0)
    machine.inject(Hang(function="get_name", gpu=gpu))
    with pytest.raises(NvmlTimeout):
        nvml.get_name(gpu)
    machine.release()
    assert until(lambda: not nvml.wedged_gpus(), timeout_s=5)
    assert nvml.get_index(gpu) == 0


def test_a_wedged_gpu_is_not_tried(machine, nvml):
    gpu = nvml.get_uuid(0)
    machine.inject(Hang(function="get_name", gpu=gpu))
    with pytest.raises(NvmlTimeout):
        nvml.get_name(gpu)
    with pytest.raises(NvmlTimeout, match=r"^several NVML calls on .* not tried, nvmlDeviceGetName has not"):
        nvml.together(gpu, lambda: nvml.get_index(gpu))


def test_other_backends_just_make_the_calls(machine):
    plain = SimulatedNvml(machine)
    plain.init()
    gpu = plain.get_uuid(0)
    assert together(plain, gpu, lambda: plain.get_index(gpu)) == 0
