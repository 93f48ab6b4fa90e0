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
from tesela.edge.nvml.watchdog import together
from tesela.edge.nvml.worker import LIMITS_IN_LINE
from tesela.edge.simulator.faults import Fault, Hang, Latency
from tesela.edge.simulator.nvml import SimulatedNvml

GPUS = "a100-40gb:mig*2"
ONE_G = 19


def listen_to_threads(machine) -> set[int]:
    seen: set[int] = set()
    machine.on_call.append(lambda _function, _phase: seen.add(threading.get_ident()))
    return seen


def make_two(nvml, gpu) -> Callable[[], None]:
    def work() -> None:
        for start in (0, 1):
            nvml.create_gpu_instance(gpu, ONE_G, Placement(start=start, size=1))

    return work


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
    machine.inject(Latency(function="create_gpu_instance", seconds=LIMIT_S * 0.7))
    nvml.together(gpu, make_two(nvml, gpu))
    assert len(nvml.get_gpu_instances(gpu, ONE_G)) == 2


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
    machine.inject(Latency(function="create_gpu_instance", seconds=LIMIT_S * 0.7))
    step = threading.Thread(target=lambda: nvml.together(gpu, make_two(nvml, gpu)))
    step.start()
    assert until(machine.list_calls, timeout_s=5)
    assert nvml.get_index(gpu) == 0
    step.join()


def test_nobody_waits_in_line_for_ever(machine, nvml):
    gpu = nvml.get_uuid(0)
    machine.inject(Latency(function="create_gpu_instance", seconds=LIMIT_S * 0.9))
    starts = range(LIMITS_IN_LINE + 2)

    def work() -> None:
        for start in starts:
            nvml.create_gpu_instance(gpu, ONE_G, Placement(start=start, size=1))

    step = threading.Thread(target=lambda: nvml.together(gpu, work))
    step.start()
    assert until(machine.list_calls, timeout_s=5)
    with pytest.raises(NvmlTimeout, match=r"^nvmlDeviceGetIndex on .* not tried, others have kept it busy for 1.2 s"):
        nvml.get_index(gpu)
    step.join()


def test_a_step_ends_when_nvml_is_being_shut_down(machine, nvml):
    gpu = nvml.get_uuid(0)
    failed: list[NvmlError] = []

    def step() -> None:
        try:
            nvml.together(gpu, make_two(nvml, gpu))
        except NvmlError as error:
            failed.append(error)

    machine.inject(Latency(function="create_gpu_instance", seconds=LIMIT_S / 2))
    thread = threading.Thread(target=step)
    thread.start()
    assert until(machine.list_calls, timeout_s=5)
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
