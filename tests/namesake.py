"""A DRA driver that is no tesela, at a registrar socket of a kubelet's registry: it answers a kubelet's question."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from tesela.core.model import DRIVER_NAME
from tesela.pb.pluginregistration.v1 import api_pb2 as messages
from tesela.pb.pluginregistration.v1 import api_pb2_grpc as services


class Namesake(services.RegistrationServicer):
    """Serves from its making to `close`, under the name of the file that NVIDIA's driver has, too."""

    def __init__(
        self, registry_dir: Path, *, name: str = DRIVER_NAME, file_name: str = f"{DRIVER_NAME}-reg.sock"
    ) -> None:
        self.socket = registry_dir / file_name
        self._info = messages.PluginInfo(
            type="DRAPlugin", name=name, endpoint="/nowhere", supported_versions=["v1.DRAPlugin"]
        )
        self._server = grpc.server(ThreadPoolExecutor(2))
        services.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()

    def GetInfo(self, request, context):  # noqa: N802 - the protocol's name
        return self._info

    def NotifyRegistrationStatus(self, request, context):  # noqa: N802 - likewise
        return messages.RegistrationStatusResponse()

    def close(self) -> None:
        self._server.stop(0).wait(10)
        self.socket.unlink(missing_ok=True)
