"""The stand-in host tree: what NVIDIA's driver shows, following the machine."""

from __future__ import annotations

import gc
import itertools
import os
import stat
import struct

import pytest
from tesela.core.errors import StartError
from tesela.core.model import Placement
from tesela.edge.simulator.gpu import Process
from tesela.edge.simulator.hosttree import (
    HostTree,
    compute_instance_capability_minor,
    gpu_instance_capability_minor,
)
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.nvml import SimulatedNvml

CAPABILITIES = "proc/driver/nvidia/capabilities"


@pytest.fixture
def machine():
    return build_machine("a100-40gb:mig,h100-80gb:numa=unknown:pcie-root=unknown,a30")


@pytest.fixture
def tree(tmp_path, machine):
    return HostTree(tmp_path / "host", machine, make_nodes=False)


@pytest.fixture
def partition(machine, tree):
    """A 1g at 6 with its compute instance: GPU minor 0, GPU instance 13, compute instance 0."""
    nvml = SimulatedNvml(machine)
    nvml.init()
    gpu = nvml.get_uuid(0)
    instance = nvml.create_gpu_instance(gpu, 19, Placement(start=6, size=1))
    nvml.create_compute_instance(gpu, instance.gi_id, 0)
    return nvml


def files(tree, folder: str) -> set[str]:
    root = tree.root / folder
    return {str(p.relative_to(root)) for p in root.rglob("*") if not p.is_dir()}


def read(tree, path: str) -> str:
    return (tree.root / path).read_text()


def test_a_gpu_tells_its_uuid_and_minor(tree, machine):
    text = read(tree, "proc/driver/nvidia/gpus/0000:07:00.0/information")
    assert f"GPU UUID: \t {machine.gpu('0').uuid}\n" in text
    assert "Device Minor: \t 0\n" in text


def test_the_majors_are_in_proc_devices(tree):
    rows = {tuple(line.split()) for line in read(tree, "proc/devices").splitlines()}
    wanted = {("195", "nvidiactl"), (str(tree.caps_major), "nvidia-caps"), (str(tree.uvm_major), "nvidia-uvm")}
    assert wanted <= rows


def test_the_module_is_loaded(tree):
    assert any(line.startswith("nvidia ") for line in read(tree, "proc/modules").splitlines())


def test_the_boot_id_is_the_machines(tree, machine):
    assert read(tree, "proc/sys/kernel/random/boot_id").strip() == machine.snapshot().boot_id


def test_a_reboot_changes_the_boot_id(tree, machine):
    before = read(tree, "proc/sys/kernel/random/boot_id")
    machine.reboot()
    assert read(tree, "proc/sys/kernel/random/boot_id") != before


def test_a_reloaded_module_is_a_new_directory(tree, machine):
    before = (tree.root / "sys/module/nvidia").stat()
    machine.reload_driver()
    after = (tree.root / "sys/module/nvidia").stat()
    assert (after.st_ino, after.st_ctime_ns) != (before.st_ino, before.st_ctime_ns)


def test_the_pcie_root_is_in_the_resolved_path(tree):
    assert "pci0000:04" in os.path.realpath(tree.root / "sys/bus/pci/devices/0000:07:00.0").split("/")


def test_an_unknown_pcie_root_is_in_no_path(tree):
    assert "pci0000" not in os.path.realpath(tree.root / "sys/bus/pci/devices/0000:0b:00.0")


@pytest.mark.parametrize(("address", "node"), [("0000:07:00.0", "0"), ("0000:0b:00.0", "-1"), ("0000:16:00.0", "1")])
def test_the_numa_node(tree, address, node):
    assert read(tree, f"sys/bus/pci/devices/{address}/numa_node").strip() == node


def test_pci_ids(tree):
    folder = "sys/bus/pci/devices/0000:07:00.0"
    assert (read(tree, f"{folder}/vendor"), read(tree, f"{folder}/device")) == ("0x10de\n", "0x20b0\n")


def test_the_bars_of_a_gpu_do_not_meet_those_of_another(tree):
    folders = sorted((tree.root / "sys/bus/pci/devices").iterdir())
    lines = [line for folder in folders for line in (folder / "resource").read_text().splitlines()]
    spans = sorted((int(start, 16), int(end, 16)) for start, end, flags in map(str.split, lines) if int(flags, 16))
    assert all(one[1] < other[0] for one, other in itertools.pairwise(spans))


def test_bar_1_holds_the_whole_memory(tree):
    start, end, _ = read(tree, "sys/bus/pci/devices/0000:07:00.0/resource").splitlines()[1].split()
    assert int(end, 16) - int(start, 16) + 1 == 64 << 30


def test_the_configuration_space_names_the_same_device_and_bars(tree):
    folder = tree.root / "sys/bus/pci/devices/0000:07:00.0"
    vendor, device, bar0, bar1 = struct.unpack("<HH12xI Q", (folder / "config").read_bytes()[:28])
    starts = [int(line.split()[0], 16) for line in (folder / "resource").read_text().splitlines()]
    assert (vendor, device, bar0, bar1 & ~0xF) == (0x10DE, 0x20B0, starts[0], starts[1])


@pytest.mark.parametrize("address", ["0000:07:00.0", "0000:0b:00.0"])
def test_the_driver_of_a_gpu_is_nvidia(tree, address):
    driver = os.path.realpath(tree.root / "sys/bus/pci/devices" / address / "driver")
    assert driver == os.path.realpath(tree.root / "sys/bus/pci/drivers/nvidia")


