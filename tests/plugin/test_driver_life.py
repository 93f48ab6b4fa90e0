"""The GPU driver's life under the node program: it comes late, is reloaded or upgraded, and its library is replaced.

Resets and reloads under claims are in `test_generations`, waiting at boot in `test_plugin_start`, a release of NVML in
`test_release_gpu*`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading

import pytest
from health_program import Running
from node_program import make_program, open_watched
from polling import until
from release_desk import Desk, running
from tesela.core.claim_status import plan_device_statuses
from tesela.core.errors import NvmlError, StartError
from tesela.core.health.model import ALL_HEALTHY
from tesela.core.record import ClaimState
from tesela.core.released import Request, Source
from tesela.edge.nvml import codes
from tesela.edge.nvml.library_file import LibraryFile
from tesela.edge.simulator.faults import Fault
from tesela.plugin.driver_wait import init_nvml
from tesela.plugin.main import Plugin, serve


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path / "state")


# The file of the library


@pytest.fixture
def library(tmp_path):
    """A library as packages install it, mapped by this process; `upgrade` installs another."""
    return Installed(tmp_path)


class Installed:
    def __init__(self, folder):
        self.folder = folder / "usr/lib"
        self.folder.mkdir(parents=True)
        self.link = self.folder / "libnvidia-ml.so.1"
        self.maps = folder / "maps"
        self.install("580.95.05")
        mapped = self.folder / "libnvidia-ml.so.580.95.05"
        self.maps.write_text(
            "7f2c0000-7f2c1000 r--p 00000000 08:01 11 /usr/lib/libc.so.6\n"
            f"7f2d0000-7f2d1000 r-xp 00000000 08:01 12                  {mapped}\n"
            "7ffd0000-7ffd1000 rw-p 00000000 00:00 0  [stack]\n"
        )

    def install(self, version):
        (self.folder / f"libnvidia-ml.so.{version}").write_text(version)
        self.link.unlink(missing_ok=True)
        self.link.symlink_to(f"libnvidia-ml.so.{version}")

    def open(self):
        file = LibraryFile(self.maps)
        file.note()
        return file


def test_a_library_that_nobody_touched_has_not_changed(library):
    file = library.open()

    assert [file.describe_change() for _ in range(3)] == ["", "", ""]


def test_a_library_that_an_upgrade_replaced_is_named_at_the_second_look(library):
    file = library.open()
    library.install("590.44.01")

    assert [file.describe_change() for _ in range(2)] == [
        "",
        f"{library.link} was replaced since this process loaded it",
    ]


def test_a_library_that_is_away_is_waited_for(library):
    file = library.open()
    library.link.unlink()

    assert [file.describe_change() for _ in range(3)] == ["", "", ""]


def test_a_library_that_still_changes_is_waited_for(library):
    file = library.open()
    library.install("590.44.01")
    file.describe_change()
    library.install("590.44.010")

    assert file.describe_change() == ""


def test_a_library_whose_file_was_deleted_is_found_by_its_link(library):
    library.maps.write_text(library.maps.read_text().replace(".580.95.05", ".580.95.05 (deleted)"))
    file = library.open()
    library.install("590.44.01")
    file.describe_change()

    assert file.describe_change()


@pytest.mark.parametrize("maps", ["", "7f2c0000-7f2c1000 r--p 00000000 08:01 11 /usr/lib/libc.so.6\n"])
def test_without_the_library_nothing_changes(tmp_path, maps):
    (tmp_path / "maps").write_text(maps)

    assert LibraryFile(tmp_path / "maps").describe_change() == ""


def test_without_a_list_of_mapped_files_nothing_changes(tmp_path):
    assert LibraryFile(tmp_path / "maps").describe_change() == ""


# A library that no longer matches


def test_a_library_replaced_under_the_driver_ends_the_process_with_a_sentence(desk, library):
    with running(desk, library=library.open()):
        library.install("590.44.01")

        assert until(lambda: desk.failures)
    (sentence,) = desk.failures
    assert sentence == (
        f"{library.link} was replaced since this process loaded it, by an upgrade of the GPU driver, it seems: this "
        "process ends, and the one that takes its place loads the library anew"
    )


def test_a_library_replaced_while_nvml_is_released_ends_the_process_when_it_is_resumed(desk, library):
    with running(desk, library=library.open()):
        desk.ask()
        desk.closes()
        library.install("590.44.01")
        before = list(desk.failures)
        desk.withdraw()

        assert until(lambda: desk.failures)
    assert (before, "was replaced meanwhile" in desk.failures[0]) == ([], True)


def test_the_process_after_it_finds_no_request(desk, library):
    with running(desk, library=library.open()):
        desk.ask()
        desk.closes()
        library.install("590.44.01")
        desk.withdraw()
        until(lambda: desk.failures)

    assert (desk.said().requests, "library was replaced" in desk.said().problem) == ((), True)


def test_nvml_that_does_not_match_when_it_is_resumed_ends_the_process(desk):
    with running(desk):
        desk.ask()
        desk.closes()
        desk.machine.inject(Fault(function="init", code=codes.LIB_RM_VERSION_MISMATCH, times=None))
        desk.withdraw()

        assert until(lambda: desk.failures)
    assert "does not match the loaded kernel module" in desk.failures[0]


def test_nvml_that_does_not_match_any_more_ends_the_process(desk):
    with running(desk):
        desk.machine.inject(Fault(function="get_device_count", code=codes.LIB_RM_VERSION_MISMATCH, times=None))
        for _ in range(3):
            with pytest.raises(NvmlError):
                desk.nvml.get_device_count()

    assert [failure.partition(" (")[0] for failure in desk.failures] == [
        "libnvidia-ml.so.1 does not match the loaded kernel module any more"
    ]


def test_it_is_exit_code_1(short_path):
    world, settings = make_program(short_path, "a30")
    stop = threading.Event()
    plugin = Plugin(settings, world.kube, open_watched(world, settings), on_failed=stop.set)
    ended = []
    thread = threading.Thread(target=lambda: ended.append(serve(plugin, stop)))
    thread.start()
    assert plugin.publisher.published.wait(20)

    world.machine.inject(Fault(function="*", code=codes.LIB_RM_VERSION_MISMATCH, times=None))
    plugin.observers.monitor.wake("a test")
    thread.join(30)

    assert ended == [1]


def test_a_process_that_waits_for_the_driver_ends_when_its_library_was_replaced(desk, library):
    file = library.open()
    library.install("590.44.01")
    file.describe_change()
    desk.machine.inject(Fault(function="init", code=codes.LIB_RM_VERSION_MISMATCH, times=None))

    with pytest.raises(StartError, match="was replaced since this process loaded it, while it waited"):
        init_nvml(desk.nvml.init, wait_s=600, stop=threading.Event(), library=file)


def test_a_process_that_waits_with_the_right_library_goes_on(desk, library):
    assert init_nvml(desk.nvml.init, wait_s=0, stop=threading.Event(), library=library.open())


# Under claims


@pytest.fixture
def node(short_path):
    node = Running(short_path, "a100-40gb:mig*2")
    yield node
    node.close()


def partition(node, number):
    return next(name for name in sorted(node.devices()) if name.startswith(f"gpu-{number}-mig-1g"))


def empty_by_hand(node, number):
    """`nvidia-smi mig -dci && nvidia-smi mig -dgi` behind the driver's back."""
    admin, uuid = node.world.admin, node.uuid(number)
    for instance in node.world.instances(number):
        for compute in instance.compute_instances:
            admin.destroy_compute_instance(uuid, instance.gi_id, compute.ci_id)
        admin.destroy_gpu_instance(uuid, instance.gi_id)


