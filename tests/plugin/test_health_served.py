"""The whole node program and its stream of device health, as a kubelet follows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from health_program import Running
from polling import until
from tesela.core.released import Request, Source
from tesela.edge.kubelet.client import PluginClient
from tesela.plugin.assembly import build_release_files
from wire.kubelet_fakes import Watcher

READING = "nvmlDeviceGetTotalEccErrors"


class Followed:
    """A running driver, and a kubelet that follows its health; after a restart it follows anew."""

    def __init__(self, folder: Path) -> None:
        self.program = Running(folder, "h100-80gb*2", nvml_timeout_s=0.5)
        self.follow()

    def follow(self) -> None:
        self.kubelet = PluginClient(self.program.plugin.server.registrar_socket)
        self.kubelet.register()
        self.watcher = Watcher(self.kubelet.watch_health())
        self.watcher.wait_for(1)

    def unfollow(self) -> None:
        self.watcher.close()
        self.kubelet.close()

    def close(self) -> None:
        self.unfollow()
        self.program.close()

    def shows(self, device: str, healthy: bool | None, containing: str = "") -> bool:
        """Whether the device is told so before long."""

        def told() -> bool:
            newest = {one.device: one for one in self.watcher.reports[-1]}[device]
            return newest.healthy is healthy and containing in newest.message

        return until(told, 20.0)


@pytest.fixture
def followed(short_path):
    made = Followed(short_path)
    yield made
    made.close()


def test_a_driver_without_faults_reports_every_device_as_healthy(followed):
    first = followed.watcher.reports[0]
    assert {one.device for one in first} == set(followed.program.devices())
    assert {one.healthy for one in first} == {True}


def test_a_memory_error_is_told_and_taken_back_after_a_reset(followed):
    followed.program.sim("ecc", gpu="0", uncorrected=1)
    assert followed.shows("gpu-0", False, "ECC could not correct")
    followed.program.sim("reset", gpu="0")
    followed.program.look()
    assert followed.shows("gpu-0", True)


def test_the_neighbour_of_a_sick_gpu_stays_healthy(followed):
    followed.program.sim("xid", gpu="0", xid=79)
    assert followed.shows("gpu-0-mig-1g10gb-19-0", False)
    assert followed.shows("gpu-1", True)


def test_a_gpu_that_is_lost_is_unhealthy(followed):
    followed.program.sim("lose", gpu="0")
    followed.program.look()
    assert followed.shows("gpu-0", False)


def test_a_restarted_driver_tells_what_the_one_before_it_told(followed):
    followed.program.sim("xid", gpu="0", xid=79)
    assert followed.shows("gpu-0", False, "Xid 79")
    message = next(one.message for one in followed.watcher.reports[-1] if one.device == "gpu-0")
    followed.unfollow()
    followed.program.restart()
    followed.follow()
    assert next(one.message for one in followed.watcher.reports[0] if one.device == "gpu-0") == message


def test_a_driver_that_ends_ends_its_streams_in_peace(followed):
    followed.program.plugin.server.stop(10.0)
    assert followed.watcher.ended.wait(5)
    assert followed.watcher.problem is None


def test_nobody_can_tell_while_a_call_into_nvml_hangs(followed):
    followed.program.sim("hang", function=READING, gpu="0")
    followed.program.look()
    assert followed.shows("gpu-0", None, "does not return")
    followed.program.sim("release")
    followed.program.look()
    assert followed.shows("gpu-0", True)


def test_nobody_can_tell_while_nvml_is_released(followed):
    files = build_release_files(followed.program.config, followed.program.world.kube)
    asked = Request(source=Source.COMMAND, reason="driver 590", requested_by="alex", since_s=1)
    files.change(lambda released: released.with_request(asked))
    assert followed.shows("gpu-0", None, "driver 590")
    files.change(lambda released: released.without(Source.COMMAND))
    assert followed.shows("gpu-0", True)
