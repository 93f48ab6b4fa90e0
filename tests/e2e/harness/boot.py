"""A boot of the node, as far as a sandbox can play it: everything that ends with the power ends, what is on disk stays.

The API server and etcd stand for another machine's and go on. The boot id is that of the stand-in /proc, which only the
driver reads; /run is emptied of CDI files alone, as containerd repairs what else is there.
"""

from __future__ import annotations

import contextlib
import os
import signal

from e2e.harness.driver import list_cdi_files
from e2e.harness.node import Node
from e2e.harness.processes import wait_until


def reboot(node: Node) -> None:
    """Returns when the node is ready again and the kubelet has registered the driver."""
    cluster = node.cluster
    node.driver.kill()
    for name in ("kubelet", "containerd"):
        cluster.processes[name].kill()
    wait_until("no container is left", lambda: not _kill_containers(node), timeout_s=30)
    for path in list_cdi_files(cluster):
        path.unlink()
    node.simulator.run("reboot")
    cluster.start_containerd()
    cluster.start_kubelet()
    node.driver.start()
    cluster.wait_node_ready()


def _kill_containers(node: Node) -> set[int]:
    """Those that were there."""
    found = node.cluster.sandbox.list_processes("kubepods")
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found
