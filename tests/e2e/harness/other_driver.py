"""A second driver, of this process, that promises one version of the health service: the real kubelet takes v1 of ours.

It has one device and gives containers nothing. Its sockets lie in the kubelet's folders by their path outside of the
sandbox, which is the same inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from e2e.harness.cluster import NODE, Cluster
from tesela.core.model import ClaimRef, PreparedDevice
from tesela.edge.kube.port import DEVICE_CLASSES, RESOURCE_SLICES
from tesela.edge.kubelet.port import DeviceHealth, PrepareResult
from tesela.edge.kubelet.server import KubeletServer
from wire.kubelet_fakes import FakeHealth

DEVICE = "dev-0"


class OtherDriver:
    """Serves from its making to `close`; `tell` changes the health of its device. Its class is called after it."""

    def __init__(self, cluster: Cluster, name: str, health_service: str) -> None:
        self.name = name
        self._cluster = cluster
        self._health = FakeHealth()
        self.tell(healthy=True, message="well")
        self._server = KubeletServer(
            driver_name=name,
            service=self,
            plugins_dir=cluster.kubelet_folder / "plugins",
            registry_dir=cluster.kubelet_folder / "plugins_registry",
        )
        self._server.serve_health(self._health, services=(health_service,))
        self._server.start()
        selector = {"cel": {"expression": f'device.driver == "{name}"'}}
        cluster.kube.create(DEVICE_CLASSES, {"metadata": {"name": name}, "spec": {"selectors": [selector]}})
        pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": name, "nodeName": NODE, "pool": pool, "devices": [{"name": DEVICE}]}
        cluster.kube.create(RESOURCE_SLICES, {"metadata": {"name": name}, "spec": spec})

    def tell(self, *, healthy: bool | None, message: str) -> None:
        """The device's health from now on."""
        self._health.tell(DeviceHealth(pool=NODE, device=DEVICE, healthy=healthy, message=message))

    def close(self) -> None:
        """Ends it; nothing of it stays."""
        self._cluster.kube.delete(RESOURCE_SLICES, self.name)
        self._cluster.kube.delete(DEVICE_CLASSES, self.name)
        self._server.stop(1.0)

    def prepare(self, claims: Sequence[ClaimRef], deadline_s: float) -> Mapping[str, PrepareResult]:
        """The device, without a CDI id: the pod's status shows driver, pool and device for it."""
        del deadline_s
        device = PreparedDevice(request_names=("core",), pool_name=NODE, device_name=DEVICE, cdi_device_ids=())
        return {claim.uid: (device,) for claim in claims}

    def unprepare(self, claims: Sequence[ClaimRef], deadline_s: float) -> Mapping[str, str | None]:
        """Nothing is to be done."""
        del deadline_s
        return {claim.uid: None for claim in claims}
