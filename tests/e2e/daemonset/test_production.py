"""The overlay `production`: that its privilege is needed, and that it drives GPUs through the host's libnvidia-ml.so.1.

The GPUs are simulated behind our own such library, which lies with nvidia-smi, /proc, /sys and /dev in a tree that
stands for the host's root. So the overlay is patched: its paths, and the library's environment. Nothing else is.
"""

from __future__ import annotations

import copy
import json
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.daemonset.conftest import Summary
from e2e.harness import deployed
from e2e.harness.build import HarnessError
from e2e.harness.cluster import Cluster
from e2e.harness.deployed import Overlay
from e2e.harness.driver import is_pool_complete
from e2e.harness.pods import (
    LIST_DEVICE_NODES,
    Namespace,
    render_claim_spec,
    render_pod,
    render_request,
    render_template,
)
from e2e.harness.processes import Process, wait_until
from e2e.harness.simulator import Simulator
from e2e.harness.tesela_command import find_nvml_library, find_tesela
from tesela.core.quantity import parse_quantity
from tesela.edge.host.driver_root import NVML_LIBRARY
from tesela.edge.kube.port import Json

TAG = "0.1.0"
MIB = 1 << 20
GPUS = "h100-80gb*2"
# Nodes that every Linux host has for root, and that no container runtime allows by itself. Opening one has no effect.
STAND_INS = ("/dev/loop-control", "/dev/fuse", "/dev/kmsg")
OPEN = """
import errno, os
try:
    os.close(os.open({path!r}, os.O_RDONLY))
    print("opened")
except OSError as error:
    print(errno.errorcode[error.errno])
"""


class HostInATree(Simulator):
    """GPUs of which a driver knows by what lies below one folder, as below the root of a host."""

    def __init__(self, cluster: Cluster, gpus: str) -> None:
        self.cluster = cluster
        self.host = self.driver_root = cluster.sandbox.folder / "root"
        self.socket = self.host / "nvml.sock"
        argv = [find_tesela(), "sim", "serve", "--gpus", gpus, "--socket", self.socket, "--host-root", self.host]
        self.process = Process(cluster.sandbox, "simulator", argv)
        cluster.processes["simulator"] = self.process
        wait_until("the simulator listens", self._listens, timeout_s=20)
        library = self.host / "usr" / "lib64" / NVML_LIBRARY
        library.parent.mkdir(parents=True)
        shutil.copy(find_nvml_library(), library)

    def render_patches(self) -> list[Json]:
        """The overlay's paths on this host."""
        root = str(self.host)
        driver = {
            "name": "node-plugin",
            "args": [
                "plugin",
                "--policy=/etc/tesela/policy.yaml",
                f"--driver-root={root}",
                "--driver-root-mount=/driver-root",
                f"--dev-root={root}",
                "--dev-root-mount=/driver-root",
                "--proc-root=/host/proc",
                "--sys-root=/host/sys",
            ],
            "env": [{"name": "TESELA_SIM_SOCKET", "value": "/driver-root/nvml.sock"}],
        }
        paths = {"driver-root": root, "proc": f"{root}/proc", "sys": f"{root}/sys"}
        volumes = [{"name": name, "hostPath": {"path": path}} for name, path in paths.items()]
        patch = {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": deployed.DRIVER, "namespace": deployed.NAMESPACE},
            "spec": {"template": {"spec": {"containers": [driver], "volumes": volumes}}},
        }
        return [{"patch": json.dumps(patch)}]


def _find_stand_in() -> str:
    for path in STAND_INS:
        if Path(path).exists() and stat.S_ISCHR(Path(path).stat().st_mode):
            return path
    raise HarnessError(f"this machine has none of {', '.join(STAND_INS)}")


@pytest.fixture(scope="module")
def shipped(cluster: Cluster) -> Json:
    """The DaemonSet of the overlay as it is shipped."""
    objects = Overlay(cluster, "production").render(TAG)
    return next(one for one in objects if one["kind"] == "DaemonSet")