def is_lost(node, uid):
    node.look()
    return node.plugin.node.records.read(uid).state is ClaimState.PREPARING


@pytest.mark.parametrize(
    ("operation", "fields"),
    [("reset", {"gpu": "0", "force": True}), ("reload", {}), ("reload", {"driver": "590.44.01"})],
)
def test_what_takes_a_gpu_s_partitions_marks_its_claims_lost_and_unhealthy(node, operation, fields):
    held = node.claim("held", partition(node, 0))

    node.sim(operation, **fields)

    assert until(lambda: is_lost(node, held.claim.uid))
    (status,) = plan_device_statuses(node.plugin.node.records.read(held.claim.uid), ALL_HEALTHY)
    assert {one.kind: one.status for one in status.conditions} == {"Ready": "False", "Healthy": "False"}


def test_a_reset_leaves_the_claims_of_other_gpus_alone(node):
    reset, other = node.claim("reset", partition(node, 0)), node.claim("other", partition(node, 1))

    node.sim("reset", gpu="0", force=True)
    until(lambda: is_lost(node, reset.claim.uid))

    assert node.plugin.node.records.read(other.claim.uid) == other


def _has_fault_and_claim(node):
    """GPU 0 has a fault that only a reset ends, and a claim in its only partition."""
    node.sim("xid", gpu="0", xid=119)
    assert until(lambda: node.signals() == {"xid-119"})
    return node.claim("held", partition(node, 0))


