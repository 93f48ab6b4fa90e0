"""The watchdog: no call holds its caller longer than the limit, and only the stuck GPU suffers."""

from __future__ import annotations

import inspect
import threading
from contextlib import contextmanager, suppress

import pytest
from contract.nvml_watched import LIMIT_S
from polling import until
from tesela.core.errors import NvmlError, NvmlTimeout
from tesela.core.model import Placement
from tesela.edge.nvml import codes
from tesela.edge.nvml.functions import FUNCTIONS
from tesela.edge.nvml.port import Nvml
from tesela.edge.nvml.watchdog import WatchedNvml
from tesela.edge.nvml.worker import Job
from tesela.edge.simulator.faults import Hang, Latency
from tesela.edge.simulator.nvml import SimulatedNvml

GPUS = "a100-40gb:mig*3"


def hang(machine, nvml, *gpus, function="get_name"):
    for gpu in gpus:
        machine.inject(Hang(function=function, gpu=gpu))
        with pytest.raises(NvmlTimeout):
            getattr(nvml, function)(gpu)


def ask_in_vain(nvml, gpu):
    with pytest.raises(NvmlTimeout):
        nvml.get_name(gpu)


def test_a_call_that_does_not_return_names_function_and_gpu(machine, nvml):
    gpu = nvml.get_uuid(0)
    machine.inject(Hang(function="get_mig_mode", gpu=gpu))
    with pytest.raises(NvmlTimeout, match=rf"^nvmlDeviceGetMigMode on GPU {gpu}: did not return within 0.4 s"):
        nvml.get_mig_mode(gpu)


def test_the_gpu_is_wedged(machine, nvml):
    gpu = nvml.get_uuid(0)
    hang(machine, nvml, gpu)
    assert nvml.wedged_gpus() == {gpu}


def test_further_calls_on_a_wedged_gpu_fail_at_once_and_name_the_cause(machine, nvml):
    gpu = nvml.get_uuid(0)
    hang(machine, nvml, gpu)
    with pytest.raises(NvmlTimeout, match=r"nvmlDeviceGetMigMode .* not tried, nvmlDeviceGetName has not returned yet"):
        nvml.get_mig_mode(gpu)


def test_other_gpus_are_served(machine, nvml):
    hang(machine, nvml, nvml.get_uuid(0))
    assert nvml.get_name(nvml.get_uuid(1)) == "NVIDIA A100-SXM4-40GB"


def test_one_wedged_gpu_is_no_wedged_node(machine, nvml):
    hang(machine, nvml, nvml.get_uuid(0))
    assert not nvml.wedged_node


def test_two_wedged_gpus_are_a_wedged_node(machine, nvml):
    hang(machine, nvml, nvml.get_uuid(0), nvml.get_uuid(1))
    assert nvml.wedged_node


def test_a_stuck_call_of_no_gpu_is_a_wedged_node(machine, nvml):
    machine.inject(Hang(function="get_device_count"))
    with pytest.raises(NvmlTimeout, match="on the node"):
        nvml.get_device_count()
    assert nvml.wedged_node


def test_the_gpu_is_served_again_once_the_call_returned(machine, nvml):
    gpu = nvml.get_uuid(0)
    hang(machine, nvml, gpu)
    machine.release()
    assert until(lambda: not nvml.wedged_gpus())
    assert nvml.get_name(gpu) == "NVIDIA A100-SXM4-40GB"


def test_a_call_that_waited_in_line_in_vain_is_never_made(machine, nvml):
    gpu = nvml.get_uuid(0)
    machine.inject(Hang(function="get_name", gpu=gpu))
    first = threading.Thread(target=ask_in_vain, args=(nvml, gpu))
    first.start()
    machine.wait_for_hung_calls(1, timeout_s=5)
    with pytest.raises(NvmlTimeout):
        nvml.create_gpu_instance(gpu, 19, Placement(start=0, size=1))
    first.join()
    machine.release()
    until(lambda: not nvml.wedged_gpus())
    assert nvml.get_gpu_instances(gpu, 19) == ()


