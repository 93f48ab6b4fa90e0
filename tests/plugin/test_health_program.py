"""A fault on a GPU, from the simulated hardware to the published slice: what is fenced, what stays, what ends it."""

from __future__ import annotations

import pytest
from health_program import Running
from polling import until


@pytest.fixture
def run(short_path):
    """Starts a driver on the given GPUs."""
    started = []

    def make(gpus, **settings):
        started.append(Running(short_path, gpus, **settings))
        return started[-1]

    yield make
    for one in started:
        one.close()


def test_an_xid_that_asks_for_a_reset_fences_every_device_of_its_gpu(run):
    node = run("a30*2")

    node.sim("xid", gpu="0", xid=48)

    assert node.becomes_tainted("xid", "gpu-0")
    assert node.taints("gpu-0") == {"xid=48:NoSchedule"}


def test_a_fault_is_on_disk_before_it_is_published(run):
    node = run("a30")

    node.sim("xid", gpu="0", xid=48)

    assert node.becomes_tainted("xid", "gpu-0")
    assert node.signals() == {"xid-48"}


def test_a_restart_keeps_a_fault(run):
    node = run("a30")
    node.sim("xid", gpu="0", xid=48)
    assert node.becomes_tainted("xid", "gpu-0")

    node.restart()

    assert node.tainted("xid") == {"gpu-0"}


def test_a_device_with_a_fault_says_so_in_its_attribute(run):
    node = run("a30*2")

    node.sim("xid", gpu="0", xid=48)

    assert until(lambda: (node.health("gpu-0"), node.health("gpu-1")) == ("unhealthy", "healthy"))


def test_an_application_s_fault_fences_nothing(run):
    node = run("a30")

    node.sim("xid", gpu="0", xid=31)

    assert until(lambda: node.signals() == {"xid-31"})
    assert (node.taints("gpu-0"), node.health("gpu-0")) == (set(), "healthy")
