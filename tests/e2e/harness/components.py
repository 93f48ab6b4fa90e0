"""The command lines and settings files of Kubernetes, etcd and containerd; pure but for `write_settings`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from e2e.harness import images
from e2e.harness.certificates import Certificates
from e2e.harness.sandbox import NODE_ADDRESS

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
ETCD_URL = "http://127.0.0.1:2379"

_CONTAINERD = """version = 3
root = "{folder}/containerd"
state = "/run/containerd"
[grpc]
address = "{socket}"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{pause}"
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true        # no CAP_SYS_RESOURCE needed
enable_cdi = true
cdi_spec_dirs = ["/var/run/cdi"]
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "{folder}/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false
"""
_CNI = {
    "cniVersion": "0.4.0",
    "name": "ptp",
    "plugins": [
        {
            "type": "ptp",
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": "10.88.0.0/16"}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where one cluster's things are and what it is called."""

    binaries: Path
    folder: Path
    certificates: Certificates
    cgroup: str
    node: str
    feature_gates: dict[str, bool] = field(default_factory=dict)

    def pki(self, name: str) -> str:
        """The path of a file of the authority."""
        return str(self.certificates.path(name))


def write_settings(settings: Settings) -> None:
    """Writes the files that the command lines name."""
    folder = settings.folder
    (folder / "cni").mkdir()
    (folder / "cni" / "10-ptp.conflist").write_text(json.dumps(_CNI))
    text = _CONTAINERD.format(folder=folder, socket=CONTAINERD_SOCKET, pause=images.PAUSE)
    (folder / "containerd.toml").write_text(text)
    (folder / "kubelet.yaml").write_text(json.dumps(render_kubelet_configuration(settings), indent=1))


def render_kubelet_configuration(settings: Settings) -> dict[str, object]:
    """KubeletConfiguration. A pod whose preparation failed is tried again after 10 to 15 s instead of 60 to 90."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{settings.cgroup}",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": settings.pki("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": settings.pki("node1.crt"),
        "tlsPrivateKeyFile": settings.pki("node1.key"),
        "oomScoreAdj": 0,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "imageGCHighThresholdPercent": 100,  # of a full disk: what is removed here nobody can pull again
        "evictionHard": {"imagefs.available": "1%", "nodefs.available": "1%", "memory.available": "100Mi"},
        "address": NODE_ADDRESS,
        "resolvConf": "",
        "volumePluginDir": str(settings.folder / "volume-plugins"),
        "syncFrequency": "10s",
        "featureGates": settings.feature_gates,
    }


def render_containerd(settings: Settings) -> list[str]:
    """containerd; it finds its shim in PATH."""
    return [f"{settings.binaries}/containerd", "-c", f"{settings.folder}/containerd.toml"]


def render_etcd(settings: Settings) -> list[str]:
    """etcd; its data need not survive the machine."""
    return [
        f"{settings.binaries}/server",
        f"--data-dir={settings.folder}/etcd",
        "--unsafe-no-fsync",
        f"--listen-client-urls={ETCD_URL}",
        f"--advertise-client-urls={ETCD_URL}",
        "--listen-peer-urls=http://127.0.0.1:2380",
    ]


def render_api_server(settings: Settings) -> list[str]:
    """kube-apiserver on the node's address and the service address, Node and RBAC authorization."""
    pki = settings.pki
    return [
        f"{settings.binaries}/kube-apiserver",
        f"--etcd-servers={ETCD_URL}",
        "--bind-address=0.0.0.0",
        f"--advertise-address={NODE_ADDRESS}",
        "--secure-port=443",
        "--enable-aggregator-routing=true",
        f"--requestheader-client-ca-file={pki('ca.crt')}",
        "--requestheader-allowed-names=kube-apiserver",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki('apiserver.crt')}",
        f"--proxy-client-key-file={pki('apiserver.key')}",
        f"--tls-cert-file={pki('apiserver.crt')}",
        f"--tls-private-key-file={pki('apiserver.key')}",
        f"--client-ca-file={pki('ca.crt')}",
        f"--service-account-key-file={pki('sa.pub')}",
        f"--service-account-signing-key-file={pki('sa.key')}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-certificate-authority={pki('ca.crt')}",
        f"--kubelet-client-certificate={pki('admin.crt')}",
        f"--kubelet-client-key={pki('admin.key')}",
        *_gates(settings),
    ]


def render_scheduler(settings: Settings) -> list[str]:
    """kube-scheduler; --v=4 says per pod why a node was not taken."""
    return [
        f"{settings.binaries}/kube-scheduler",
        f"--kubeconfig={settings.pki('scheduler.kubeconfig')}",
        "--leader-elect=false",
        "--v=4",
        *_gates(settings),
    ]


def render_controller_manager(settings: Settings) -> list[str]:
    """kube-controller-manager: claims from templates, their release, tokens, garbage collection."""
    return [
        f"{settings.binaries}/kube-controller-manager",
        f"--kubeconfig={settings.pki('controller-manager.kubeconfig')}",
        "--leader-elect=false",
        f"--service-account-private-key-file={settings.pki('sa.key')}",
        f"--root-ca-file={settings.pki('ca.crt')}",
        "--use-service-account-credentials",
        *_gates(settings),
    ]


def render_kubelet(settings: Settings) -> list[str]:
    """The kubelet, on its usual folder /var/lib/kubelet."""
    return [
        f"{settings.binaries}/kubelet",
        f"--config={settings.folder}/kubelet.yaml",
        f"--kubeconfig={settings.pki('node1.kubeconfig')}",
        f"--hostname-override={settings.node}",
        f"--node-ip={NODE_ADDRESS}",
        "--v=4",  # names every call to a driver
    ]


def _gates(settings: Settings) -> list[str]:
    gates = ",".join(f"{name}={str(on).lower()}" for name, on in sorted(settings.feature_gates.items()))
    return [f"--feature-gates={gates}"] if gates else []
