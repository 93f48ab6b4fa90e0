"""The host as a node driver sees it: its boot, its kernel module, its PCI tree, its device nodes, its processes.

Every root is a parameter, because the driver runs in a container and its tests on a machine without a GPU. Roots of a
node: `proc_root` and `sys_root` are the host's /proc and /sys as this process sees them; below `dev_root_mount` this
process sees the folder that the host calls `dev_root`, and in it `dev`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tesela.core.cdi import DeviceNode
from tesela.core.errors import StateError
from tesela.edge.host.devices import DeviceNodes
from tesela.edge.host.holders import Processes

_PCI_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
_BUS_ID = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")


class Host:
    """Reads only. What the host does not tell is None or empty where it is optional, else an error with a sentence."""

    def __init__(
        self,
        *,
        proc_root: Path = Path("/proc"),
        sys_root: Path = Path("/sys"),
        dev_root: Path = Path("/"),
        dev_root_mount: Path | None = None,
    ) -> None:
        self._proc = proc_root
        self._sys = sys_root
        self._nodes = DeviceNodes(proc_root=proc_root, dev_root=dev_root, dev_root_mount=dev_root_mount or dev_root)
        self._processes = Processes(proc_root)

    def get_boot_id(self) -> str:
        """The kernel's id of this boot. StateError where it cannot be read: reboots would go unnoticed."""
        path = self._proc / "sys/kernel/random/boot_id"
        try:
            boot_id = path.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise StateError(f"cannot read the boot id from {path}: {error}: check --proc-root") from error
        if not boot_id:
            raise StateError(f"{path} is empty, so a reboot could not be noticed: check --proc-root")
        return boot_id

    def get_module_token(self) -> str:
        """A text that changes when the nvidia kernel module is loaded anew within a boot; empty while it is not loaded.

        It is the inode of /sys/module/nvidia: sysfs numbers every entry once per boot and never twice. Times would be
        no proof, sysfs makes them up when an entry is looked at.
        """
        try:
            return str((self._sys / "module/nvidia").stat().st_ino)
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except OSError as error:
            raise StateError(f"cannot look at {self._sys}/module/nvidia: {error.strerror}: check --sys-root") from error

    def get_pcie_root(self, bus_id: str) -> str | None:
        """The PCIe root complex of a device, as in `pci0000:64`; None where sysfs does not show one."""
        folder = self._find_pci_device(bus_id)
        if folder is None:
            return None
        return next((part for part in folder.resolve().parts if _PCI_ROOT.fullmatch(part)), None)

    def get_numa_node(self, bus_id: str) -> int | None:
        """The device's NUMA node; None where the firmware does not tell (the kernel says -1)."""
        folder = self._find_pci_device(bus_id)
        if folder is None:
            return None
        try:
            node = int((folder / "numa_node").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None  # not every kernel is built with NUMA
        return node if node >= 0 else None

    def get_gpu_node(self, minor: int) -> DeviceNode:
        """/dev/nvidia<minor>. TryAgain where the host has no such node (yet)."""
        return self._nodes.get_gpu_node(minor)

    def list_common_nodes(self) -> tuple[DeviceNode, ...]:
        """/dev/nvidiactl (TryAgain where it is missing) and what exists of nvidia-uvm, -uvm-tools and -modeset."""
        return self._nodes.list_common_nodes()

    def get_capability_nodes(self, minor: int, gi_id: int, ci_id: int) -> tuple[DeviceNode, DeviceNode]:
        """The nodes under /dev/nvidia-caps of a GPU instance and its compute instance on GPU `minor`.

        They need not exist on the host. StateError where the host's tables have no number for them.
        """
        return self._nodes.get_capability_nodes(minor, gi_id, ci_id)

    def get_capability_major(self) -> int:
        """The major of `nvidia-caps` in /proc/devices. StateError where it is not there."""
        return self._nodes.get_capability_major()

    def list_gpu_holders(self, minor: int) -> tuple[str, ...]:
        """Processes with /dev/nvidia<minor> open, each as `name (pid 123)`, this process left out; bounded in time."""
        return self._processes.list_holders((f"/dev/nvidia{minor}",))

    def list_node_holders(self, nodes: Sequence[DeviceNode]) -> tuple[str, ...]:
        """Processes with any of these nodes open, as `list_gpu_holders`."""
        return self._processes.list_holders([node.path for node in nodes])

    def get_command(self, pid: int) -> str:
        """`name (pid 123)`; without the name where the process is gone."""
        return self._processes.get_command(pid)

    def _find_pci_device(self, bus_id: str) -> Path | None:
        """The sysfs entry of a bus id; NVML writes the domain with eight digits and upper case, sysfs with four."""
        match = _BUS_ID.fullmatch(bus_id.lower())
        if match is None:
            return None
        folder = self._sys / "bus/pci/devices" / f"{int(match[1], 16):04x}:{match[2]}"
        return folder if folder.exists() else None
