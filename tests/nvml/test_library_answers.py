"""Answers that belong to no request, or say more than was asked: UNKNOWN, and the connection is not used again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CDLL, byref, c_int

import pytest
from nvml import library as lib
from nvml.fuzz import proxy
from nvml.needs import library
from polling import until
from tesela.edge.nvml import codes

pytestmark = library()

COUNT = b"\x12\0"
"""How a request of nvmlDeviceGetCount_v2 begins."""


def another_id(answer: bytes) -> bytes:
    return proxy.framed(bytes([answer[0] ^ 1]) + answer[1:])


def id_of_the_hello(answer: bytes) -> bytes:
    return proxy.framed(bytes(3) + b"\x80" + answer[4:])


def two_answers(answer: bytes) -> bytes:
    return 2 * proxy.framed(answer)


def a_byte_after_it(answer: bytes) -> bytes:
    return proxy.framed(answer) + b"\0"


def a_byte_more_in_it(answer: bytes) -> bytes:
    return proxy.framed(answer + b"\0")


def a_byte_less_in_it(answer: bytes) -> bytes:
    return proxy.framed(answer[:-1])


def shorter_than_an_answer(answer: bytes) -> bytes:
    return proxy.framed(answer[:7])


def longer_than_any(answer: bytes) -> bytes:
    return (2**20 + 1).to_bytes(4, "little") + answer


def code_that_nvml_does_not_have(answer: bytes) -> bytes:
    return proxy.framed(answer[:4] + b"\x1f\0\0\0" + bytes(4))


SPOILED = [
    *(another_id, id_of_the_hello, two_answers, a_byte_after_it, a_byte_more_in_it, a_byte_less_in_it),
    *(shorter_than_an_answer, longer_than_any),
]


@contextmanager
def answers_spoiled(way: Callable[[bytes], bytes], library, socket_path, monkeypatch) -> Iterator[CDLL]:
    """The library, before a simulator of which every answer to one function is spoiled."""
    path = socket_path.with_name("spoiling.sock")

    def spoil(asked: bytes, answer: bytes) -> tuple[list[bytes], bool]:
        return [way(answer) if asked.startswith(COUNT) else proxy.framed(answer)], True

    monkeypatch.setenv("TESELA_SIM_SOCKET", str(path))
    with proxy.between(socket_path, path, spoil):
        assert library.nvmlInit_v2() == codes.SUCCESS
        yield library
        library.nvmlShutdown()


@pytest.fixture(params=SPOILED, ids=lambda way: way.__name__)
def spoiled(request, server, library, socket_path, monkeypatch):
    with answers_spoiled(request.param, library, socket_path, monkeypatch) as before_lies:
        yield before_lies


def test_it_is_unknown(spoiled):
    assert lib.get_count(spoiled) == codes.UNKNOWN


def test_its_connection_is_closed(spoiled, server):
    before = len(server.crowd)
    lib.get_count(spoiled)
    assert before == 1
    assert until(lambda: not server.crowd)


def test_the_next_call_is_well(spoiled, server):
    lib.get_count(spoiled)
    assert spoiled.nvmlSystemGetCudaDriverVersion_v2(byref(c_int())) == codes.SUCCESS


def test_a_code_that_nvml_does_not_have_is_unknown(server, library, socket_path, monkeypatch):
    with answers_spoiled(code_that_nvml_does_not_have, library, socket_path, monkeypatch):
        assert lib.get_count(library) == codes.UNKNOWN
