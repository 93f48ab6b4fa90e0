"""Character devices of NVIDIA's driver: which ones a container needs, with the numbers that this host gives them.

Numbers come from the node itself; where the tree is a stand-in whose nodes are plain files, from /proc/devices and the
driver's fixed minors. Capability numbers come from the driver's own files in /proc. There is a formula behind
them, and it is not used: a wrong minor would open another tenant's partition.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tesela.core.cdi import DeviceNode
from tesela.core.errors import StateError, TryAgain

_CONTROL_MINOR: Final = 255
_MODESET_MINOR: Final = 254
_NVIDIA_NAMES: Final = ("nvidia", "nvidia-frontend")
"""How /proc/devices calls the driver's major, now and in older releases."""
_PLAIN_MODE: Final = 0o666
_CAPABILITY_MODE: Final = 0o444
_FIELD = re.compile(r"^(\w+):\s*(\d+)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Fixed:
    """The numbers of a node that is no character device: a major by its names in /proc/devices, and a minor."""

    major_names: tuple[str, ...]
    minor: int


_OPTIONAL: Final = {
    "nvidia-uvm": _Fixed(("nvidia-uvm",), 0),
    "nvidia-uvm-tools": _Fixed(("nvidia-uvm",), 1),
    "nvidia-modeset": _Fixed(_NVIDIA_NAMES, _MODESET_MINOR),
}


class DeviceNodes:
    """The device nodes of one host; see `host.Host` for the roots."""

    def __init__(self, *, proc_root: Path, dev_root: Path, dev_root_mount: Path) -> None:
        self._proc = proc_root
        self._dev_root = dev_root
        self._dev_root_mount = dev_root_mount

    def get_gpu_node(self, minor: int) -> DeviceNode:
        """See `Host.get_gpu_node`."""
        return self._need(f"nvidia{minor}", _Fixed(_NVIDIA_NAMES, minor), f"nvidia-modprobe -c {minor}")

    def list_common_nodes(self) -> tuple[DeviceNode, ...]:
        """See `Host.list_common_nodes`."""
        control = self._need("nvidiactl", _Fixed(_NVIDIA_NAMES, _CONTROL_MINOR), "nvidia-modprobe")
        others = (self._look(name, fixed) for name, fixed in _OPTIONAL.items())
        return (control, *(node for node in others if node is not None))

    def get_capability_nodes(self, minor: int, gi_id: int, ci_id: int) -> tuple[DeviceNode, DeviceNode]:
        """See `Host.get_capability_nodes`."""
        major = self.get_capability_major()
        return (
            self._get_capability(major, f"gpu{minor}", f"gi{gi_id}"),
            self._get_capability(major, f"gpu{minor}", f"gi{gi_id}/ci{ci_id}"),
        )

    def get_capability_major(self) -> int:
        """See `Host.get_capability_major`."""
        return self._get_major(("nvidia-caps",))

    def _need(self, name: str, fixed: _Fixed, remedy: str) -> DeviceNode:
        node = self._look(name, fixed)
        if node is None:
            raise TryAgain(
                f"the host has no /dev/{name} (looked below {self._dev_root_mount}): run `{remedy}` or `nvidia-smi` on "
                "the host, or check --dev-root-mount; the kubelet tries again by itself"
            )
        return node

    def _look(self, name: str, fixed: _Fixed) -> DeviceNode | None:
        seen = self._dev_root_mount / "dev" / name
        try:
            facts = seen.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StateError(f"cannot look at {seen}: {error.strerror}: check --dev-root-mount") from error
        if not stat.S_ISCHR(facts.st_mode):
            return self._render(name, self._get_major(fixed.major_names), fixed.minor, _PLAIN_MODE)
        return DeviceNode(
            path=f"/dev/{name}",
            host_path=self._get_host_path(name),
            major=os.major(facts.st_rdev),
            minor=os.minor(facts.st_rdev),
            mode=stat.S_IMODE(facts.st_mode),
            uid=facts.st_uid,
            gid=facts.st_gid,
        )

    def _get_capability(self, major: int, gpu: str, instance: str) -> DeviceNode:
        access = self._proc / "driver/nvidia/capabilities" / gpu / "mig" / instance / "access"
        table = self._proc / "driver/nvidia-caps/mig-minors"
        try:
            fields = dict(_FIELD.findall(access.read_text(encoding="ascii")))
        except (FileNotFoundError, NotADirectoryError):
            minor = _find_in_table(table, f"{gpu}/{instance}/access")
            if minor is None:
                raise StateError(
                    f"neither {access} nor {table} tells the capability of {gpu}/{instance}, without which a container "
                    "cannot use the partition: check --proc-root and the version of the host's driver"
                ) from None
            return self._render(f"nvidia-caps/nvidia-cap{minor}", major, minor, _CAPABILITY_MODE)
        except (OSError, ValueError) as error:
            raise StateError(f"cannot read {access}: {error}: check --proc-root") from error
        if "DeviceFileMinor" not in fields:
            raise StateError(f"{access} has no DeviceFileMinor: the host's driver writes it in a way we do not know")
        minor, mode = int(fields["DeviceFileMinor"]), int(fields.get("DeviceFileMode", _CAPABILITY_MODE))
        return self._render(f"nvidia-caps/nvidia-cap{minor}", major, minor, mode)

    def _get_major(self, names: tuple[str, ...]) -> int:
        path = self._proc / "devices"
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise StateError(f"cannot read {path}: {error}: check --proc-root") from error
        for line in lines:
            words = line.split()
            if words == ["Block", "devices:"]:
                break
            if len(words) == 2 and words[1] in names and words[0].isdecimal():
                return int(words[0])
        raise StateError(
            f"{path} has no character device {' or '.join(names)}: is the nvidia kernel module loaded, and does "
            "--proc-root lead to the host's /proc?"
        )

    def _render(self, name: str, major: int, minor: int, mode: int) -> DeviceNode:
        return DeviceNode(path=f"/dev/{name}", host_path=self._get_host_path(name), major=major, minor=minor, mode=mode)

    def _get_host_path(self, name: str) -> str | None:
        return None if self._dev_root == Path("/") else str(self._dev_root / "dev" / name)


def _find_in_table(table: Path, key: str) -> int | None:
    """The minor that `mig-minors` gives to `key`, from lines like `gpu0/gi1/access 12`."""
    try:
        lines = table.read_text(encoding="ascii").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise StateError(f"cannot read {table}: {error}: check --proc-root") from error
    rows = (line.split() for line in lines)
    return next((int(row[1]) for row in rows if len(row) == 2 and row[0] == key and row[1].isdecimal()), None)
