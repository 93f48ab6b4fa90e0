"""With TESELA_SIM_DEBUG=1 the library says on stderr why there is no simulator, once for each reason."""

import pytest
from nvml import library as lib
from nvml.needs import library

pytestmark = library()

INIT = """
import ctypes
library = ctypes.CDLL("libnvidia-ml.so.1")
library.nvmlInit_v2()
"""
INIT_TWICE = f"{INIT}library.nvmlInit_v2()"
WITHOUT_DESCRIPTORS = """
import ctypes, resource
library = ctypes.CDLL("libnvidia-ml.so.1")
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
library.nvmlInit_v2()
"""

NOBODY = """
import ctypes, os
library = ctypes.CDLL("libnvidia-ml.so.1")
if os.geteuid() == 0:
    os.setuid(65534)
library.nvmlInit_v2()
"""


@pytest.fixture
def debug(monkeypatch):
    monkeypatch.setenv("TESELA_SIM_DEBUG", "1")


def list_said(program, socket_path) -> list[str]:
    """The client's stderr."""
    with lib.client(program, socket_path) as client:
        return client.communicate(timeout=60)[1].splitlines()


def test_it_is_silent_unless_asked(socket_path):
    assert list_said(INIT_TWICE, socket_path) == []


def test_0_does_not_ask_for_it(socket_path, monkeypatch):
    monkeypatch.setenv("TESELA_SIM_DEBUG", "0")
    assert list_said(INIT_TWICE, socket_path) == []


def test_a_socket_that_is_not_there(debug, socket_path):
    (said,) = list_said(INIT_TWICE, socket_path)
    assert f" {socket_path}: No such file or directory: " in said


def test_a_socket_where_nobody_listens(debug, server, socket_path):
    socket_path.rename(socket_path.with_name("left.sock"))
    server.stop()
    (said,) = list_said(INIT_TWICE, socket_path.with_name("left.sock"))
    assert "left.sock: Connection refused: " in said


def test_a_socket_of_another_user(debug, server, socket_path):
    socket_path.chmod(0)
    (said,) = list_said(NOBODY, socket_path)
    assert said.endswith(f" {socket_path}: Permission denied: run as the user who serves it, or as root")


def test_a_path_that_no_socket_can_have(debug, tmp_path):
    (said,) = list_said(INIT_TWICE, tmp_path / ("x" * 200))
    assert "TESELA_SIM_SOCKET to a shorter one" in said


def test_no_descriptor_left(debug, server, socket_path):
    (said,) = list_said(WITHOUT_DESCRIPTORS, socket_path)
    assert f" {socket_path}: Too many open files: " in said


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "closed the connection"),
        (b"nonsense, and more of it", "is no simulator"),
        (lib.OTHER_VERSIONS, "other versions of the protocol"),
    ],
    ids=["nothing", "nonsense", "other versions"],
)
def test_somebody_else_listens(answer, reason, debug, socket_path):
    with lib.answering(socket_path, answer):
        (said,) = list_said(INIT, socket_path)
    assert reason in said


def test_a_simulator_that_answers_is_no_trouble(debug, server, socket_path):
    assert list_said(INIT_TWICE, socket_path) == []
