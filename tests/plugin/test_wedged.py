"""A call into NVML that does not return fences its GPU, and on two GPUs the node, until it returns (invariant 8)."""

from __future__ import annotations

import pytest
from node_program import make_program, open_watched, start
from polling import until
from tesela.core.errors import NvmlTimeout
from tesela.edge.kube.port import RESOURCE_SLICES
from tesela.edge.simulator.faults import Hang
from tesela.plugin.main import Plugin

WATCHDOG_S = 1.0
WEDGED = {"key": "gpu.nvidia.com/wedged", "value": "nvml-call-hangs", "effect": "NoSchedule"}


class Running:
    """A driver that publishes three A100 in MIG mode."""

    def __init__(self, folder):
        self.world, settings = make_program(folder, "a100-40gb:mig*3", nvml_timeout_s=WATCHDOG_S)
        self.nvml = open_watched(self.world, settings)
        self.plugin = start(Plugin(settings, self.world.kube, self.nvml))

    def hang(self, number):
        """A call on this GPU does not return, and whoever made it gives up."""
        self.world.machine.inject(Hang(function="get_memory_info", gpu=self.world.uuid(number)))
        with pytest.raises(NvmlTimeout):
            self.nvml.get_memory_info(self.world.uuid(number))

    def fenced(self):
        """The numbers of the GPUs all of whose devices are fenced; no GPU is ever fenced in part."""
        wedged, open_ = set(), set()
        for one in self.world.kube.list(RESOURCE_SLICES).items:
            for device in one["spec"].get("devices", ()):
                taints = [{name: taint[name] for name in WEDGED} for taint in device.get("taints", ())]
                (wedged if WEDGED in taints else open_).add(int(device["name"].split("-")[1]))
        return wedged - open_ if not wedged & open_ else "in part"


@pytest.fixture
def running(short_path):
    running = Running(short_path)
    yield running
    running.world.machine.release()
    until(lambda: not running.nvml.wedged_gpus(), 20)
    assert running.plugin.stop() == 0
    running.world.kube.close()


def test_a_gpu_whose_call_hangs_is_fenced(running):
    running.hang(1)

    assert until(lambda: running.fenced() == {1}, 20)


def test_two_gpus_whose_calls_hang_fence_the_node(running):
    running.hang(0)
    running.hang(1)

    assert until(lambda: running.fenced() == {0, 1, 2}, 20)


def test_the_fence_goes_when_the_call_returns(running):
    running.hang(1)
    assert until(lambda: running.fenced() == {1}, 20)

    running.world.machine.release()

    assert until(lambda: running.fenced() == set(), 20)
