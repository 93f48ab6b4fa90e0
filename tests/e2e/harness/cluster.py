"""`Cluster`: etcd, the control plane, containerd and a kubelet, up in seconds inside a `Sandbox`, gone after `down`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc
from e2e.harness import components, images
from e2e.harness.build import HarnessError
from e2e.harness.certificates import create_certificates
from e2e.harness.components import CONTAINERD_SOCKET, Settings
from e2e.harness.processes import Process, wait_until
from e2e.harness.progress import step
from e2e.harness.sandbox import Sandbox
from tesela.core.errors import ApiError
from tesela.edge.kube.client import KubeClient
from tesela.edge.kube.config import load_config
from tesela.edge.kube.port import NODES, Json, Resource

NODE = "node1"
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", True)

_GROUP = "rbac.authorization.k8s.io"
_NAMED = {"apiVersion": f"{_GROUP}/v1", "metadata": {"name": "e2e-kubelet-reads-claims"}}
# The API server's node authorizer learns of a new pod a moment late on a busy machine. It then forbids the kubelet to
# read the pod's claim, and the kubelet tries again only with its next resync. Not what these tests are about.
_KUBELET_READS_CLAIMS: tuple[Json, ...] = (
    {
        **_NAMED,
        "kind": "ClusterRole",
        "rules": [{"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]}],
    },
    {
        **_NAMED,
        "kind": "ClusterRoleBinding",
        "roleRef": {"apiGroup": _GROUP, "kind": "ClusterRole", "name": "e2e-kubelet-reads-claims"},
        "subjects": [{"apiGroup": _GROUP, "kind": "User", "name": f"system:node:{NODE}"}],
    },
)


class Cluster:
    """One node, `node1`. The thread that calls `up` is in the cluster's network until `down`."""

    def __init__(self, binaries: Path) -> None:
        self.binaries = binaries
        self.processes: dict[str, Process] = {}

    def up(self, *, feature_gates: dict[str, bool] | None = None) -> None:
        """Starts everything and returns when the node is ready; about ten seconds."""
        self.sandbox = Sandbox()
        try:
            with step("bringing a cluster up"):
                self._up(feature_gates or {})
        except BaseException:
            self.down()
            raise

    def _up(self, feature_gates: dict[str, bool]) -> None:
        folder = self.sandbox.folder
        self.certificates = create_certificates(folder / "pki")
        self.settings = Settings(
            binaries=self.binaries,
            folder=folder,
            certificates=self.certificates,
            cgroup=self.sandbox.cgroup,
            node=NODE,
            feature_gates=feature_gates,
        )
        components.write_settings(self.settings)
        self.sandbox.join_network()
        self.start("etcd", components.render_etcd)
        self.start("containerd", components.render_containerd)
        self.start("apiserver", components.render_api_server)
        self.kube = KubeClient(load_config(str(self.certificates.path("admin.kubeconfig"))))
        self._import_images()
        wait_until("the API server is ready", lambda: self._is_up("apiserver", self._is_ready), timeout_s=60)
        self.apply(*_KUBELET_READS_CLAIMS)
        self.start("scheduler", components.render_scheduler)
        self.start("controller-manager", components.render_controller_manager)
        self.start("kubelet", components.render_kubelet)
        self.wait_node_ready()
        wait_until(
            "the default ServiceAccount exists",
            lambda: self._is_up("controller-manager", lambda: self._exists(SERVICE_ACCOUNTS, "default", "default")),
            timeout_s=60,
        )

    def down(self) -> None:
        """Ends every process and removes every trace; may be called after a failed `up`."""
        kube = getattr(self, "kube", None)
        if kube is not None:
            kube.close()
        self.sandbox.leave_network()
        self.sandbox.close()
        for process in self.processes.values():
            process.reap()

    def start(self, name: str, render: Callable[[Settings], list[str]]) -> Process:
        """Starts a component from its command line in `components`, also again after `stop`."""
        path = f"{self.binaries}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        self.processes[name] = Process(self.sandbox, name, render(self.settings), environment={"PATH": path})
        return self.processes[name]

    def stop_kubelet(self) -> None:
        """SIGTERM; containers go on."""
        self.processes["kubelet"].stop()

    def start_kubelet(self) -> None:
        """Starts the kubelet on the state that it left."""
        self.start("kubelet", components.render_kubelet)

    def stop_containerd(self) -> None:
        """SIGTERM; containers go on."""
        self.processes["containerd"].stop()

    def start_containerd(self) -> None:
        """Starts containerd on the state that it left, and returns when it answers."""
        self.start("containerd", components.render_containerd)
        wait_until("containerd answers", lambda: self._is_up("containerd", self._has_containerd), timeout_s=30)

    def kill_container(self, container_id: str) -> None:
        """SIGKILL to a container's program, behind the kubelet's back."""
        self.run([*self.ctr, "tasks", "kill", "--signal", "SIGKILL", container_id])

    def import_image(self, archive: Path) -> None:
        """Gives containerd the image of an OCI archive, such as `container_image.build_image()`; two seconds of it."""
        self.run([*self.ctr, "images", "import", "--local", archive], timeout_s=120)

    def stop_control_plane(self) -> None:
        """SIGKILL to the API server, the scheduler and the controller manager; etcd keeps every object."""
        for name in ("apiserver", "scheduler", "controller-manager"):
            self.processes[name].kill()

    def start_control_plane(self) -> None:
        """Starts the three again, and returns when the API server answers."""
        self.start("apiserver", components.render_api_server)
        wait_until("the API server is ready", lambda: self._is_up("apiserver", self._is_ready), timeout_s=60)
        self.start("scheduler", components.render_scheduler)
        self.start("controller-manager", components.render_controller_manager)

    def wait_node_ready(self, timeout_s: float = 60) -> None:
        """Returns when the node's condition Ready is True."""
        wait_until("node1 is Ready", lambda: self._is_up("kubelet", self._is_node_ready), timeout_s=timeout_s)

    @property
    def ctr(self) -> list[str | os.PathLike[str]]:
        """containerd's own command, on the kubelet's containers and images."""
        return [self.binaries / "ctr", "-a", CONTAINERD_SOCKET, "-n", "k8s.io"]

    @property
    def kubelet_folder(self) -> Path:
        """What is /var/lib/kubelet inside."""
        return self.sandbox.folder / "kubelet"

    @property
    def cdi_folder(self) -> Path:
        """What is /var/run/cdi inside."""
        return self.sandbox.folder / "run" / "cdi"

    def run(self, argv: Sequence[str | os.PathLike[str]], *, stdin: str = "", timeout_s: float = 60) -> str:
        """Runs a program inside and returns what it printed; HarnessError with its complaint where it fails."""
        done = subprocess.run(
            self.sandbox.command(argv), input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if done.returncode:
            words = " ".join(os.fspath(part) for part in argv)
            raise HarnessError(f"`{words}` ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def kubectl(self, *arguments: str, stdin: str = "", kubeconfig: Path | None = None) -> str:
        """kubectl as administrator, or with another kubeconfig. It may take longer than any --timeout given to it."""
        config = kubeconfig or self.certificates.path("admin.kubeconfig")
        return self.run([self.binaries / "kubectl", f"--kubeconfig={config}", *arguments], stdin=stdin, timeout_s=150)

    def apply(self, *objects: Json | Path) -> None:
        """Applies manifests: files, folders (a kustomization as such), or objects. Paths first, in the order given."""
        for path in (entry for entry in objects if isinstance(entry, Path)):
            flag = "-k" if (path / "kustomization.yaml").exists() else "-f"
            self.kubectl("apply", flag, str(path))
        documents = [entry for entry in objects if not isinstance(entry, Path)]
        if documents:
            body = {"apiVersion": "v1", "kind": "List", "items": documents}
            self.kubectl("apply", "-f", "-", stdin=json.dumps(body))

    def collect(self, folder: Path) -> None:
        """Copies every log and what the API server knows into `folder`, for somebody who was not there.

        Nothing, after `down`.
        """
        if not self.sandbox.folder.exists():
            return
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self.sandbox.folder / "process-logs", folder / "processes", dirs_exist_ok=True)
        pods = self.sandbox.folder / "log" / "pods"
        if pods.exists():
            shutil.copytree(pods, folder / "pods", dirs_exist_ok=True, ignore_dangling_symlinks=True)
        kinds = "pods,resourceclaims,resourceclaimtemplates,resourceslices,deviceclasses,nodes"
        commands = {
            "objects.yaml": ["get", kinds, "-A", "-o", "yaml"],
            "events.txt": ["get", "events", "-A", "--sort-by=.lastTimestamp"],
            "overview.txt": ["get", kinds, "-A", "-o", "wide"],
        }
        for name, arguments in commands.items():
            try:
                text = self.kubectl(*arguments)
            except (HarnessError, subprocess.TimeoutExpired) as error:
                text = f"{error}\n"
            (folder / name).write_text(text)

    def _import_images(self) -> None:
        socket = self.sandbox.folder / "run" / "containerd" / "containerd.sock"
        wait_until("containerd listens", lambda: self._is_up("containerd", socket.exists), timeout_s=30)
        for reference in (images.PAUSE, images.BUSYBOX):
            archive = self.sandbox.folder / "image.tar"
            images.write_image(archive, reference, ["sleep", "2147483647"])
            self.import_image(archive)

    def _has_containerd(self) -> bool:
        """Whether the kubelet's service answers, which is the last to come up: a kubelet that finds it away ends."""
        socket = self.sandbox.folder / "run" / "containerd" / "containerd.sock"
        with grpc.insecure_channel(f"unix://{socket}") as channel:
            try:
                return bool(channel.unary_unary("/runtime.v1.RuntimeService/Version")(b"", timeout=2))
            except grpc.RpcError:
                return False

    def _is_up(self, name: str, ready: Callable[[], object]) -> bool:
        """`ready()`, unless the process that should bring it about has ended: then waiting is useless."""
        process = self.processes[name]
        if not process.alive:
            raise HarnessError(f"{name} ended:\n{process.tail()}")
        return bool(ready())

    def _is_ready(self) -> bool:
        try:
            return bool(self.kube.get_server_version()) and bool(self.kube.list(NODES))
        except ApiError:
            return False

    def _is_node_ready(self) -> bool:
        try:
            conditions = self.kube.get(NODES, NODE).get("status", {}).get("conditions", [])
        except ApiError:
            return False
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

    def _exists(self, resource: Resource, name: str, namespace: str) -> bool:
        try:
            return bool(self.kube.get(resource, name, namespace))
        except ApiError:
            return False
