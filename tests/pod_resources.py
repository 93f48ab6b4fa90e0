"""A kubelet that tells what device plugins gave to its pods, on a socket as the real one's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from tesela.pb.podresources.v1 import api_pb2 as v1
from tesela.pb.podresources.v1 import api_pb2_grpc as v1_grpc


class FakePodResources(v1_grpc.PodResourcesListerServicer):
    """Answers with `pods`; `give` adds one with one container."""

    def __init__(self, socket: Path) -> None:
        self.pods: list[v1.PodResources] = []
        self._server = grpc.server(ThreadPoolExecutor(2))
        v1_grpc.add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{socket}")
        self._server.start()

    def give(self, pod: str, resource: str, *device_ids: str) -> None:
        devices = v1.ContainerDevices(resource_name=resource, device_ids=device_ids)
        container = v1.ContainerResources(name="main", devices=[devices])
        self.pods.append(v1.PodResources(name=pod, namespace="team", containers=[container]))

    def claim(self, pod: str, device: str) -> None:
        """A pod that has a device by a claim."""
        resource = v1.ClaimResource(driver_name="gpu.nvidia.com", pool_name="node-1", device_name=device)
        dynamic = v1.DynamicResource(claim_name="c", claim_namespace="team", claim_resources=[resource])
        container = v1.ContainerResources(name="main", dynamic_resources=[dynamic])
        self.pods.append(v1.PodResources(name=pod, namespace="team", containers=[container]))

    def List(self, request, context):  # noqa: N802 - the protocol's name
        return v1.ListPodResourcesResponse(pod_resources=self.pods)

    def stop(self) -> None:
        self._server.stop(0).wait(10)
