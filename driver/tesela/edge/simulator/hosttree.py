"""The stand-in host tree of a simulated machine: the files under /proc, /sys and /dev that NVIDIA's driver shows.

A driver under test reads them through its `--proc-root`, `--sys-root` and `--dev-root`. Capability files appear and
vanish with the instances, before the NVML call that made them returns, as the kernel module does it. Device nodes are
real character devices where the process may make them, and plain files elsewhere. Only files belong here, no MIG rules.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import shutil
import stat
import struct
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tesela.core.errors import StartError
from tesela.edge.simulator.gpu import MAX_COMPUTE_INSTANCES, Process
from tesela.edge.simulator.machine import Machine
from tesela.edge.simulator.models import MAX_GPU_INSTANCES, load_model
from tesela.edge.simulator.spec import MAX_GPUS
from tesela.edge.simulator.state import GpuState, MachineState

NVIDIA_MAJOR: Final = 195
CONTROL_MINOR: Final = 255
CONFIG_CAPABILITY_MINOR: Final = 1
MONITOR_CAPABILITY_MINOR: Final = 2
_MARK: Final = ".tesela-host-tree"
_PARTS: Final = ("proc", "sys", "dev", ".new")
_BAR0_BASE: Final = 0xC000_0000
_BAR0_BYTES: Final = 16 << 20
_BAR1_BASE: Final = 1 << 40
_BAR3_BYTES: Final = 32 << 20
_CONFIG_MODE: Final = 0o400
_CAPABILITY_MODE: Final = 0o444
"""Whoever holds the node of an instance may use it; only root may change the partitions."""


@dataclass(frozen=True, slots=True)
class _File:
    text: str


@dataclass(frozen=True, slots=True)
class _Bytes:
    data: bytes


@dataclass(frozen=True, slots=True)
class _Link:
    target: str


@dataclass(frozen=True, slots=True)
class _Device:
    major: int
    minor: int
    mode: int = 0o666


_Entry = _File | _Bytes | _Link | _Device


def gpu_instance_capability_minor(gpu_minor: int, gi_id: int) -> int:
    """The minor under nvidia-caps of a GPU instance: config 1, monitor 2, then 9 per instance, 135 per GPU."""
    return 3 + 9 * MAX_GPU_INSTANCES * gpu_minor + 9 * gi_id


def compute_instance_capability_minor(gpu_minor: int, gi_id: int, ci_id: int) -> int:
    """The minor under nvidia-caps of a compute instance: it follows its GPU instance's."""
    return gpu_instance_capability_minor(gpu_minor, gi_id) + 1 + ci_id


