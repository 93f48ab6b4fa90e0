"""What device plugins and claims gave to the pods of this node, as the kubelet tells (PodResources v1).

One call, one connection, both gone afterwards: it is asked twice a minute. What claims give stands elsewhere in the
answer than what device plugins do, also where it serves an extended resource.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import grpc

from tesela.core.cdi import CDI_KIND
from tesela.core.device_plugins import PluginUse
from tesela.core.errors import TryAgain
from tesela.core.model import DRIVER_NAME, ClaimRef
from tesela.pb.podresources.v1 import api_pb2 as v1
from tesela.pb.podresources.v1 import api_pb2_grpc as v1_grpc

_TIMEOUT_S: Final = 5.0


class PodResources:
    """The kubelet behind `socket`."""

    def __init__(self, socket: Path, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._socket = socket
        self._timeout_s = timeout_s

    def list_plugin_uses(self) -> tuple[PluginUse, ...]:
        """Every device of every device plugin that an active pod has. TryAgain: the kubelet does not tell."""
        return tuple(_parse(self._list()))

    def list_claims(self) -> tuple[ClaimRef, ...]:
        """The claims of this driver that active pods have, with their UIDs. TryAgain: the kubelet does not tell.

        A claim's UID stands in the ids of its CDI devices, in NVIDIA's driver's as in ours.
        """
        return tuple(dict.fromkeys(_parse_claims(self._list())))

    def _list(self) -> v1.ListPodResourcesResponse:
        options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"unix:{self._socket}", options=options) as channel:
            stub = v1_grpc.PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]
            try:
                answer: v1.ListPodResourcesResponse = stub.List(v1.ListPodResourcesRequest(), timeout=self._timeout_s)
            except grpc.RpcError as error:
                said = f"{error.code().name}: {error.details()}" if isinstance(error, grpc.Call) else str(error)
                raise TryAgain(f"the kubelet does not tell at {self._socket} what its pods have: {said}") from error
        return answer


def _parse(answer: v1.ListPodResourcesResponse) -> Iterator[PluginUse]:
    for pod in answer.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                for device_id in devices.device_ids:
                    yield PluginUse(
                        resource=devices.resource_name, device_id=device_id, pod=f"{pod.namespace}/{pod.name}"
                    )


def _parse_claims(answer: v1.ListPodResourcesResponse) -> Iterator[ClaimRef]:
    for pod in answer.pod_resources:
        for container in pod.containers:
            for claim in container.dynamic_resources:
                for resource in claim.claim_resources:
                    if resource.driver_name != DRIVER_NAME:
                        continue
                    for uid in _parse_uids(resource):
                        yield ClaimRef(namespace=claim.claim_namespace, name=claim.claim_name, uid=uid)


def _parse_uids(resource: v1.ClaimResource) -> Iterator[str]:
    """Of `k8s.gpu.nvidia.com/claim=<UID>-<device>`."""
    for device in resource.cdi_devices:
        kind, _, name = device.name.partition("=")
        uid = name.removesuffix(f"-{resource.device_name}")
        if kind == CDI_KIND and uid != name:
            yield uid
