"""The stand-in kubelet's cache of device health, on a clock of the test's own."""

from __future__ import annotations

import pytest
from tesela.edge.embedded.device_health import DeviceHealthCache
from tesela.edge.kubelet.port import DeviceHealth

DRIVER = "gpu.nvidia.com"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def device(name: str = "gpu-0", *, healthy: bool | None = True, message: str = "") -> DeviceHealth:
    return DeviceHealth(pool="node-a", device=name, healthy=healthy, message=message)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def cache(clock):
    made = DeviceHealthCache(clock)
    made.update(DRIVER, ((device(), 30),))
    return made


def test_what_was_reported_holds(cache):
    assert cache.get(DRIVER, "node-a", "gpu-0") == device()


@pytest.mark.parametrize(
    ("driver", "pool", "name"),
    [("other", "node-a", "gpu-0"), (DRIVER, "node-b", "gpu-0"), (DRIVER, "node-a", "gpu-1")],
)
def test_what_nobody_reported_is_unknown(cache, driver, pool, name):
    assert cache.get(driver, pool, name).healthy is None


def test_an_entry_that_is_not_repeated_in_time_is_unknown(cache, clock):
    clock.now_s += 31
    assert cache.get(DRIVER, "node-a", "gpu-0").healthy is None


def test_an_entry_that_ran_out_is_a_change(cache, clock):
    before = cache.version
    clock.now_s += 31
    assert cache.version != before


def test_an_entry_that_is_repeated_holds_on_and_is_no_change(cache, clock):
    before = cache.version
    clock.now_s += 29
    cache.update(DRIVER, ((device(), 30),))
    clock.now_s += 29
    assert (cache.get(DRIVER, "node-a", "gpu-0").healthy, cache.version) == (True, before)


def test_a_report_of_some_devices_leaves_the_others(cache):
    cache.update(DRIVER, ((device("gpu-1", healthy=False), 30),))
    assert cache.get(DRIVER, "node-a", "gpu-0").healthy


@pytest.mark.parametrize(
    "change", [(device(healthy=False), 30), (device(message="degraded"), 30), (device(), 60), (device("gpu-1"), 30)]
)
def test_a_report_that_differs_is_a_change(cache, change):
    assert cache.update(DRIVER, (change,))


def test_the_end_of_a_stream_takes_all_health_of_its_driver(cache):
    cache.clear(DRIVER)
    assert cache.get(DRIVER, "node-a", "gpu-0").healthy is None
