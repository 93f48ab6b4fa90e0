"""Which registrar sockets are another driver's of our name: two processes of tesela serve side by side in an update."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest
from namesake import Namesake
from tesela.core.model import DRIVER_NAME
from tesela.edge.kubelet.namesake import list_namesakes


def found(kubelet, *but):
    return [path.name for path in list_namesakes(DRIVER_NAME, kubelet.registry_dir, but=but)]


@pytest.mark.parametrize("file_name", ["gpu.nvidia.com-reg.sock", "gpu.nvidia.com-0b3d-reg.sock"])
def test_another_driver_of_our_name_is_found(kubelet, file_name):
    with closing(Namesake(kubelet.registry_dir, file_name=file_name)):
        assert found(kubelet) == [file_name]


def test_another_process_of_tesela_is_none(kubelet, server):
    assert server.registrar_socket.exists()
    assert found(kubelet) == []


def test_a_driver_of_another_name_is_none(kubelet):
    with closing(Namesake(kubelet.registry_dir, name="gpu.example.com")):
        assert found(kubelet) == []


def test_what_is_said_to_be_our_own_is_not_asked(kubelet):
    with closing(Namesake(kubelet.registry_dir)) as other:
        assert found(kubelet, other.socket) == []


def test_a_socket_that_nobody_serves_is_none(kubelet):
    with closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(str(kubelet.registry_dir / "gpu.nvidia.com-reg.sock"))

        assert found(kubelet) == []


def test_a_file_that_is_no_socket_is_none(kubelet):
    (kubelet.registry_dir / "gpu.nvidia.com-reg.sock").write_text("")

    assert found(kubelet) == []


def test_a_folder_that_is_not_there_has_none(kubelet):
    assert list_namesakes(DRIVER_NAME, kubelet.root / "none") == ()
