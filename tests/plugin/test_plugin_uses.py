"""GPUs that a device plugin gave to pods: tainted for claims, and no longer than that is so."""

from __future__ import annotations

import dataclasses
import logging

import pytest
from health_program import Running
from pod_resources import FakePodResources
from polling import until
from tesela.core.device_plugins import PluginUse
from tesela.core.errors import TryAgain
from tesela.plugin.plugin_uses import PluginUses

GIVEN = PluginUse(resource="nvidia.com/gpu", device_id="GPU-1", pod="team/a")


class FakeSource:
    """Tells `uses`, or fails; `asked` counts."""

    def __init__(self):
        self.uses = ()
        self.fails = False
        self.asked = 0

    def list_plugin_uses(self):
        self.asked += 1
        if self.fails:
            raise TryAgain("the kubelet is away")
        return self.uses

    def ask_twice_more(self):
        """The first of them may have begun before."""
        before = self.asked
        return until(lambda: self.asked >= before + 2)


@pytest.fixture
def source():
    return FakeSource()


@pytest.fixture
def told():
    return []


@pytest.fixture
def watching(source, told):
    watching = PluginUses(source, on_change=told.append, period_s=0.01)
    watching.start()
    yield watching
    assert watching.stop(10)


def test_what_was_given_is_known_and_told(source, told, watching):
    source.uses = (GIVEN,)

    assert until(lambda: (watching.uses, len(told)) == ({GIVEN}, 1))


def test_what_stays_as_it_was_is_not_told_again(source, told, watching):
    source.uses = (GIVEN,)
    until(lambda: told)
    source.ask_twice_more()

    assert len(told) == 1


def test_what_is_not_nvidias_is_nothing_to_us(source, told, watching):
    source.uses = (dataclasses.replace(GIVEN, resource="example.com/nic"),)
    source.ask_twice_more()

    assert (watching.uses, told) == (frozenset(), [])


def test_a_kubelet_that_is_away_takes_nothing_back(source, told, watching):
    source.uses = (GIVEN,)
    until(lambda: told)
    source.fails = True
    source.ask_twice_more()

    assert watching.uses == {GIVEN}


def test_the_log_names_pod_and_device_once(source, watching, caplog):
    with caplog.at_level(logging.WARNING):
        source.uses = (GIVEN,)
        until(lambda: watching.uses)
        source.ask_twice_more()

    (line,) = [one for one in caplog.messages if "device plugin" in one]
    assert ("nvidia.com/gpu GPU-1" in line, "team/a" in line) == (True, True)


@pytest.fixture
def kubelet(short_path):
    kubelet = FakePodResources(short_path / "pods.sock")
    yield kubelet
    kubelet.stop()


def test_a_driver_taints_what_was_given_and_nothing_else(kubelet, short_path):
    kubelet.give("trainer", "nvidia.com/gpu", "0")

    node = Running(short_path, "a30*2", pod_resources=short_path / "pods.sock")
    tainted = node.becomes_tainted("foreign", "gpu-0")
    node.close()

    assert tainted