def test_the_driver_names_its_gpus(tree):
    device = os.path.realpath(tree.root / "sys/bus/pci/drivers/nvidia/0000:07:00.0")
    assert device == os.path.realpath(tree.root / "sys/bus/pci/devices/0000:07:00.0")


def test_device_files_of_every_gpu(tree):
    assert {"nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"} <= files(tree, "dev")


def test_capabilities_appear_with_the_instances(tree, partition):
    assert files(tree, f"{CAPABILITIES}/gpu0") == {"mig/gi13/access", "mig/gi13/ci0/access"}


@pytest.mark.parametrize(("path", "minor"), [("gi13", 120), ("gi13/ci0", 121)])
def test_a_capability_tells_its_minor_and_mode(tree, partition, path, minor):
    text = read(tree, f"{CAPABILITIES}/gpu0/mig/{path}/access")
    assert text == f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"


@pytest.mark.parametrize(("name", "mode"), [("config", 256), ("monitor", 292)])
def test_only_root_may_change_partitions_and_everybody_may_watch(tree, name, mode):
    assert f"DeviceFileMode: {mode}\n" in read(tree, f"{CAPABILITIES}/mig/{name}")


def test_capability_device_files_appear_with_the_instances(tree, partition):
    assert files(tree, "dev/nvidia-caps") == {"nvidia-cap1", "nvidia-cap2", "nvidia-cap120", "nvidia-cap121"}


def test_capabilities_vanish_with_the_instances(tree, machine, partition):
    gpu = machine.gpu("0").uuid
    partition.destroy_compute_instance(gpu, 13, 0)
    partition.destroy_gpu_instance(gpu, 13)
    assert not (tree.root / CAPABILITIES / "gpu0").exists()


@pytest.mark.parametrize("event", ["reset", "reboot", "lose"])
def test_capabilities_vanish_when_the_instances_do(tree, machine, partition, event):
    happen = getattr(machine, event)
    happen() if event == "reboot" else happen("0")
    assert not (tree.root / CAPABILITIES / "gpu0").exists()


@pytest.mark.parametrize(("line"), ["config 1", "monitor 2", "gpu0/gi13/access 120", "gpu31/gi14/ci7/access 4322"])
def test_the_static_table_of_minors(tree, line):
    assert line in read(tree, "proc/driver/nvidia-caps/mig-minors").splitlines()


def test_no_two_capabilities_share_a_minor():
    gis = [(g, i) for g in range(32) for i in range(15)]
    minors = [gpu_instance_capability_minor(g, i) for g, i in gis]
    minors += [compute_instance_capability_minor(g, i, c) for g, i in gis for c in range(8)]
    assert len(set(minors)) == len(minors)


def test_an_absent_gpu_leaves_the_tree(tree, machine):
    machine.lose("0", absent=True)
    assert not os.path.lexists(tree.root / "sys/bus/pci/devices/0000:07:00.0")


def test_minors_that_rotate_keep_every_device_file(tree, machine):
    machine.shift_minors = True
    machine.reboot()
    assert {"nvidia0", "nvidia1", "nvidia2"} <= files(tree, "dev")


def test_capabilities_follow_the_minor(tree, machine):
    machine.shift_minors = True
    machine.reboot()
    nvml = SimulatedNvml(machine)
    nvml.init()
    nvml.create_gpu_instance(nvml.get_uuid(0), 19, Placement(start=6, size=1))
    assert files(tree, f"{CAPABILITIES}/gpu1") == {"mig/gi13/access"}


def test_a_process_shows_its_name_and_the_open_device_file(tree, machine):
    machine.add_process("1", Process(pid=4711, kind="open", name="dcgm"))
    opened = {str(link.readlink()) for link in (tree.root / "proc/4711/fd").iterdir()}
    assert (read(tree, "proc/4711/comm"), opened) == ("dcgm\n", {"/dev/nvidia1"})


def test_a_process_on_two_gpus_goes_from_one(tree, machine):
    for gpu in ("0", "1"):
        machine.add_process(gpu, Process(pid=4711))
    machine.remove_process("0", 4711)
    assert files(tree, "proc/4711") == {"comm", "cmdline", "fd/11"}


def test_device_nodes_are_character_devices_where_that_is_allowed(tmp_path, machine):
    tree = HostTree(tmp_path / "host", machine)
    status = (tree.root / "dev/nvidia1").stat()
    found = (stat.S_ISCHR(status.st_mode), os.major(status.st_rdev), os.minor(status.st_rdev))
    assert found == ((True, 195, 1) if tree.makes_nodes else (False, 0, 0))


def test_an_earlier_tree_is_replaced(tmp_path, machine, tree, partition):
    tree.close()
    HostTree(tmp_path / "host", build_machine("a30"), make_nodes=False)
    assert not (tree.root / CAPABILITIES / "gpu0").exists()


def test_a_folder_with_something_else_is_left_alone(tmp_path, machine):
    (tmp_path / "proc").mkdir()
    with pytest.raises(StartError, match="give an empty folder"):
        HostTree(tmp_path, machine)


def test_a_tree_that_another_simulator_keeps_is_left_alone(tmp_path, tree):
    with pytest.raises(StartError, match=r"another simulator keeps .*/host; stop it"):
        HostTree(tmp_path / "host", build_machine("a30"), make_nodes=False)
    assert "nvidia2" in files(tree, "dev")


def test_a_tree_is_free_when_its_machine_is_gone(tmp_path):
    HostTree(tmp_path / "host", build_machine("a30"), make_nodes=False)
    gc.collect()
    assert HostTree(tmp_path / "host", build_machine("a30"), make_nodes=False).root.exists()
