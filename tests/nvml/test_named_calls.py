"""The C library and the simulator agree on the calls that go by name: which there are, what each takes and answers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from nvml.c_sources import Sent, list_sent
from nvml.needs import library
from tesela.core.errors import NvmlError
from tesela.core.model import Placement
from tesela.edge.simulator.gpu import Process
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.named import NAMED, NamedCalls
from tesela.edge.simulator.nvml import SimulatedNvml
from tesela.edge.simulator.rows import GpuRow, NodeRow
from tesela.edge.simulator.targets import NamedAnswer, NamedRequest

pytestmark = library("compiler")

PID = 4711
PLAUSIBLE = (0, 1, 2, 19, PID, 300_000)
"""For an argument: an enum's first values, a placement, a profile's id, a process, milliwatts."""
LONG = {"nvmlGpmMetricsGet": [(2, 1, 0, 0, 1, 1000, 500)]}
"""For functions whose arguments are too many to try all."""
REFUSED_EVERYWHERE = {
    "nvmlDeviceGetBoardPartNumber",
    "nvmlDeviceGetFanSpeed",
    "nvmlDeviceGetFanSpeed_v2",
    "nvmlDeviceGetInforomConfigurationChecksum",
    "nvmlDeviceGetInforomImageVersion",
    "nvmlDeviceGetGpuOperationMode",
    "nvmlDeviceGetDriverModel_v2",
    "nvmlDeviceGetHostVgpuMode",
    "nvmlDeviceGetMinMaxFanSpeed",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceSetAccountingMode",
}
"""NOT_SUPPORTED on every simulated board: there is no answer to compare."""


def test_every_name_that_is_sent_has_a_row():
    assert {sent.function for sent in list_sent()} - set(NAMED) == set()


def test_every_row_is_sent_by_a_function():
    assert set(NAMED) - {sent.function for sent in list_sent()} == set()


def test_as_many_numbers_are_sent_as_the_row_takes():
    sent = {(sent.function, sent.numbers) for sent in list_sent()}
    assert sent - {(row.function, row.numbers) for row in NAMED.values()} == set()


def test_a_text_is_sent_where_the_row_takes_one():
    sent = {sent.function for sent in list_sent() if sent.takes_text}
    assert sent == {row.function for row in NAMED.values() if isinstance(row, NodeRow) and row.takes_text}


# Results


class World:
    """An A100 with a partition and an H100 in use without MIG, asked for whatever they answer."""

    def __init__(self) -> None:
        machine = build_machine("a100-80gb:mig,h100-80gb:fabric")
        self.calls = NamedCalls(machine)
        nvml = SimulatedNvml(machine)
        nvml.init()
        self.a100, self.h100 = machine.visible_uuids()
        self.gi = nvml.create_gpu_instance(self.a100, 9, Placement(start=4, size=4)).gi_id
        self.ci = nvml.create_compute_instance(self.a100, self.gi, 0).ci_id
        machine.add_process("1", Process(pid=PID, name="training"))

    def list_answers(self, function: str) -> Iterator[NamedAnswer]:
        for request in self._list_requests(function):
            try:
                yield self.calls.answer(request)
            except NvmlError:
                continue

    def _list_requests(self, function: str) -> Iterator[NamedRequest]:
        row = NAMED[function]
        for numbers in LONG.get(function, product(PLAUSIBLE, repeat=row.numbers)):
            match row:
                case NodeRow(takes_gpu=True):
                    yield NamedRequest(function, self.a100, None, None, numbers, self.h100)
                case NodeRow():
                    yield NamedRequest(function, "", None, None, numbers, self.h100)
                case GpuRow(target="G" | "D"):
                    for gpu in (self.a100, self.h100):
                        yield NamedRequest(function, gpu, None, None, numbers, "")
                case GpuRow(target="I"):
                    yield NamedRequest(function, self.a100, self.gi, None, numbers, "")
                case GpuRow():
                    yield NamedRequest(function, self.a100, self.gi, self.ci, numbers, "")


def shape_of(answer: NamedAnswer, sent: Sent) -> int | str:
    return "text" if sent.results == "text" and answer.text else len(answer.numbers)


def test_the_simulator_answers_what_the_functions_expect():
    fixed = [sent for sent in list_sent() if sent.results is not None]
    shapes = {sent: {shape_of(answer, sent) for answer in World().list_answers(sent.function)} for sent in fixed}
    expected = {sent: set() if sent.function in REFUSED_EVERYWHERE else {sent.results} for sent in fixed}
    assert {sent.function: (shapes[sent], expected[sent]) for sent in fixed if shapes[sent] != expected[sent]} == {}
