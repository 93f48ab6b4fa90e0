"""The service Registration: tells the kubelet who we are, at once, and hears whether it took us in."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc

from tesela.pb.pluginregistration.v1 import api_pb2 as messages
from tesela.pb.pluginregistration.v1 import api_pb2_grpc as services

PLUGIN_TYPE = "DRAPlugin"
SUPPORTED_VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
"""Names of served services; the kubelet takes the first that it knows. A name here without its service behind it would
switch that service off until the next registration."""

HEALTH_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""Named after those above where health is served. Here the kubelet's own order decides: v1 where it knows it (1.37)."""

_log = logging.getLogger(__name__)


class Registration(services.RegistrationServicer):
    """Answers from memory: the kubelet allows GetInfo one second. `on_registered` gets the outcome and the reason."""

    def __init__(self, driver_name: str, service_socket: Path, on_registered: Callable[[bool, str], None]) -> None:
        self._info = messages.PluginInfo(
            type=PLUGIN_TYPE, name=driver_name, endpoint=str(service_socket), supported_versions=SUPPORTED_VERSIONS
        )
        self._on_registered = on_registered

    def promise(self, names: Sequence[str]) -> None:
        """Names these services too, which are served; before the first call."""
        self._info.supported_versions.extend(names)

    def GetInfo(  # noqa: N802 - the protocol's name
        self, request: messages.InfoRequest, context: grpc.ServicerContext
    ) -> messages.PluginInfo:
        """Type, name, service socket, versions."""
        del request, context
        return self._info

    def NotifyRegistrationStatus(  # noqa: N802 - the protocol's name
        self, request: messages.RegistrationStatus, context: grpc.ServicerContext
    ) -> messages.RegistrationStatusResponse:
        """Never fails towards the kubelet: an error here would undo the registration."""
        del context
        if request.plugin_registered:
            _log.info("the kubelet registered %s", self._info.name)
        else:
            _log.error("the kubelet did not register %s, and will ask again: %s", self._info.name, request.error)
        try:
            self._on_registered(request.plugin_registered, request.error)
        except Exception:  # noqa: BLE001 - the last frame before gRPC
            _log.exception("what follows registration failed")
        return messages.RegistrationStatusResponse()