def _render_probe(shipped: Json, name: str, *, privileged: bool) -> Json:
    """A pod of the shipped template that tries to open a device node of the host, and ends.

    Without privilege it keeps everything else, and has every capability: what is missing is the device cgroup's leave.
    """
    spec = copy.deepcopy(shipped["spec"]["template"]["spec"])
    (container,) = spec["containers"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        del container[probe]
    container["command"] = ["python3", "-c", OPEN.format(path=_find_stand_in())]
    container["securityContext"]["privileged"] = privileged
    if not privileged:
        container["securityContext"]["capabilities"] = {"add": ["ALL"]}
    spec["volumes"] = [
        {"name": one["name"], "emptyDir": {}} if "configMap" in one else one for one in spec["volumes"]
    ]  # fmt: skip
    for outside in ("serviceAccountName", "priorityClassName"):
        del spec[outside]
    spec |= {"restartPolicy": "Never", "automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.fixture(scope="module")
def probes(cluster: Cluster, shipped: Json) -> Iterator[Namespace]:
    namespace = Namespace(cluster, "privilege")
    namespace.create({"pod-security.kubernetes.io/enforce": "privileged"})
    yield namespace
    namespace.clear()
    namespace.remove()


@pytest.mark.parametrize(("privileged", "answer"), [(False, "EPERM"), (True, "opened")])
def test_a_node_of_the_host_s_dev_opens_with_privilege_alone(
    probes: Namespace, shipped: Json, privileged: bool, answer: str, summary: Summary
) -> None:
    name = "privileged" if privileged else "unprivileged"
    before = {path.name for path in Path("/dev").iterdir()}
    probes.apply(_render_probe(shipped, name, privileged=privileged))
    probes.wait_succeeded(name)
    said = probes.logs(name, container="node-plugin").strip()
    summary.count(f"{_find_stand_in()} in the shipped pod, {name}", said)
    made = {path.name for path in Path("/dev").iterdir()} - before

    assert (said, made) == (answer, set())


@pytest.fixture(scope="module")
def host(cluster: Cluster) -> Iterator[HostInATree]:
    host = HostInATree(cluster, GPUS)
    yield host
    host.stop()


@pytest.fixture(scope="module")
def driven(cluster: Cluster, host: HostInATree, summary: Summary) -> Iterator[HostInATree]:
    """The overlay on that host."""
    overlay = Overlay(cluster, "production", host.render_patches())
    overlay.apply(TAG)
    deployed.wait_rolled_out(cluster, deployed.DRIVER)
    wait_until("the pool is complete", lambda: is_pool_complete(cluster), timeout_s=30)
    yield host
    overlay.delete()


def test_a_partition_is_cut_through_the_host_s_own_library(
    cluster: Cluster, driven: HostInATree, namespace: Namespace
) -> None:
    spec = render_claim_spec([render_request("core", profile="1g.10gb")])
    namespace.apply(render_template("one", spec), render_pod("app", templates={"gpu": "one"}))
    namespace.wait_running("app")

    shown = namespace.exec("app", LIST_DEVICE_NODES).split()

    assert set(shown) == driven.list_device_nodes(*driven.list_partitions())


def test_what_the_driver_runs_on_was_measured(cluster: Cluster, driven: HostInATree, summary: Summary) -> None:
    shipped = deployed.get_pod(cluster, deployed.DRIVER)["spec"]["containers"][0]["resources"]
    wait_until("the kubelet has measured it", lambda: deployed.read_usage(cluster, deployed.DRIVER), timeout_s=60)
    usage = deployed.read_usage(cluster, deployed.DRIVER)
    summary.count("driver's memory (working set), MiB", f"{usage.working_set_bytes / MIB:.0f}")

    assert usage.working_set_bytes <= float(parse_quantity(shipped["requests"]["memory"]))