def test_time_in_line_does_not_count_against_a_call(machine):
    # The second call, behind the first, waits longer than the limit in all.
    nvml = WatchedNvml(SimulatedNvml(machine), timeout_s=2)
    nvml.init()
    gpu = nvml.get_uuid(0)
    machine.inject(Latency(function="get_name", seconds=1.2, gpu=gpu))
    names: list[str] = []
    callers = [threading.Thread(target=lambda: names.append(nvml.get_name(gpu))) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert names == ["NVIDIA A100-SXM4-40GB"] * 2


def test_shutdown_does_not_run_beside_a_stuck_call(machine, nvml):
    hang(machine, nvml, nvml.get_uuid(0))
    with pytest.raises(NvmlTimeout, match="nvmlShutdown: not called"):
        nvml.shutdown()


def test_after_a_refused_shutdown_the_session_goes_on(machine, nvml):
    hang(machine, nvml, nvml.get_uuid(0))
    with pytest.raises(NvmlTimeout):
        nvml.shutdown()
    assert nvml.get_device_count() == 3


def test_a_call_that_returned_just_when_its_caller_gave_up_wedges_nothing(nvml):
    # Built by hand, because no schedule of threads makes this moment certain.
    job = Job("nvmlDeviceGetName", str, LIMIT_S)
    job.started = job.finished = True
    worker = nvml._worker(nvml.get_uuid(0))
    worker.give_up(job)
    assert worker.overdue is None


class RunningOut(Job):
    """A job whose time ends between the first look at it and the second."""

    looks = iter((0.01, -0.01))

    @property
    def left_s(self):
        return next(self.looks)


def test_a_limit_that_ends_while_it_is_looked_at_gives_no_negative_wait(nvml):
    job = RunningOut("nvmlDeviceGetName", str, LIMIT_S)
    job.started = True
    assert nvml._worker(nvml.get_uuid(0)).give_up(job) > 0


def test_errors_pass_through(nvml):
    with pytest.raises(NvmlError) as refused:
        nvml.get_gpu_instance_by_id(nvml.get_uuid(0), 3)
    assert refused.value.code == codes.NOT_FOUND


# Marks: what other processes see of a call that changes a GPU

CHANGES = {
    "set_mig_mode": (1,),
    "create_gpu_instance": (19, Placement(start=0, size=1)),
    "destroy_gpu_instance": (1,),
    "create_compute_instance": (1, 0),
    "destroy_compute_instance": (1, 0),
}


class Marks:
    """Writes down what is called under a mark; `until` is waited for before the call may begin."""

    def __init__(self, until=lambda: None):
        self.until = until
        self.now = []
        self.past = []

    @contextmanager
    def hold(self, gpu_uuid, function):
        self.now.append((gpu_uuid, function))
        self.until()
        try:
            yield
        finally:
            self.past.append(self.now.pop())


def mark(machine, marks):
    nvml = WatchedNvml(SimulatedNvml(machine), timeout_s=LIMIT_S, mark=marks.hold)
    nvml.init()
    return nvml


@pytest.mark.parametrize("function", CHANGES)
def test_a_call_that_changes_a_gpu_is_made_under_a_mark(machine, function):
    marks = Marks()
    nvml = mark(machine, marks)
    gpu = nvml.get_uuid(0)
    with suppress(NvmlError):
        getattr(nvml, function)(gpu, *CHANGES[function])

    assert marks.past == [(gpu, FUNCTIONS[function])]


def test_every_call_that_changes_a_gpu_is_known_to_these_tests():
    names = [name for name, _ in inspect.getmembers(Nvml, inspect.isfunction)]

    assert {name for name in names if name.startswith(("set_", "create_", "destroy_"))} == CHANGES.keys()


def test_a_mark_stays_as_long_as_its_call_is_inside(machine):
    marks = Marks()
    nvml = mark(machine, marks)
    gpu = nvml.get_uuid(0)
    machine.inject(Hang(function="set_mig_mode", gpu=gpu))
    with pytest.raises(NvmlTimeout):
        nvml.set_mig_mode(gpu, 0)
    meanwhile = list(marks.now)

    machine.release()

    assert (meanwhile, until(lambda: not marks.now, 5)) == ([(gpu, "nvmlDeviceSetMigMode")], True)


def test_a_call_that_nobody_awaits_when_its_mark_is_there_is_not_made(machine):
    """Between giving up and the mark, another process may have concluded that nothing is under way."""
    given_up = threading.Event()
    marks = Marks(until=lambda: given_up.wait(20))
    nvml = mark(machine, marks)
    gpu = nvml.get_uuid(0)
    with pytest.raises(NvmlTimeout):
        nvml.create_gpu_instance(gpu, 19, Placement(start=0, size=1))

    given_up.set()

    assert until(lambda: not nvml.wedged_gpus(), 5)
    assert machine.gpu(gpu).instances == ()
