"""The process: what it waits for, what it cannot start with, and that it ends when it can no longer serve."""

from __future__ import annotations

import threading

import pytest
from node_program import make_program, open_watched
from tesela.cli.main import main
from tesela.core.errors import NvmlError, NvmlTimeout, StartError
from tesela.edge.backends import open_nvml
from tesela.edge.nvml import codes
from tesela.edge.nvml.watchdog import WatchedNvml
from tesela.edge.simulator.faults import Fault
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.nvml import SimulatedNvml
from tesela.plugin.driver_wait import init_nvml
from tesela.plugin.main import Plugin, serve

# The GPU driver

CAUSES = [
    (codes.LIBRARY_NOT_FOUND, r"libnvidia-ml\.so\.1 is not found"),
    (codes.DRIVER_NOT_LOADED, "the nvidia kernel module is not loaded"),
    (codes.LIB_RM_VERSION_MISMATCH, "does not match the loaded kernel module"),
    (codes.UNKNOWN, "Unknown Error"),
]


class LateNvml:
    """NVML whose `init` raises these errors first, one a call, then works."""

    def __init__(self, *errors):
        self.errors = list(errors)

    def init(self):
        if self.errors:
            raise self.errors.pop(0)


def failing(code, times=1000):
    return LateNvml(*[NvmlError(code, "nvmlInitWithFlags", codes.TEXTS[code])] * times)


@pytest.fixture
def no_wait():
    """An event that answers `wait` at once, so that tries follow each other without a pause."""

    class Never(threading.Event):
        def wait(self, timeout=None):
            return super().wait(0)

    return Never()


@pytest.mark.parametrize(("code", "cause"), CAUSES)
def test_a_driver_that_does_not_come_ends_the_start_naming_the_cause(code, cause):
    with pytest.raises(StartError, match=f"gave up after 0 s without a GPU driver: .*{cause}"):
        init_nvml(failing(code).init, wait_s=0, stop=threading.Event())


def test_simulated_gpus_that_nobody_serves_are_waited_for_by_their_socket(tmp_path):
    with pytest.raises(
        StartError, match=f"no simulator answers at {tmp_path}/none .* start it with `tesela sim serve`"
    ):
        init_nvml(open_nvml(f"simulated:unix:{tmp_path}/none").init, wait_s=0, stop=threading.Event())


def test_a_driver_that_comes_late_is_waited_for(no_wait):
    assert init_nvml(failing(codes.DRIVER_NOT_LOADED, times=3).init, wait_s=60, stop=no_wait)


def test_a_call_that_hangs_is_waited_for_too(no_wait):
    assert init_nvml(LateNvml(NvmlTimeout("nvmlInit did not return")).init, wait_s=60, stop=no_wait)


def test_what_is_waited_for_is_said_once_and_not_at_every_try(no_wait, caplog):
    init_nvml(failing(codes.DRIVER_NOT_LOADED, times=5).init, wait_s=60, stop=no_wait)

    assert [record.message.split(",")[0] for record in caplog.records] == ["waiting for the GPU driver"]


def test_a_library_that_is_too_old_is_not_waited_for():
    with pytest.raises(StartError, match="too old"):
        init_nvml(failing(codes.FUNCTION_NOT_FOUND).init, wait_s=600, stop=threading.Event())


def test_a_signal_ends_the_wait():
    stop = threading.Event()
    stop.set()

    assert not init_nvml(failing(codes.DRIVER_NOT_LOADED).init, wait_s=600, stop=stop)


# The command


def run(capsys, *arguments):
    code = main(["plugin", *arguments])
    return code, capsys.readouterr().err.splitlines()


def test_a_missing_node_name_says_what_to_pass(capsys):
    assert run(capsys, "--node-name", "") == (
        1,
        ["tesela plugin: the node's name is missing: pass --node-name, or set NODE_NAME from spec.nodeName"],
    )


def test_a_missing_kubeconfig_says_so(capsys, tmp_path):
    code, lines = run(capsys, "--node-name", "n", "--kubeconfig", str(tmp_path / "none"))

    assert (code, lines[-1].startswith(f"tesela plugin: kubeconfig {tmp_path}/none: ")) == (1, True)


@pytest.mark.parametrize("arguments", [["--nonsense"], ["--driver-wait", "soon"], ["--nvml-timeout"]])
def test_wrong_flags_are_wrong_usage(arguments):
    with pytest.raises(SystemExit, match="2"):
        main(["plugin", "--node-name", "n", *arguments])


@pytest.mark.parametrize("arguments", [["--driver-wait", "-1"], ["--nvml-timeout", "0"]])
def test_numbers_out_of_range_are_refused(capsys, arguments):
    code, lines = run(capsys, "--node-name", "n", *arguments)

    assert (code, len(lines)) == (1, 1)


# The program as a whole


@pytest.fixture
def config(short_path):
    return make_program(short_path, "a100-40gb:mig")


def test_a_driver_that_can_no_longer_be_reached_ends_with_a_failure(config):
    world, settings = config
    stop = threading.Event()
    plugin = Plugin(settings, world.kube, open_watched(world, settings), on_failed=stop.set)
    codes_of_end = []
    thread = threading.Thread(target=lambda: codes_of_end.append(serve(plugin, stop)))
    thread.start()
    assert plugin.publisher.published.wait(20)

    plugin.server.service_socket.unlink()

    thread.join(30)
    assert codes_of_end == [1]


def test_a_library_without_a_needed_function_ends_the_start(config):
    world, settings = config
    nvml = open_watched(world, settings)
    world.machine.inject(Fault(function="get_device_count", code=codes.FUNCTION_NOT_FOUND))

    with pytest.raises(StartError, match="too old"):
        Plugin(settings, world.kube, nvml).start()


def test_a_damaged_roster_with_nothing_to_rebuild_it_from_ends_the_start(config):
    """Device names hang on it, so it is not replaced by a guess."""
    world, settings = config
    (settings.state_dir / "claims").mkdir(parents=True)
    for name in ("roster.json", "claims/damaged.json"):
        (settings.state_dir / name).write_text("{")

    with pytest.raises(StartError, match=r"roster\.json"):
        Plugin(settings, world.kube, WatchedNvml(SimulatedNvml(build_machine("a30")), timeout_s=5))
