"""A device plugin of this process, as NVIDIA's: devices called after GPUs, which the kubelet gives without our driver.

Its protocol is compiled from the published definition, since nothing of ours speaks it.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from e2e.harness import build
from e2e.harness.cluster import Cluster
from grpc_tools import protoc

PROTOCOL = "pkg/apis/deviceplugin/v1beta1/api.proto"
VERSION = "v1beta1"
SOCKET = "e2e.sock"
TIMEOUT_S = 10


class DevicePlugin:
    """Offers one `resource` per device id, from its making to `close`."""

    def __init__(self, cluster: Cluster, scratch: Path, resource: str, *device_ids: str) -> None:
        self._messages, services = _compile(scratch)
        self._devices = [self._messages.Device(ID=one, health="Healthy") for one in device_ids]
        self._ended = threading.Event()
        folder = cluster.kubelet_folder / "device-plugins"
        self._server = grpc.server(ThreadPoolExecutor(4))
        services.add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{folder / SOCKET}")
        self._server.start()
        request = self._messages.RegisterRequest(version=VERSION, endpoint=SOCKET, resource_name=resource)
        with grpc.insecure_channel(
            f"unix:{folder / 'kubelet.sock'}", options=[("grpc.default_authority", "localhost")]
        ) as channel:
            services.RegistrationStub(channel).Register(request, timeout=TIMEOUT_S, wait_for_ready=True)

    def close(self) -> None:
        """Ends it; the kubelet keeps the resource, with no device."""
        self._ended.set()
        self._server.stop(1).wait(TIMEOUT_S)

    def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
        """None of them."""
        return self._messages.DevicePluginOptions()

    def ListAndWatch(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        """All devices, well until the end."""
        yield self._messages.ListAndWatchResponse(devices=self._devices)
        self._ended.wait()

    def Allocate(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Nothing is put into the container: what counts is that the kubelet has given the device."""
        answers = [self._messages.ContainerAllocateResponse() for _ in request.container_requests]
        return self._messages.AllocateResponse(container_responses=answers)

    def GetPreferredAllocation(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Never asked for."""
        return self._messages.PreferredAllocationResponse()

    def PreStartContainer(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Never asked for."""
        return self._messages.PreStartContainerResponse()


def _compile(scratch: Path) -> tuple[Any, Any]:
    """The modules of messages and services."""
    name = "deviceplugin_api"
    (scratch / f"{name}.proto").write_text((build.copy_kubelet_protocols() / PROTOCOL).read_text())
    arguments = [f"--proto_path={scratch}", f"--python_out={scratch}", f"--grpc_python_out={scratch}"]
    assert protoc.main(["protoc", *arguments, f"{name}.proto"]) == 0
    sys.path.insert(0, str(scratch))
    try:
        return importlib.import_module(f"{name}_pb2"), importlib.import_module(f"{name}_pb2_grpc")
    finally:
        sys.path.remove(str(scratch))
