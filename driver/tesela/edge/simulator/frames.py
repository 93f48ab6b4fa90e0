"""The server's side of one connection: requests taken from it and answers given, at as few system calls as it takes.

Usually a request arrives whole and an answer leaves whole: one recv and one send on a blocking socket, no clock. Only a
peer that is slow, or that cuts its frames in pieces, costs more. What the bytes mean is in `wire`.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import ClassVar, Final

from tesela.core.errors import DocumentError
from tesela.edge.simulator.wire import LENGTH, MAX_FRAME_BYTES

_CHUNK_BYTES: Final = 65536
_TIMEVAL: Final = struct.Struct("@ll")
WATCH_S: Final = 0.0001
"""Who has just called usually calls again: so long the server looks for the next request before it sleeps.

A sleeping thread is woken tens of microseconds after its request came, longer than most calls take.
"""


class FrameStream:
    """Reads and writes frames on `connection`, which it sets up; one thread uses it.

    `frame_s`: how long the rest of a frame that has begun may take, and an answer until the peer has taken it.
    """

    watched_s: ClassVar[float] = 0.0
    """The CPU time that the streams of this process have spent looking for next requests, whatever they found."""
    _watching: ClassVar[bool] = False

    def __init__(self, connection: socket.socket, *, frame_s: float) -> None:
        self._connection = connection
        self._frame_s = frame_s
        self._rest = b""
        self._answered = False
        connection.settimeout(None)
        limit = _TIMEVAL.pack(int(frame_s), int(frame_s % 1 * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def receive(self, wait_s: float | None = None) -> bytes | None:
        """The next frame's body, or None where the peer closed between frames; None waits for it without limit.

        DocumentError: a frame longer than MAX_FRAME_BYTES. OSError: cut short, or too slow (TimeoutError).
        """
        data, self._rest = self._rest or (self._take() if wait_s is None else self._take_within(wait_s)), b""
        if len(data) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(data)
            if len(data) == LENGTH.size + length:
                return data[LENGTH.size :]
        return self._finish(data) if data else None

    def send(self, frame: bytes) -> None:
        """Sends a whole frame. OSError: the peer is gone, or does not take it in time."""
        sent = self._connection.send(frame)
        if sent < len(frame):
            try:
                self._connection.settimeout(self._frame_s)
                self._connection.sendall(frame[sent:])
            finally:
                self._connection.settimeout(None)
        self._answered = True

    def _take(self) -> bytes:
        # One connection is watched at a time: more of them would only take the interpreter from each other.
        if self._answered and not FrameStream._watching:
            FrameStream._watching = True
            began_s = time.thread_time()
            try:
                data = self._watch()
            finally:
                FrameStream.watched_s += time.thread_time() - began_s
                FrameStream._watching = False
            if data is not None:
                return data
        return self._connection.recv(_CHUNK_BYTES)

    def _take_within(self, wait_s: float) -> bytes:
        self._connection.settimeout(wait_s)
        try:
            return self._connection.recv(_CHUNK_BYTES)
        finally:
            self._connection.settimeout(None)

    def _watch(self) -> bytes | None:
        end_s = time.monotonic() + WATCH_S
        while time.monotonic() < end_s:
            try:
                return self._connection.recv(_CHUNK_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
        return None

    def _finish(self, data: bytes) -> bytes:
        """The frame that begins with `data`; what comes after it is kept for the next call."""
        end_s = time.monotonic() + self._frame_s
        try:
            pieces = bytearray(data)
            self._read_until(pieces, LENGTH.size, end_s)
            (length,) = LENGTH.unpack_from(pieces)
            if length > MAX_FRAME_BYTES:
                raise DocumentError("frame", f"{length} bytes; at most {MAX_FRAME_BYTES}")
            self._read_until(pieces, LENGTH.size + length, end_s)
        finally:
            self._connection.settimeout(None)
        self._rest = bytes(pieces[LENGTH.size + length :])
        return bytes(pieces[LENGTH.size : LENGTH.size + length])

    def _read_until(self, pieces: bytearray, count: int, end_s: float) -> None:
        while len(pieces) < count:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("the rest of a frame did not arrive in time")
            self._connection.settimeout(left_s)
            piece = self._connection.recv(_CHUNK_BYTES)
            if not piece:
                raise ConnectionResetError("the peer closed the connection inside a frame")
            pieces += piece
