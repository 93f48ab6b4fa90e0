"""A node as one module of scenarios needs it: some GPUs, one driver, and proof that nothing stays behind."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence

from e2e.harness.cluster import Cluster
from e2e.harness.driver import DRIVER, Driver, is_pool_complete, list_cdi_files, list_records, list_slices
from e2e.harness.identity import create_identity
from e2e.harness.processes import wait_until
from e2e.harness.simulator import Seen, Simulator
from tesela.core.errors import ApiNotFound
from tesela.edge.kube.port import RESOURCE_SLICES


class Node:
    """The simulator and the driver on the cluster's node; `arguments` are the driver's, besides those it needs."""

    def __init__(self, cluster: Cluster, name: str, gpus: str, arguments: Sequence[str] = ()) -> None:
        self.cluster = cluster
        self.gpus = gpus
        self.arguments = tuple(arguments)
        self._identity = create_identity(cluster, name)
        self._open()

    def _open(self) -> None:
        self.simulator = Simulator(self.cluster, self.gpus)
        try:
            self.driver = Driver(self.cluster, self.simulator, self._identity, *self.arguments)
            self.wait_published()
        except BaseException:
            self.close()
            raise

    def renew(self) -> None:
        """Begins anew after a scenario that failed: fresh GPUs, no record of any claim, one driver, a kubelet."""
        self.close()
        if not self.cluster.processes["kubelet"].alive:
            self.cluster.start_kubelet()
            self.cluster.wait_node_ready()
        self._open()

    def wait_published(self, timeout_s: float = 30) -> None:
        """Until the node's pool is complete."""
        wait_until("the pool is complete", lambda: is_pool_complete(self.cluster), timeout_s=timeout_s)

    def list_leftovers(self) -> list[str]:
        """What claims left behind: partitions, records, CDI files."""
        partitions = [f"partition {seen}" for seen in self.simulator.list_partitions()]
        records = [f"record {uid}" for uid in list_records(self.cluster)]
        return [*partitions, *records, *(f"CDI file {path.name}" for path in list_cdi_files(self.cluster))]

    def wait_clean(self, timeout_s: float = 30) -> None:
        """Until nothing is left of any claim."""
        with contextlib.suppress(AssertionError):
            wait_until("nothing is left", lambda: not self.list_leftovers(), timeout_s=timeout_s)
        assert self.list_leftovers() == []

    def find_partition(self, uuid: str) -> Seen:
        """The live partition with this UUID."""
        return next(seen for seen in self.simulator.list_partitions() if seen.uuid == uuid)

    def close(self) -> None:
        """Stops both and removes the driver's folder and slices, so that other GPUs can take the node."""
        for name in sorted(filter(_is_ours, self.cluster.processes)):  # drivers first: they say goodbye to the GPUs
            self.cluster.processes.pop(name).stop()
        shutil.rmtree(self.cluster.kubelet_folder / "plugins" / DRIVER, ignore_errors=True)
        for path in list_cdi_files(self.cluster):
            path.unlink()
        for one in list_slices(self.cluster):
            with contextlib.suppress(ApiNotFound):  # the kubelet removes them, too, once no driver was here for 30 s
                self.cluster.kube.delete(RESOURCE_SLICES, one["metadata"]["name"])


def _is_ours(process: str) -> bool:
    return process == "simulator" or process.startswith("driver-")
