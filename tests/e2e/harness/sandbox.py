"""Namespaces that hold a whole cluster: what runs in them cannot touch the machine, and dies with them.

One process, the holder, is the first of a PID namespace and keeps a mount and a network namespace open. In the mount
namespace the harness's folders stand where manifests expect them:

    FOLDER/kubelet  is /var/lib/kubelet (the rest of /var/lib stays visible)
    FOLDER/run      is /run, hence /var/run: sockets, CDI files, containerd's state
    FOLDER/log      is /var/log
    sysctls that a kubelet sets at start are plain files of ours

The network has no way out: the node is 192.168.77.1, and the API server's service address 10.96.0.1 is on it too, so
pods reach the API server as in any cluster, without kube-proxy. When the holder dies, the kernel ends every process in
its PID namespace and drops the mounts; it dies with the test process. Cgroups are the machine's: each sandbox has one
child of the root in every hierarchy, removed at the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from e2e.harness.build import HarnessError, find_program
from polling import until

NODE_ADDRESS = "192.168.77.1"
SERVICE_ADDRESS = "10.96.0.1"
_PREFIX = "tesela-e2e-"
_CLONE_NEWNET = 0x40000000
_SYSCTLS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")
_SYSCTLS_OF_KEYS = ("kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes")

# Slave, so that mounts made inside never reach the machine; shared, so that containers can have their own propagation.
_HOLDER = f"""set -eu
folder=$1
mount --make-rshared /
mkdir -p "$folder/kubelet" "$folder/run" "$folder/log" "$folder/machine-var-lib" "$folder/sysctl"
bind() {{  # in a peer group of its own, else every mount made under $2 would appear under $1 too
  mount --bind "$1" "$2"
  mount --make-private "$2"
  mount --make-shared "$2"
}}
bind "$folder/run" /run
bind "$folder/log" /var/log
bind /var/lib "$folder/machine-var-lib"
mount -t tmpfs tmpfs /var/lib
for entry in "$folder"/machine-var-lib/*; do ln -s "$entry" /var/lib/; done
rm -f /var/lib/kubelet /var/lib/cni
mkdir /var/lib/kubelet /var/lib/cni
bind "$folder/kubelet" /var/lib/kubelet
mkdir -p /run/lock /run/netns /run/cdi
for name in {" ".join(_SYSCTLS + _SYSCTLS_OF_KEYS)}; do
  if [ -e "/proc/sys/$name" ]; then
    file="$folder/sysctl/$(basename "$name")"
    cat "/proc/sys/$name" > "$file"
    mount --bind "$file" "/proc/sys/$name"
  fi
done
ip link set lo up
ip link add node type veth peer name node-peer
ip addr add {NODE_ADDRESS}/24 dev node
ip addr add {SERVICE_ADDRESS}/32 dev node
ip link set node up
ip link set node-peer up
trap '' CHLD  # ignored even after exec: the kernel reaps whatever is orphaned to the holder
echo ready
exec sleep 2147483647
"""


class Sandbox:
    """The namespaces and the folder of one cluster; `close` leaves nothing of them."""

    def __init__(self) -> None:
        sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
        self.folder.chmod(0o755)
        self.cgroup = self.folder.name
        self._machine_network = os.open("/proc/self/ns/net", os.O_RDONLY)
        try:
            self._holder, self.holder_pid = _start_holder(self.folder)
            self._own_network = os.open(f"/proc/{self.holder_pid}/ns/net", os.O_RDONLY)
            _create_cgroups(self.cgroup)
        except BaseException:
            self.close()
            raise

    def command(self, argv: Sequence[str | os.PathLike[str]]) -> list[str]:
        """`argv` as a command that runs inside."""
        nsenter = find_program("nsenter") or "nsenter"
        inside = [nsenter, "--target", str(self.holder_pid), "--mount", "--net", "--pid", "--"]
        return [*inside, *(os.fspath(part) for part in argv)]

    def join_network(self) -> None:
        """Moves the calling thread, and threads it starts from now on, into the cluster's network."""
        _set_network(self._own_network)

    def leave_network(self) -> None:
        """Moves the calling thread back."""
        _set_network(self._machine_network)

    def list_processes(self, group: str) -> set[int]:
        """The processes of one group below the sandbox's in every hierarchy, with the groups below it."""
        found: set[int] = set()
        for root in _list_hierarchies():
            for path in (root / self.cgroup / group).rglob("cgroup.procs"):
                with contextlib.suppress(OSError):  # a group that is gone by now
                    found.update(int(pid) for pid in path.read_text().split())
        return found

    def close(self) -> None:
        """Ends everything inside and removes the folder and the cgroups. May be called again."""
        holder = getattr(self, "_holder", None)
        if holder is not None and holder.poll() is None:
            os.kill(self.holder_pid, signal.SIGKILL)  # and with it everything in its PID namespace
            holder.wait(timeout=30)  # unshare, which reaps the holder
            holder.stdout.close()
        for descriptor in ("_own_network", "_machine_network"):
            if getattr(self, descriptor, None) is not None:
                os.close(getattr(self, descriptor))
                setattr(self, descriptor, None)
        _remove_cgroups(self.cgroup)
        shutil.rmtree(self.folder, ignore_errors=True)


def sweep() -> None:
    """Removes what test runs left that were killed: folders and cgroups named after a process that is gone."""
    folders = {path.name for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*")}
    cgroups = {path.name for root in _list_hierarchies() for path in root.glob(f"{_PREFIX}*-*")}
    for name in folders | cgroups:
        owner = name.removeprefix(_PREFIX).split("-", 1)[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            _remove_cgroups(name)
            shutil.rmtree(Path(tempfile.gettempdir()) / name, ignore_errors=True)


def get_child(pid: int, deadline_s: float = 10.0) -> int:
    """The first child of process `pid`, waited for."""
    children: list[str] = []

    def look() -> bool:
        with contextlib.suppress(OSError):
            children.extend(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return bool(children) or not Path(f"/proc/{pid}").exists()

    if until(look, deadline_s, 0.005) and children:
        return int(children[0])
    raise HarnessError(f"process {pid} has no child after {deadline_s:.0f} s")


def _start_holder(folder: Path) -> tuple[subprocess.Popen[str], int]:
    setpriv, unshare = find_program("setpriv") or "setpriv", find_program("unshare") or "unshare"
    spaces = ["--mount", "--net", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--propagation", "slave"]
    holder = subprocess.Popen(
        [setpriv, "--pdeathsig", "KILL", unshare, *spaces, "sh", "-c", _HOLDER, "holder", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert holder.stdout is not None
    said = []
    while (line := holder.stdout.readline()) != "ready\n":
        if not line:
            holder.wait()
            raise HarnessError(f"no namespaces for the cluster ({' '.join(said)}): root with CAP_SYS_ADMIN is needed")
        said.append(line.strip())
    return holder, get_child(holder.pid)


def _list_hierarchies() -> list[Path]:
    """The cgroup hierarchies: one of v2, or every one of v1 (and the empty v2 one that may stand beside them)."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return [root]
    return [path for path in root.iterdir() if (path / "cgroup.procs").exists() and not path.is_symlink()]


def _create_cgroups(name: str) -> None:
    """One child of every root, with the settings that a child must have before it can hold processes."""
    for root in _list_hierarchies():
        group = root / name
        group.mkdir()
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (group / setting).exists() and (root / setting).exists():
                (group / setting).write_text((root / setting).read_text())
        if root == Path("/sys/fs/cgroup"):
            controllers = (root / "cgroup.controllers").read_text().split()
            for folder in (root, group):
                (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))


def _remove_cgroups(name: str) -> None:
    """Removes the groups, leaves first; the kernel may need a moment after the last process went."""

    def remove(group: Path) -> bool:
        for folder, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
        return not group.exists()

    for root in _list_hierarchies():
        until(lambda group=root / name: remove(group), 10, 0.02)


def _set_network(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
