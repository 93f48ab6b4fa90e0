"""A driver instance on real Unix sockets."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from tesela.core.model import DRIVER_NAME
from tesela.edge.kubelet.client import PluginClient
from tesela.edge.kubelet.server import KubeletServer
from wire.kubelet_fakes import FakeNodeService, Kubelet


@pytest.fixture
def kubelet():
    # Not tmp_path, which is long; no longer than /var/lib/kubelet, because a socket's address has 107 bytes.
    root = Path(tempfile.mkdtemp(prefix="k-", dir="/tmp"))
    found = Kubelet(root)
    found.registry_dir.mkdir()
    yield found
    shutil.rmtree(root)


@pytest.fixture
def node_service():
    return FakeNodeService()


@pytest.fixture
def make_server(kubelet, node_service):
    """Builds servers that are stopped at the end whatever happens."""
    servers: list[KubeletServer] = []

    def make(**changes) -> KubeletServer:
        arguments = {
            "driver_name": DRIVER_NAME,
            "service": node_service,
            "plugins_dir": kubelet.plugins_dir,
            "registry_dir": kubelet.registry_dir,
            "on_registered": lambda ok, error: kubelet.registered.append((ok, error)),
            "on_failure": kubelet.failures.append,
        }
        servers.append(KubeletServer(**(arguments | changes)))
        return servers[-1]

    yield make
    node_service.gate.set()
    for server in servers:
        server.stop(grace_s=5.0)


@pytest.fixture
def server(make_server):
    started = make_server()
    started.start(watch_s=0.1)
    return started


@pytest.fixture
def client(server):
    with PluginClient(server.registrar_socket) as opened:
        opened.register()
        yield opened
