"""A simulated machine whose NVML functions are called by name, and what tests do with it."""

from __future__ import annotations

from tesela.core.errors import NvmlError
from tesela.core.model import Placement
from tesela.edge.nvml import codes
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.named import NamedCalls
from tesela.edge.simulator.nvml import SimulatedNvml
from tesela.edge.simulator.rows import NodeRow, Row
from tesela.edge.simulator.targets import NamedRequest


class NamedWorld:
    """Three GPUs, by default two A100 in MIG mode and an H100, asked by name."""

    def __init__(self, machine=None):
        self.machine = machine or build_machine("a100-40gb:mig*2,h100-80gb")
        self.calls = NamedCalls(self.machine)
        self.nvml = SimulatedNvml(self.machine)
        self.nvml.init()
        self.gpu, self.second, self.h100 = self.machine.visible_uuids()[:3]

    def ask(self, function, gpu="", *, gi=None, ci=None, numbers=(), text=""):
        return self.calls.answer(NamedRequest(function, gpu, gi, ci, numbers, text))

    def code(self, function, gpu="", **target):
        try:
            self.ask(function, gpu, **target)
        except NvmlError as error:
            return error.code
        return codes.SUCCESS

    def mig_device(self, start=0, profile="1g.5gb"):
        """A MIG device on the first GPU whose compute instance fills its GPU instance."""
        chosen = next(p for p in self.machine.spec.gpus[0].model.profiles if p.name == profile)
        placement = Placement(start=start, size=chosen.placements[0].size)
        gi_id = self.nvml.create_gpu_instance(self.gpu, chosen.profile_id, placement).gi_id
        whole = next(c for c in chosen.compute_instances if c.compute_slices == chosen.compute_slices)
        return self.nvml.create_compute_instance(self.gpu, gi_id, whole.profile_id)

    def destroy(self, device):
        self.nvml.destroy_compute_instance(self.gpu, device.gi_id, device.ci_id)
        self.nvml.destroy_gpu_instance(self.gpu, device.gi_id)


def shape(row: Row) -> tuple[str, int, bool]:
    """What a row takes, as the page of the protocol says it: target, count of numbers, whether there is a text."""
    if isinstance(row, NodeRow):
        return "G+G" if row.takes_gpu else "-", row.numbers, row.takes_text
    return row.target, row.numbers, False
