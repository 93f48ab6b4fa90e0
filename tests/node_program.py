"""The node program as a whole, in this process: its settings over a world's folders, sockets included."""

from __future__ import annotations

from pathlib import Path

from node_world import POOL, World, make_world
from tesela.edge.kube.port import NODES
from tesela.edge.nvml.watchdog import WatchedNvml
from tesela.edge.simulator.nvml import SimulatedNvml
from tesela.edge.store.locks import FileLocks
from tesela.edge.telemetry.port import SILENT, Telemetry
from tesela.plugin.config import PluginConfig
from tesela.plugin.main import Plugin

PUBLISHED_S = 30.0


def make_program(folder: Path, gpus: str, *, nvml_timeout_s: float = 5) -> tuple[World, PluginConfig]:
    """A world whose node is registered, and settings for a driver on it.

    `folder` has a short path: that of a Unix socket has at most 107 bytes. The driver's own state is apart from that of
    the world's driver.
    """
    world = make_world(folder, gpus)
    world.kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": POOL}})
    (folder / "registry").mkdir()
    host = folder / "host"
    return world, PluginConfig(
        node_name=POOL,
        pod_uid="pod-1",
        kubeconfig=None,
        nvml="simulated",
        policy=None,
        plugins_dir=folder / "other",
        registry_dir=folder / "registry",
        cdi_dir=folder / "cdi",
        driver_root=folder,
        driver_root_mount=folder,
        dev_root=host,
        dev_root_mount=host,
        proc_root=host / "proc",
        sys_root=host / "sys",
        driver_wait_s=0,
        nvml_timeout_s=nvml_timeout_s,
    )


def open_watched(world: World, config: PluginConfig, telemetry: Telemetry = SILENT) -> WatchedNvml:
    """NVML as a process of the driver has it: under the watchdog, its calls marked, open."""
    nvml = WatchedNvml(
        SimulatedNvml(world.machine),
        timeout_s=config.nvml_timeout_s,
        telemetry=telemetry,
        mark=FileLocks(config.state_dir).call_marks.hold,
    )
    nvml.init()
    return nvml


def start(plugin: Plugin) -> Plugin:
    """Until it has published for the first time."""
    plugin.start()
    assert plugin.publisher.published.wait(PUBLISHED_S)
    return plugin
