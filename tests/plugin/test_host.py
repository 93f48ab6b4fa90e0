"""The host, read from a folder that looks like one."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tesela.core.cdi import DeviceNode
from tesela.core.errors import StateError, TryAgain
from tesela.edge.host.holders import Processes
from tesela.edge.host.host import Host
from tesela.edge.simulator.hosttree import HostTree
from tesela.edge.simulator.machine import build_machine

DEVICES = """Character devices:
  1 mem
195 nvidia
195 nvidiactl
237 nvidia-caps
511 nvidia-uvm

Block devices:
  7 loop
"""


class Tree:
    """A stand-in host below one folder; device nodes are plain files, as no root is needed to make those."""

    def __init__(self, root):
        self.root = root

    def put(self, path, text=""):
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def link(self, path, target):
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)

    def host(self, **roots):
        defaults = {"proc_root": self.root / "proc", "sys_root": self.root / "sys", "dev_root_mount": self.root}
        return Host(**(defaults | roots))


@pytest.fixture
def tree(tmp_path):
    made = Tree(tmp_path)
    made.put("proc/sys/kernel/random/boot_id", "b0071d\n")
    made.put("proc/devices", DEVICES)
    for node in ("nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"):
        made.put(f"dev/{node}")
    return made


@pytest.fixture
def pci(tree):
    folder = "sys/devices/pci0000:64/0000:64:01.0/0000:65:00.0"
    tree.put(f"{folder}/numa_node", "1\n")
    tree.link("sys/bus/pci/devices/0000:65:00.0", "../../../devices/pci0000:64/0000:64:01.0/0000:65:00.0")
    return tree.root / folder


def test_the_boot_is_identified(tree):
    assert tree.host().get_boot_id() == "b0071d"


@pytest.mark.parametrize("text", ["", "\n"])
def test_an_empty_boot_id_is_an_error(tree, text):
    tree.put("proc/sys/kernel/random/boot_id", text)

    with pytest.raises(StateError, match="check --proc-root"):
        tree.host().get_boot_id()


def test_a_missing_boot_id_is_an_error(tree):
    with pytest.raises(StateError, match="cannot read the boot id"):
        tree.host(proc_root=tree.root / "nowhere").get_boot_id()


def test_without_the_module_there_is_no_token(tree):
    assert tree.host().get_module_token() == ""


def test_a_loaded_module_keeps_its_token(tree):
    tree.put("sys/module/nvidia/version", "580.1")
    host = tree.host()

    assert host.get_module_token() == host.get_module_token() != ""


def test_a_module_loaded_anew_has_another_token(tree):
    tree.put("sys/module/nvidia/version", "580.1")
    before = tree.host().get_module_token()
    (tree.root / "sys/module/nvidia").rename(tree.root / "old")  # keeps its inode number taken
    tree.put("sys/module/nvidia/version", "580.1")

    assert tree.host().get_module_token() != before


def test_a_simulated_driver_reload_shows_in_the_token_each_time(tmp_path):
    machine = build_machine("a100-40gb")
    HostTree(tmp_path, machine, make_nodes=False)
    host = Tree(tmp_path).host()

    tokens = [host.get_module_token()]
    for _ in range(3):
        machine.reload_driver()
        tokens.append(host.get_module_token())

    assert len(set(tokens)) == 4


@pytest.mark.parametrize("bus_id", ["0000:65:00.0", "00000000:65:00.0"])
def test_topology_is_found_however_the_bus_id_is_written(tree, pci, bus_id):
    host = tree.host()

    assert (host.get_pcie_root(bus_id), host.get_numa_node(bus_id)) == ("pci0000:64", 1)


@pytest.mark.parametrize("bus_id", ["0000:99:00.0", "", "../65"])
def test_the_topology_of_an_unknown_device_is_unknown(tree, pci, bus_id):
    host = tree.host()

    assert (host.get_pcie_root(bus_id), host.get_numa_node(bus_id)) == (None, None)


def test_a_numa_node_below_zero_is_unknown(tree, pci):
    (pci / "numa_node").write_text("-1\n")

    assert tree.host().get_numa_node("0000:65:00.0") is None


def test_a_device_outside_a_root_complex_has_no_pcie_root(tree):
    tree.put("sys/devices/platform/0000:66:00.0/numa_node", "0")
    tree.link("sys/bus/pci/devices/0000:66:00.0", "../../../devices/platform/0000:66:00.0")

    assert tree.host().get_pcie_root("0000:66:00.0") is None


def test_a_stand_in_node_gets_its_numbers_from_proc_devices(tree):
    node = tree.host().get_gpu_node(0)

    assert node == DeviceNode(path="/dev/nvidia0", major=195, minor=0, mode=0o666)


def test_a_real_node_has_its_own_numbers(tree):
    (tree.root / "dev/nvidia1").symlink_to("/dev/null")  # the one character device that every machine has

    node = tree.host().get_gpu_node(1)

    facts = Path("/dev/null").stat()
    assert (node.major, node.minor, node.uid) == (os.major(facts.st_rdev), os.minor(facts.st_rdev), facts.st_uid)


def test_with_another_dev_root_nodes_have_a_host_path(tree):
    assert tree.host(dev_root=Path("/run/nvidia/driver")).get_gpu_node(0).host_path == "/run/nvidia/driver/dev/nvidia0"


def test_a_missing_gpu_node_says_how_to_make_it(tree):
    with pytest.raises(TryAgain, match=r"no /dev/nvidia7 .*: run `nvidia-modprobe -c 7`"):
        tree.host().get_gpu_node(7)


def test_the_control_node_must_exist(tree):
    (tree.root / "dev/nvidiactl").unlink()

    with pytest.raises(TryAgain, match="no /dev/nvidiactl"):
        tree.host().list_common_nodes()


def test_of_the_other_common_nodes_those_that_exist_are_taken(tree):
    nodes = tree.host().list_common_nodes()

    assert [(n.path, n.major, n.minor) for n in nodes] == [
        ("/dev/nvidiactl", 195, 255),
        ("/dev/nvidia-uvm", 511, 0),
        ("/dev/nvidia-uvm-tools", 511, 1),
    ]


def test_capability_numbers_come_from_the_access_files(tree):
    tree.put("proc/driver/nvidia/capabilities/gpu0/mig/gi3/access", "DeviceFileMinor: 41\nDeviceFileMode: 292\n")
    tree.put("proc/driver/nvidia/capabilities/gpu0/mig/gi3/ci0/access", "DeviceFileMinor: 42\nDeviceFileMode: 256\n")

    nodes = tree.host().get_capability_nodes(0, 3, 0)

    assert [(n.path, n.major, n.minor, n.mode) for n in nodes] == [
        ("/dev/nvidia-caps/nvidia-cap41", 237, 41, 0o444),
        ("/dev/nvidia-caps/nvidia-cap42", 237, 42, 0o400),
    ]


def test_without_access_files_the_drivers_table_is_read(tree):
    tree.put("proc/driver/nvidia-caps/mig-minors", "config 1\ngpu0/gi3/access 30\ngpu0/gi3/ci0/access 31\n")

    assert [n.minor for n in tree.host().get_capability_nodes(0, 3, 0)] == [30, 31]


def test_without_either_nothing_is_guessed(tree):
    with pytest.raises(StateError, match="tells the capability of gpu0/gi3"):
        tree.host().get_capability_nodes(0, 3, 0)


def test_an_access_file_that_we_cannot_read_is_not_guessed_at(tree):
    tree.put("proc/driver/nvidia/capabilities/gpu0/mig/gi3/access", "Minor=41\n")

    with pytest.raises(StateError, match="no DeviceFileMinor"):
        tree.host().get_capability_nodes(0, 3, 0)


def test_without_the_caps_driver_there_are_no_capabilities(tree):
    tree.put("proc/devices", "Character devices:\n  1 mem\n\nBlock devices:\n  7 nvidia-caps\n")

    with pytest.raises(StateError, match="no character device nvidia-caps"):
        tree.host().get_capability_nodes(0, 3, 0)


@pytest.fixture
def processes(tree):
    for pid, name, opened in ((41, "python", "/dev/nvidia0"), (42, "bash", "/dev/null"), (7, "dcgm", "/dev/nvidia0")):
        tree.put(f"proc/{pid}/comm", f"{name}\n")
        tree.link(f"proc/{pid}/fd/3", opened)
    return tree


def test_holders_are_named(processes):
    assert processes.host().list_gpu_holders(0) == ("dcgm (pid 7)", "python (pid 41)")


def test_this_process_is_no_holder(processes):
    processes.link("proc/self", "41")

    assert processes.host().list_gpu_holders(0) == ("dcgm (pid 7)",)


def test_nobody_holds_a_free_gpu(processes):
    assert processes.host().list_gpu_holders(1) == ()


def test_looking_for_holders_is_bounded(processes):
    started_s = time.monotonic()

    holders = Processes(processes.root / "proc", limit_s=-1).list_holders(("/dev/nvidia0",))

    assert holders[0].startswith("perhaps others")
    assert time.monotonic() - started_s < 5


def test_a_process_that_ended_is_named_by_its_pid(tree):
    assert tree.host().get_command(99) == "pid 99"