class HostTree:
    """Writes `machine` below `root` (`proc`, `sys`, `dev`) and follows every change of it.

    `make_nodes`: None makes character devices where the process has the right, False never. An earlier tree below
    `root` is replaced, and this one locked until `close`, or until nobody has it and its machine any more. StartError:
    `root` holds something else, or another simulator keeps it. OSError: `root` cannot be written.
    """

    def __init__(self, root: Path, machine: Machine, *, make_nodes: bool | None = None) -> None:
        self.root = root
        self.caps_major, self.uvm_major = _free_majors()
        self._lock = threading.Lock()
        self._names = itertools.count()
        self._written: dict[str, dict[str, _Entry]] = {}
        self._let_go = weakref.finalize(self, os.close, _take_mark(root))
        _clear(root)
        self.makes_nodes = self._can_make_nodes() if make_nodes is None else make_nodes
        state = machine.snapshot()
        self._restarted(state)
        for gpu in state.gpus:
            self._gpu_changed(gpu)
        machine.on_restart.append(self._restarted)
        machine.on_change.append(self._gpu_changed)

    def close(self) -> None:
        """Lets another simulator have the tree; it stays as it is."""
        self._let_go()

    def _gpu_changed(self, gpu: GpuState) -> None:
        self._write(gpu.uuid, dict(_gpu_entries(gpu, self.caps_major)))

    def _restarted(self, state: MachineState) -> None:
        entries = dict(_machine_entries(state, self.caps_major, self.uvm_major))
        # A reloaded module shows as a new directory, so it is made anew even where its files stay equal. The old one is
        # kept aside: a file system gives a freed inode number to the next directory, and sysfs never does.
        module = self.root / "sys/module/nvidia"
        with self._lock:
            if module.exists():
                module.rename(self.root / ".new" / f"module-{module.stat().st_ino}")
            written = self._written.get("", {})
            self._written[""] = {path: e for path, e in written.items() if not path.startswith("sys/module/")}
        self._write("", entries)

    def _write(self, owner: str, wanted: dict[str, _Entry]) -> None:
        with self._lock:
            written = self._written.get(owner, {})
            for path in written.keys() - wanted.keys():
                # Minors move between GPUs: what another owner has written there by now is not ours to remove.
                if not any(path in entries for other, entries in self._written.items() if other != owner):
                    self._remove(path)
            for path, entry in wanted.items():
                if written.get(path) != entry:
                    self._put(path, entry)
            self._written[owner] = wanted

    def _put(self, path: str, entry: _Entry) -> None:
        target, fresh = self.root / path, self.root / ".new" / str(next(self._names))
        match entry:
            case _File(text):
                fresh.write_text(text, encoding="utf-8")
            case _Bytes(data):
                fresh.write_bytes(data)
            case _Link(link):
                fresh.symlink_to(link)
            case _Device(major, minor, mode) if self.makes_nodes:
                os.mknod(fresh, stat.S_IFCHR | mode, os.makedev(major, minor))
                fresh.chmod(mode)
            case _Device():
                fresh.touch()
        try:
            fresh.replace(target)
        except FileNotFoundError:
            target.parent.mkdir(parents=True)
            fresh.replace(target)

    def _remove(self, path: str) -> None:
        (self.root / path).unlink(missing_ok=True)
        folder = path.rpartition("/")[0]
        while "/" in folder:
            try:
                (self.root / folder).rmdir()
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                return
            folder = folder.rpartition("/")[0]

    def _can_make_nodes(self) -> bool:
        probe = self.root / ".new" / "probe"
        try:
            os.mknod(probe, stat.S_IFCHR | _CONFIG_MODE, os.makedev(1, 3))
        except PermissionError:
            return False
        probe.unlink()
        return True