def test_a_reset_while_nvml_was_released_ends_what_only_a_reset_ends(node):
    _has_fault_and_claim(node)
    files = node.plugin.release._files
    asked = Request(source=Source.COMMAND, reason="a reset", requested_by="alex", since_s=1)
    files.change(lambda released: released.with_request(asked))
    assert until(lambda: files.read().closed_by)

    node.sim("reset", gpu="0")
    files.change(lambda released: released.without(Source.COMMAND))

    assert until(lambda: node.signals() == set())


def test_a_reset_while_no_driver_ran_ends_what_only_a_reset_ends(node):
    _has_fault_and_claim(node)
    node.stop()

    node.sim("reset", gpu="0")
    node.start()

    assert node.signals() == set()


def test_a_gpu_whose_only_partition_was_destroyed_by_hand_keeps_its_fault(node):
    """The driver has NVML open: no reset was possible."""
    held = _has_fault_and_claim(node)

    empty_by_hand(node, 0)

    assert until(lambda: is_lost(node, held.claim.uid))
    node.look()
    node.restart()
    assert node.signals() == {"xid-119"}


def test_a_fault_outlives_mig_mode_that_was_toggled_by_hand(short_path):
    """Hopper does so without a reset, and with NVML open."""
    node = Running(short_path, "h100-80gb:mig")
    held = _has_fault_and_claim(node)
    empty_by_hand(node, 0)
    modes = [node.world.admin.set_mig_mode(node.uuid(0), mode) for mode in (0, 1)]

    lost = until(lambda: is_lost(node, held.claim.uid))

    assert (modes, lost, node.signals()) == ([codes.SUCCESS] * 2, True, {"xid-119"})
    node.close()


def test_a_gpu_that_was_emptied_by_hand_after_it_was_opened_anew_keeps_its_fault(node):
    node.restart()
    held = _has_fault_and_claim(node)

    empty_by_hand(node, 0)

    assert until(lambda: is_lost(node, held.claim.uid))
    assert node.signals() == {"xid-119"}


def test_an_upgrade_under_the_driver_shows_in_the_devices(node):
    node.sim("reload", driver="590.44.01")
    node.look()

    def version():
        return node.devices()[partition(node, 0)]["attributes"]["driverVersion"]["version"]

    assert until(lambda: version() == "590.44.1")


def test_a_module_that_is_away_for_a_moment_loses_nothing(node):
    held = node.claim("held", partition(node, 0))
    away = node.config.sys_root / "module/nvidia"
    kept = away.with_name("nvidia-kept")
    away.rename(kept)
    node.sim("fail", function="*", code=codes.UNINITIALIZED, times=20)
    node.look()
    kept.rename(away)
    node.machine.release()
    node.look()

    assert until(lambda: node.plugin.node.records.read(held.claim.uid) == held)


_MAPPED = """
import mmap, os, sys
from pathlib import Path
from tesela.edge.nvml.library_file import LibraryFile

path = Path(sys.argv[1])
with path.open("rb") as file:
    kept = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
library = LibraryFile()
library.note()
before = [library.describe_change(), library.describe_change()]
path.with_suffix(".new").write_bytes(path.read_bytes() + b"newer")
os.replace(path.with_suffix(".new"), path)
print(before, [library.describe_change(), library.describe_change()])
"""


def test_the_kernel_s_own_list_of_mapped_files_is_understood(tmp_path):
    path = tmp_path / "libnvidia-ml.so.1"
    path.write_bytes(b"a library" * 1000)

    said = subprocess.run([sys.executable, "-c", _MAPPED, path], capture_output=True, text=True, check=True, timeout=30)

    assert said.stdout.strip() == f"['', ''] ['', '{path} was replaced since this process loaded it']"


def test_a_library_of_another_folder_is_no_matter(library, tmp_path):
    file = library.open()
    shutil.copytree(library.folder, tmp_path / "elsewhere", symlinks=True)
    file.describe_change()

    assert file.describe_change() == ""
