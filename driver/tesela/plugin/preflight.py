"""What must be right around the driver before it touches a GPU: folders, its root, the API server, no driver beside it.

What no wait can mend ends the start with one line. What an operator can mend meanwhile is waited for, as the GPU driver
is: one line in the log, the same in /readyz, and a last one when the limit is over.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Final

from tesela.core.errors import ApiError, ApiNotFound, StartError
from tesela.core.model import DRIVER_NAME
from tesela.core.slices.state import is_v1_version
from tesela.edge.host.folders import make_writable
from tesela.edge.host.kubelets import is_whole_user_namespace
from tesela.edge.kube.port import RESOURCE_SLICES, Kube
from tesela.edge.kubelet.namesake import list_namesakes
from tesela.edge.store.locks import FileLocks
from tesela.plugin.config import PluginConfig
from tesela.plugin.deadline import Deadline

log = logging.getLogger(__name__)

_PERIOD_S: Final = 2.0
_SAY_EVERY_S: Final = 60.0


def check_host(config: PluginConfig, *, rootless: Callable[[], bool] = lambda: not is_whole_user_namespace()) -> None:
    """StartError: a folder of the host is missing or cannot be written, or root here is not the host's root."""
    if not config.registry_dir.is_dir():
        raise StartError(
            f"{config.registry_dir} is no folder here: mount the kubelet's plugins_registry at its own path, and where "
            "the kubelet has another --root-dir, give it as --kubelet-root"
        )
    for folder, what in (
        (config.registry_dir, "the kubelet's registry of plugins"),
        (config.state_dir, "the driver's own folder, below --plugins-dir"),
        (config.cdi_dir, "the folder of CDI files, --cdi-dir"),
    ):
        if why := make_writable(folder):
            raise StartError(f"cannot write into {folder}, {what}: {why}; mount the host's folder there, writable")
    if config.nvml == "real" and rootless():
        raise StartError(
            "root in this process is not the host's root (it runs in a user namespace), and only that may partition a "
            "GPU: run the kubelet as the host's root, not rootless, and the pod without hostUsers: false"
        )


class Preflight:
    """What is waited for before the GPU driver. `tell` hears each time what that is, for /readyz."""

    def __init__(self, config: PluginConfig, kube: Kube, tell: Callable[[str], None]) -> None:
        self._config = config
        self._kube = kube
        self._tell = tell

    def wait(self, stop: threading.Event, *, period_s: float = _PERIOD_S) -> bool:
        """True once nothing is in the way; False: `stop` was set. StartError: `driver_wait_s` are over."""
        deadline = Deadline.after(self._config.driver_wait_s)
        said, due = "", Deadline.after(0)
        while not stop.is_set():
            obstacle = next(self.list_obstacles(), "")
            if not obstacle:
                return True
            if not deadline.left_s:
                raise StartError(f"gave up after {self._config.driver_wait_s:.0f} s: {obstacle}")
            self._tell(obstacle)
            if obstacle != said or not due.left_s:
                log.warning("waiting, %.0f s left: %s", deadline.left_s, obstacle)
                said, due = obstacle, Deadline.after(_SAY_EVERY_S)
            stop.wait(min(period_s, deadline.left_s))
        return False

    def list_obstacles(self) -> Iterator[str]:
        """Sentences, found one after the other."""
        yield from _list_missing_folders(self._config)
        yield from list_other_drivers(self._config, but=())
        yield from _list_api_obstacles(self._kube, self._config.node_name)


def list_other_drivers(config: PluginConfig, *, but: tuple[Path, ...]) -> Iterator[str]:
    """A sentence for each driver of our name that serves this node and is no tesela; `but` are our own sockets.

    None while another process of tesela publishes here: one of a release that does not tell what it is would be taken
    for another driver, and would not end before this process is ready. Whoever else is there is found when it has.
    """
    if FileLocks(config.state_dir).publisher_lock().is_held_elsewhere():
        return
    for path in list_namesakes(DRIVER_NAME, config.registry_dir, but=but):
        yield (
            f"another driver of the name {DRIVER_NAME} serves this node at {path}: remove it from this node (NVIDIA's "
            "is the DaemonSet of its chart's kubelet plugin), or keep this one off the node"
        )


def _list_missing_folders(config: PluginConfig) -> Iterator[str]:
    for folder, flag in (
        (config.proc_root, "--proc-root"),
        (config.sys_root, "--sys-root"),
        (config.dev_root_mount / "dev", "--dev-root-mount"),
    ):
        if not folder.is_dir():
            yield f"{folder} is no folder here: mount the host's there, or point {flag} at it"


def _list_api_obstacles(kube: Kube, node_name: str) -> Iterator[str]:
    """An API server that does not answer is none: claims are given back without it, and the publisher waits for it."""
    try:
        kube.list(RESOURCE_SLICES, field_selector=f"spec.driver={DRIVER_NAME},spec.nodeName={node_name}")
    except ApiNotFound:
        yield _describe_no_dra(kube)
    except ApiError as error:
        if error.status == HTTPStatus.UNAUTHORIZED:
            yield f"the API server does not know who this is ({error}): check the ServiceAccount or --kubeconfig"
        elif error.status == HTTPStatus.FORBIDDEN:
            yield f"the API server does not let this driver list ResourceSlices ({error}): apply its RBAC objects"
        else:
            log.warning("whether the API server serves what this driver needs is found out later: %s", error)


def _describe_no_dra(kube: Kube) -> str:
    try:
        version = kube.get_server_version()
    except ApiError as error:
        version = f"of unknown version: {error}"
    missing = f"the API server ({version}) does not serve resource.k8s.io/v1"
    if is_v1_version(version):
        return (
            f"{missing}: it was switched off there; set --feature-gates=DynamicResourceAllocation=true and "
            "--runtime-config=resource.k8s.io/v1=true"
        )
    return f"{missing}: tesela needs Kubernetes 1.34 or later; upgrade the control plane, then the kubelets"
