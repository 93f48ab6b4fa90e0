"""Holds a simulator to its promise while clients misbehave: it goes on, answers in form, and keeps nothing of them."""

from __future__ import annotations

import logging
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nvml.fuzz.conversations import HELLO, MAX_FRAME_BYTES, frame
from polling import until
from tesela.edge.nvml import codes
from tesela.edge.simulator.gpu import Process
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.server import SimulatorServer

MACHINE = "a100-40gb:mig*2,h100-80gb:fabric"
ANSWER_S = 20.0
GONE_S = 12.0
"""For the threads of clients that left: a wait for an event ends within 5 s, nothing else may take that long."""
KNOWN_CODES = frozenset({*range(codes.HIGHEST_RETURN_CODE + 1), codes.UNKNOWN})


class Broken(AssertionError):
    """The simulator did what no client may make it do."""


@contextmanager
def served(path: Path) -> Iterator[SimulatorServer]:
    """A simulator at `path`; Broken: it logs an error, a thread of it ends by an exception, or is left at the end."""
    deaths: list[str] = []
    before, hook = set(threading.enumerate()), threading.excepthook
    threading.excepthook = lambda args: deaths.append(f"{args.thread and args.thread.name}: {args.exc_value!r}")
    errors = _Errors(deaths)
    logging.getLogger("tesela").addHandler(errors)
    server = SimulatorServer(build_machine(MACHINE), path)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        alive = until(lambda: not _serving(before), GONE_S)
        threading.excepthook = hook
        logging.getLogger("tesela").removeHandler(errors)
    if deaths:
        raise Broken(f"the simulator failed: {deaths}")
    if not alive:
        raise Broken(f"threads are left: {_serving(before)}")


@contextmanager
def lively(server: SimulatorServer) -> Iterator[SimulatorServer]:
    """Processes on the last GPU and Xids on all of them, so that a client meets lists that are not empty and events."""
    gpus = server.machine.visible_uuids()
    for pid in (1, 2):
        server.machine.add_process(gpus[-1], Process(pid=pid))
    done = threading.Event()

    def strike() -> None:
        while not done.wait(0.002):
            for gpu in gpus:
                server.machine.raise_xid(gpu, 31, gi_id=None, ci_id=None)

    striking = threading.Thread(target=strike, name="strike")
    striking.start()
    try:
        yield server
    finally:
        done.set()
        striking.join()


def hold_out(server: SimulatorServer, conversations: Sequence[Sequence[bytes]]) -> list[tuple[int, int]]:
    """Has every conversation, one connection each, all open at once; returns (request id, code) of every answer.

    Broken: an answer is malformed or late, a bystander's connection stops working, or a connection is not let go.
    """
    with _dial(server) as bystander:
        bystander.sendall(HELLO)
        _receive_frame(bystander)
        talkers = [_dial(server) for _ in conversations]
        answers: list[tuple[int, int]] = []
        try:
            for talker, pieces in zip(talkers, conversations, strict=True):
                answers += _list_answers(_talk(talker, b"".join(pieces)))
            # Its answer may be a fault that a conversation injected; what counts is that there is one.
            bystander.sendall(frame(0x0012, b"", 99))
            answers += _list_answers(_receive_frame(bystander))
        finally:
            for talker in talkers:
                talker.close()
    if not until(lambda: not server.crowd, GONE_S):
        raise Broken(f"{len(server.crowd)} connections are kept of clients that left")
    return answers


class _Errors(logging.Handler):
    def __init__(self, into: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._into = into

    def emit(self, record: logging.LogRecord) -> None:
        self._into.append(f"{record.getMessage()}: {record.exc_info and record.exc_info[1]!r}")


def _serving(before: set[threading.Thread]) -> list[threading.Thread]:
    return [
        thread
        for thread in threading.enumerate()
        if thread not in before and thread.name in {"sim-serve", "sim-accept"}
    ]


def _dial(server: SimulatorServer) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(ANSWER_S)
    connection.connect(str(server.path))
    return connection


def _talk(talker: socket.socket, out: bytes) -> bytes:
    """Sends `out`, ends the sending side, and returns all that comes back until the server closes."""
    talker.setblocking(False)
    received, unsent, end = bytearray(), memoryview(out), time.monotonic() + ANSWER_S
    poll = select.poll()
    sending = True
    while True:
        if sending and not unsent:
            talker.shutdown(socket.SHUT_WR)
            sending = False
        poll.register(talker, select.POLLIN | (select.POLLOUT if sending else 0))
        if time.monotonic() > end or not poll.poll(ANSWER_S * 1000):
            raise Broken(f"no end of the answers within {ANSWER_S:g} s")
        try:
            piece = talker.recv(1 << 16)
        except BlockingIOError:
            pass
        except ConnectionResetError:  # the server closed before it had read everything
            return bytes(received)
        else:
            if not piece:
                return bytes(received)
            received += piece
        try:
            unsent = unsent[talker.send(unsent) :] if sending else unsent
        except BlockingIOError:
            pass
        except BrokenPipeError:
            unsent = unsent[len(unsent) :]


def _receive_frame(connection: socket.socket) -> bytes:
    head = connection.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        raise Broken("a connection that did nothing wrong was closed")
    return head + connection.recv(struct.unpack("<I", head)[0], socket.MSG_WAITALL)


def _list_answers(received: bytes) -> list[tuple[int, int]]:
    found, at = [], 0
    while at < len(received):
        length, request_id, code = struct.unpack_from("<III", received.ljust(at + 12, b"\xff"), at)
        if not 8 <= length <= MAX_FRAME_BYTES or at + 4 + length > len(received):
            raise Broken(f"an answer of {length} bytes where {len(received) - at - 4} follow")
        if code not in KNOWN_CODES:
            raise Broken(f"the answer to request {request_id} has code {code}, which NVML does not know")
        found.append((request_id, code))
        at += 4 + length
    return found
