"""The node program's settings, one frozen value: read from flags and environment once, in `cli/plugin.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tesela.core.adoption import TheirPartitions
from tesela.core.driver_files import LibraryMode
from tesela.core.model import DRIVER_NAME
from tesela.edge.telemetry.logs import LogFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginConfig:
    """Where things are and how long to wait for them.

    `plugins_dir`, `registry_dir` and `cdi_dir` must have the same path here as on the host. `driver_root` and
    `dev_root` are host paths as CDI needs them; the `_mount` ones say where this process sees the same folders.
    `pod_resources` is the socket at which the kubelet tells what device plugins gave; None: it is not asked.
    `beside_device_plugin`: devices stay free while a device plugin offers the same GPUs.
    `adopted_partitions`: how NVIDIA's driver, where this one takes the node over, came by its partitions.
    `metrics_port` None: neither metrics nor probes are served; 0: on any free port. `metrics_address` "": on every one.
    """

    node_name: str
    pod_uid: str | None
    kubeconfig: str | None
    nvml: str
    policy: Path | None
    plugins_dir: Path
    registry_dir: Path
    cdi_dir: Path
    driver_root: Path
    driver_root_mount: Path
    dev_root: Path
    dev_root_mount: Path
    proc_root: Path
    sys_root: Path
    driver_wait_s: float
    nvml_timeout_s: float
    pod_resources: Path | None = None
    beside_device_plugin: bool = False
    driver_libraries: LibraryMode = LibraryMode.AUTO
    adopted_partitions: TheirPartitions = TheirPartitions.AUTO
    metrics_port: int | None = None
    metrics_address: str = ""
    traces: bool = False
    log_format: LogFormat = LogFormat.TEXT
    log_level: str = "info"

    @property
    def state_dir(self) -> Path:
        """Records, locks, roster and metadata files."""
        return self.plugins_dir / DRIVER_NAME