def _take_mark(root: Path) -> int:
    """An open descriptor of the tree's mark, locked: a lock that ends with its process, however that dies."""
    # Whole folders called proc, sys and dev are going to be removed: only where an earlier tree of ours left its mark.
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()) and not (root / _MARK).exists():
        raise StartError(f"{root} is not empty and holds no earlier stand-in tree; give an empty folder")
    mark = os.open(root / _MARK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(mark)
        raise StartError(f"another simulator keeps {root}; stop it or choose another folder") from error
    except OSError:
        os.close(mark)
        raise
    return mark


def _clear(root: Path) -> None:
    for part in _PARTS:
        if (root / part).exists():
            shutil.rmtree(root / part)
        (root / part).mkdir()


def _machine_entries(state: MachineState, caps_major: int, uvm_major: int) -> Iterator[tuple[str, _Entry]]:
    version = state.driver_version
    banner = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  (simulated)\nGCC version:  none\n"
    files = {
        "proc/driver/nvidia/version": banner,
        "proc/driver/nvidia/params": "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n",
        "proc/driver/nvidia/capabilities/mig/config": _capability(CONFIG_CAPABILITY_MINOR, _CONFIG_MODE),
        "proc/driver/nvidia/capabilities/mig/monitor": _capability(MONITOR_CAPABILITY_MINOR, _CAPABILITY_MODE),
        "proc/driver/nvidia-caps/mig-minors": _mig_minors(),
        "proc/devices": _devices(caps_major, uvm_major),
        "proc/modules": "nvidia_uvm 1830912 0 - Live 0x0000000000000000\n"
        "nvidia 103239680 1 nvidia_uvm, Live 0x0000000000000000\n",
        "proc/sys/kernel/random/boot_id": f"{state.boot_id}\n",
        "sys/module/nvidia/version": f"{version}\n",
        "sys/module/nvidia/initstate": "live\n",
        "sys/module/nvidia/refcnt": "1\n",
    }
    for path, text in files.items():
        yield path, _File(text)
    yield "dev/nvidiactl", _Device(NVIDIA_MAJOR, CONTROL_MINOR)
    yield "dev/nvidia-uvm", _Device(uvm_major, 0)
    yield "dev/nvidia-uvm-tools", _Device(uvm_major, 1)
    yield _capability_node(CONFIG_CAPABILITY_MINOR), _Device(caps_major, CONFIG_CAPABILITY_MINOR, _CONFIG_MODE)
    yield _capability_node(MONITOR_CAPABILITY_MINOR), _Device(caps_major, MONITOR_CAPABILITY_MINOR, _CAPABILITY_MODE)


def _gpu_entries(gpu: GpuState, caps_major: int) -> Iterator[tuple[str, _Entry]]:
    if gpu.presence == "absent":
        return
    address = gpu.pci_bus_id[-12:].lower()
    yield f"proc/driver/nvidia/gpus/{address}/information", _File(_information(gpu, address))
    yield f"dev/nvidia{gpu.minor}", _Device(NVIDIA_MAJOR, gpu.minor)
    yield from _pci_entries(gpu, address)
    for instance in gpu.instances:
        folder = f"proc/driver/nvidia/capabilities/gpu{gpu.minor}/mig/gi{instance.gi_id}"
        paths = {f"{folder}/access": gpu_instance_capability_minor(gpu.minor, instance.gi_id)}
        for compute in instance.compute_instances:
            minor = compute_instance_capability_minor(gpu.minor, instance.gi_id, compute.ci_id)
            paths[f"{folder}/ci{compute.ci_id}/access"] = minor
        for path, minor in paths.items():
            yield path, _File(_capability(minor, _CAPABILITY_MODE))
            yield _capability_node(minor), _Device(caps_major, minor, _CAPABILITY_MODE)
    for process in gpu.processes:
        yield from _process_entries(process, gpu)


def _pci_entries(gpu: GpuState, address: str) -> Iterator[tuple[str, _Entry]]:
    if gpu.pcie_root is None:
        # Where the root is unknown the link does not lead through one, as in some virtual machines.
        device = f"devices/platform/{address}"
    else:
        bridge = f"{gpu.pcie_root.removeprefix('pci')}:01.0"
        device = f"devices/{gpu.pcie_root}/{bridge}/{address}"
    numa_node = -1 if gpu.numa_node is None else gpu.numa_node
    texts = {"numa_node": str(numa_node), "vendor": "0x10de", "class": "0x030200"}
    texts["device"] = f"0x{gpu.pci_device_id:04x}"
    texts["resource"] = "\n".join(f"0x{start:016x} 0x{end:016x} 0x{flags:016x}" for start, end, flags in _bars(gpu))
    for name, text in texts.items():
        yield f"sys/{device}/{name}", _File(f"{text}\n")
    yield f"sys/{device}/config", _Bytes(_configuration_space(gpu))
    yield f"sys/bus/pci/devices/{address}", _Link(f"../../../{device}")
    yield f"sys/bus/pci/drivers/nvidia/{address}", _Link(f"../../../../{device}")
    yield f"sys/{device}/driver", _Link(f"{'../' * (device.count('/') + 1)}bus/pci/drivers/nvidia")


def _bars(gpu: GpuState) -> Iterator[tuple[int, int, int]]:
    """First address, last address and flags (Linux's ioport.h) of six BARs, the ROM and a bridge's six windows.

    BAR 0 holds the registers, BAR 1 the whole memory (its size a power of two), BAR 3 more registers; BARs 1 and 3 are
    64 bits wide, so that 2 and 4 are empty.
    """
    memory_bytes = load_model(gpu.model).board_memory_bytes
    bars = {
        0: (_BAR0_BASE + gpu.minor * _BAR0_BYTES, _BAR0_BYTES, 0x40200),
        1: (_BAR1_BASE * (1 + gpu.minor), 1 << (memory_bytes - 1).bit_length(), 0x14220C),
        3: (_BAR1_BASE * (1 + gpu.minor) + _BAR1_BASE // 2, _BAR3_BYTES, 0x14220C),
    }
    for number in range(13):
        start, size, flags = bars.get(number, (0, 1, 0))
        yield start, start + size - 1, flags


def _configuration_space(gpu: GpuState) -> bytes:
    """The header of PCI's configuration space, type 0, without capabilities: NVIDIA's tools look there for vGPU's."""
    memory_and_bus_master, revision, interface, subclass, display = 0x0006, 0xA1, 0x00, 0x02, 0x03
    (registers, _, _), (memory, _, _), _, (more, _, _), *_ = _bars(gpu)
    words = (registers, *_wide_bar(memory), *_wide_bar(more), 0)
    head = struct.pack("<HHHH", 0x10DE, gpu.pci_device_id, memory_and_bus_master, 0)
    kind = struct.pack("<8B", revision, interface, subclass, display, 0, 0, 0, 0)
    return (head + kind + struct.pack("<6I", *words)).ljust(256, b"\0")


def _wide_bar(address: int) -> tuple[int, int]:
    """The two words of a prefetchable BAR of 64 bits."""
    return address & 0xFFFFFFFF | 0xC, address >> 32


def _process_entries(process: Process, gpu: GpuState) -> Iterator[tuple[str, _Entry]]:
    folder = f"proc/{process.pid}"
    yield f"{folder}/comm", _File(f"{process.name[:15]}\n")
    yield f"{folder}/cmdline", _File(f"{process.name}\0")
    # One descriptor number per minor, so that a process on two GPUs keeps both.
    yield f"{folder}/fd/{10 + gpu.minor}", _Link(f"/dev/nvidia{gpu.minor}")


def _information(gpu: GpuState, address: str) -> str:
    return (
        f"Model: \t\t {gpu.product_name}\n"
        f"GPU UUID: \t {gpu.uuid}\n"
        "Bus Type: \t PCIe\n"
        f"Bus Location: \t {address}\n"
        f"Device Minor: \t {gpu.minor}\n"
        "GPU Excluded:\t No\n"
    )


def _devices(caps_major: int, uvm_major: int) -> str:
    rows = [
        (NVIDIA_MAJOR, "nvidia"),
        (NVIDIA_MAJOR, "nvidiactl"),
        (caps_major, "nvidia-caps"),
        (uvm_major, "nvidia-uvm"),
    ]
    lines = "".join(f"{major:3d} {name}\n" for major, name in [(1, "mem"), *rows])
    return f"Character devices:\n{lines}\nBlock devices:\n  7 loop\n"


@cache
def _mig_minors() -> str:
    lines = [f"config {CONFIG_CAPABILITY_MINOR}", f"monitor {MONITOR_CAPABILITY_MINOR}"]
    for gpu in range(MAX_GPUS):
        for gi in range(MAX_GPU_INSTANCES):
            lines.append(f"gpu{gpu}/gi{gi}/access {gpu_instance_capability_minor(gpu, gi)}")
            lines.extend(
                f"gpu{gpu}/gi{gi}/ci{ci}/access {compute_instance_capability_minor(gpu, gi, ci)}"
                for ci in range(MAX_COMPUTE_INSTANCES)
            )
    return "\n".join(lines) + "\n"


def _capability(minor: int, mode: int) -> str:
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"


def _capability_node(minor: int) -> str:
    return f"dev/nvidia-caps/nvidia-cap{minor}"


def _free_majors() -> tuple[int, int]:
    # A node of the stand-in tree may reach a container: its major must not belong to a driver of this machine.
    try:
        text = Path("/proc/devices").read_text(encoding="utf-8")
    except OSError:
        text = ""
    taken = {int(words[0]) for line in text.splitlines() if (words := line.split()) and words[0].isdecimal()}
    free = [major for major in range(510, 384, -1) if major not in taken]
    return free[0], free[1]
