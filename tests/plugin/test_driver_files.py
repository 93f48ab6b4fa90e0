"""What claims get of the GPU driver's files: found once, found again when they change, and said when there are none."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from elf_files import count_calls, install_libraries, install_toolkit
from polling import until
from tesela.core.driver_files import LibraryMode, LibrarySource
from tesela.core.errors import TryAgain
from tesela.edge.host.driver_files import DriverTree
from tesela.edge.host.toolkit import Toolkit
from tesela.edge.store.driver_files import DriverFilesStore
from tesela.plugin.deadline import Deadline
from tesela.plugin.driver_files import DriverFilesKeeper

VERSION, NEXT = "580.95.05", "590.44.01"
SOCKET = "/run/nvidia-persistenced/socket"
CUDA = f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}"


class Bench:
    """A driver root, and keepers over it: `version` is what NVML says, `state` outlives a keeper."""

    def __init__(self, folder: Path) -> None:
        self.root, self.state, self.version = folder / "root", folder / "state", VERSION
        self.root.mkdir()
        self.keepers: list[DriverFilesKeeper] = []

    def build(self, mode=LibraryMode.AUTO, *, patience_s=10.0, timeout_s=10.0):
        tree = DriverTree(driver_root=Path("/"), driver_root_mount=self.root, machine="x86_64")
        keeper = DriverFilesKeeper(
            tree,
            Toolkit(tree, timeout_s=timeout_s),
            DriverFilesStore(self.state),
            mode=mode,
            driver_version=lambda: self.version,
            patience_s=patience_s,
        )
        self.keepers.append(keeper)
        return keeper

    def start(self, mode=LibraryMode.AUTO, **fields):
        """One that has looked."""
        keeper = self.build(mode, **fields)
        keeper.start()
        assert until(lambda: keeper.files is not None)
        return keeper


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    for keeper in bench.keepers:
        keeper.resume()
        assert keeper.stop(10)


def list_host_paths(given):
    return {mount["hostPath"] for mount in given.edits.get("mounts", [])}


# Which source


@pytest.mark.parametrize(
    ("mode", "source"),
    [
        (LibraryMode.AUTO, LibrarySource.TOOLKIT),
        (LibraryMode.TOOLKIT, LibrarySource.TOOLKIT),
        (LibraryMode.MOUNT, LibrarySource.MOUNT),
    ],
)
def test_with_toolkit_and_libraries_each_mode_has_its_source(bench, mode, source):
    install_libraries(bench.root, VERSION)
    install_toolkit(bench.root, VERSION)

    assert bench.start(mode).files.source is source


def test_without_toolkit_libraries_are_mounted_by_soname(bench):
    install_libraries(bench.root, VERSION)

    assert CUDA in list_host_paths(bench.start().get())


FAILS = {
    "it fails": "exit 1",
    "it knows another version": "echo '{\"containerEdits\": {}}'",
    "it hangs": "exec sleep 600",
}


@pytest.mark.parametrize("says", FAILS.values(), ids=list(FAILS))
def test_with_a_toolkit_that_does_not_help_they_are_too(bench, says):
    install_libraries(bench.root, VERSION)
    install_toolkit(bench.root, VERSION, says=says)

    assert bench.start(timeout_s=0.5).files.source is LibrarySource.MOUNT


def test_a_toolkit_without_its_hook_does_not_help(bench):
    """Without links nothing finds libcuda.so.1."""
    install_libraries(bench.root, VERSION)
    (install_toolkit(bench.root, VERSION).parent / "nvidia-cdi-hook").unlink()

    assert "nvidia-cdi-hook) is not on the host" in bench.start().files.problem


def test_where_nothing_is_found_claims_get_device_nodes_alone(bench):
    assert bench.start().get().edits == {}


def test_where_nothing_is_found_the_log_says_it_once(bench, caplog):
    keeper = bench.start()

    keeper.resume()
    keeper.get()

    assert caplog.text.count("containers get no libraries of GPU driver 580.95.05") == 1


@pytest.mark.parametrize(
    ("mode", "cause"), [(LibraryMode.TOOLKIT, "there is no nvidia-ctk"), (LibraryMode.MOUNT, "there is no libcuda")]
)
def test_who_asked_for_one_source_gets_no_claim_without_it(bench, mode, cause):
    with pytest.raises(TryAgain, match=rf"--driver-libraries={mode} asks: {cause}"):
        bench.start(mode).get()


# Once


def test_the_toolkit_is_asked_once_for_many_claims(bench):
    install_libraries(bench.root, VERSION)
    install_toolkit(bench.root, VERSION)
    keeper = bench.start()

    for _ in range(20):
        keeper.get()

    assert count_calls(bench.root) == 1


def test_the_next_process_does_not_ask_it_again(bench):
    install_libraries(bench.root, VERSION)
    install_toolkit(bench.root, VERSION)
    first = bench.start().get()

    assert (bench.start().get(), count_calls(bench.root)) == (first, 1)


def test_a_damaged_file_of_ours_is_as_good_as_none(bench):
    install_libraries(bench.root, VERSION)
    install_toolkit(bench.root, VERSION)
    first = bench.start().get()
    path = bench.state / "driver-files.json"
    path.write_bytes(path.read_bytes()[:-40])

    assert bench.start().get() == first


def test_what_cannot_be_kept_serves_all_the_same(bench):
    install_libraries(bench.root, VERSION)
    bench.state.write_text("a file where the folder should be")

    assert CUDA in list_host_paths(bench.start().get())


def test_a_toolkit_that_was_installed_meanwhile_is_asked_by_the_next_process(bench):
    install_libraries(bench.root, VERSION)
    bench.start()
    install_toolkit(bench.root, VERSION)

    assert bench.start().files.source is LibrarySource.TOOLKIT


def test_a_toolkit_that_failed_is_asked_again_by_the_next_process(bench):
    install_libraries(bench.root, VERSION)
    install_toolkit(bench.root, VERSION, says="exit 1")
    bench.start()

    bench.start()

    assert count_calls(bench.root) > 2


# Again


def test_another_version_of_the_driver_is_found_anew(bench):
    install_libraries(bench.root, VERSION)
    keeper = bench.start()
    install_libraries(bench.root, NEXT)

    bench.version = NEXT

    assert CUDA.replace(VERSION, NEXT) in list_host_paths(keeper.get())


def test_a_library_that_was_replaced_is_noticed(bench):
    install_libraries(bench.root, VERSION)
    keeper = bench.start()
    before = keeper.files
    (bench.root / CUDA[1:]).unlink()
    install_libraries(bench.root, VERSION)

    assert until(lambda: keeper.get() and keeper.files.identities != before.identities)


def test_a_library_that_is_gone_is_not_given(bench):
    install_libraries(bench.root, VERSION)
    keeper = bench.start()

    (bench.root / CUDA[1:]).unlink()

    assert until(lambda: keeper.get().edits == {})


def test_a_socket_that_went_is_left_out_at_once(bench):
    install_libraries(bench.root, VERSION)
    socket = bench.root / SOCKET[1:]
    socket.parent.mkdir(parents=True)
    socket.touch()
    hook = {"path": f"{bench.root}/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "create-symlinks"]}
    edits = {
        "mounts": [{"hostPath": f"{bench.root}{path}", "containerPath": path} for path in (CUDA, SOCKET)],
        "hooks": [{"hookName": "createContainer", **hook}],
    }
    install_toolkit(bench.root, VERSION, says=f"echo '{json.dumps({'containerEdits': edits})}'")
    keeper = bench.start()

    socket.unlink()

    assert list_host_paths(keeper.get()) == {CUDA}


# While it is not known


def test_a_claim_waits_for_the_first_look(bench):
    install_libraries(bench.root, VERSION)
    keeper = bench.build()
    given = []
    thread = threading.Thread(target=lambda: given.append(keeper.get(Deadline.after(10))))
    thread.start()

    keeper.start()
    thread.join(10)

    assert CUDA in list_host_paths(given[0])


def test_a_claim_does_not_wait_longer_than_it_may(bench):
    with pytest.raises(TryAgain, match="still being looked for or just being replaced"):
        bench.build().get(Deadline.after(0.05))


def test_before_a_gpu_is_locked_nothing_is_raised(bench):
    assert bench.build().wait(Deadline.after(0.05)) is None


def test_while_nvml_is_released_the_toolkit_is_not_asked(bench):
    """It would open NVML, and the kernel module could not be unloaded."""
    install_libraries(bench.root, VERSION)
    keeper = bench.build()
    keeper.start()
    assert keeper.pause(10)
    calls = count_calls(bench.root)
    install_toolkit(bench.root, NEXT)
    bench.version = NEXT

    with pytest.raises(TryAgain):
        keeper.get(Deadline.after(0.2))
    assert count_calls(bench.root) == calls


# In a claim's CDI file


@pytest.fixture
def served(bench, world):
    """A world whose claims get what the bench has."""
    install_libraries(bench.root, VERSION)
    world.driver_files = bench.start()
    world.start()
    return world


def read_mounts(world, ref):
    return {one["hostPath"] for one in json.loads(world.cdi_path(ref).read_text())["containerEdits"].get("mounts", [])}


def test_a_claims_cdi_file_mounts_the_libraries(served):
    ref = served.claim("a", served.partition(0, "1g.5gb", 0))

    served.serve(ref)

    assert CUDA in read_mounts(served, ref)


def test_after_an_upgrade_of_the_driver_the_files_of_live_claims_are_written_anew(bench, served):
    """A container that starts again would find the libraries of before missing, and never start."""
    ref = served.claim("a", served.partition(0, "1g.5gb", 0))
    served.serve(ref)
    (bench.root / CUDA[1:]).unlink()
    install_libraries(bench.root, NEXT)
    bench.version = NEXT
    served.driver_files.get()

    served.look()

    assert CUDA.replace(VERSION, NEXT) in read_mounts(served, ref)


def test_a_claim_that_cannot_have_its_libraries_leaves_nothing_behind(bench, world):
    world.driver_files = bench.start(LibraryMode.TOOLKIT)
    world.start()
    ref = world.claim("a", world.partition(0, "1g.5gb", 0))

    refused = world.refuse(ref)

    assert ("there is no nvidia-ctk" in refused, world.leftovers()) == (True, [])
