"""The whole node program in this process, over a world's folders: its threads, sockets, files and slices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from node_program import PUBLISHED_S, make_program, open_watched
from node_world import DRIVER, POOL
from tesela.edge.kube.port import RESOURCE_SLICES
from tesela.plugin.main import Plugin


class Program:
    """A world whose claims the program serves. `close` ends the program where one runs."""

    def __init__(self, folder: Path, gpus: str) -> None:
        self.world, settings = make_program(folder, gpus)
        self._settings = replace(settings, plugins_dir=folder / "plugins")  # the state of the world's own driver
        self.plugin: Plugin | None = None

    def start(self, kube: Any = None, *, published: bool = True) -> Plugin:
        """A new process: it looks, recovers, serves, and has published. StartError as the process has it."""
        nvml = open_watched(self.world, self._settings)
        self.plugin = Plugin(self._settings, kube or self.world.kube, nvml)
        self.plugin.start()
        self.world.node = self.plugin.node
        if published:
            assert self.plugin.publisher.published.wait(PUBLISHED_S)
        self.plugin._parts.recovery.join(PUBLISHED_S)
        return self.plugin

    def list_taints(self) -> dict[str, set[str]]:
        """The keys of the published taints, by device."""
        selector = f"spec.driver={DRIVER},spec.nodeName={POOL}"
        return {
            device["name"]: {taint["key"] for taint in device.get("taints", ())}
            for one in self.world.kube.list(RESOURCE_SLICES, field_selector=selector).items
            for device in one["spec"].get("devices", ())
        }

    def close(self) -> None:
        """Ends it."""
        if self.plugin is not None:
            assert self.plugin.stop() == 0
            self.plugin = None
