"""What device plugins gave to the pods of this node, as the kubelet tells (PodResources v1).

One call, one connection, both gone afterwards: it is asked twice a minute. What claims give stands elsewhere in the
answer and is left out, also where it serves an extended resource.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import grpc

from tesela.core.device_plugins import PluginUse
from tesela.core.errors import TryAgain
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
        options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"unix:{self._socket}", options=options) as channel:
            stub = v1_grpc.PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]
            try:
                answer = stub.List(v1.ListPodResourcesRequest(), timeout=self._timeout_s)
            except grpc.RpcError as error:
                said = f"{error.code().name}: {error.details()}" if isinstance(error, grpc.Call) else str(error)
                raise TryAgain(f"the kubelet does not tell at {self._socket} what its pods have: {said}") from error
        return tuple(_parse(answer))


def _parse(answer: v1.ListPodResourcesResponse) -> Iterator[PluginUse]:
    for pod in answer.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                for device_id in devices.device_ids:
                    yield PluginUse(
                        resource=devices.resource_name, device_id=device_id, pod=f"{pod.namespace}/{pod.name}"
                    )
