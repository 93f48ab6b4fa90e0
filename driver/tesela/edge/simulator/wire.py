"""Frames and values of the simulator's protocol, version 1: little-endian, length-prefixed.

docs/simulator-protocol.md describes it. A C library speaks it too, so a value is a fixed integer, a text with its
length, or a list with its count. What calls exist is in `calls`; no sockets beyond reading one frame.
"""

from __future__ import annotations

import dataclasses
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from tesela.core.errors import DocumentError

T = TypeVar("T")

MAGIC: Final = b"TSIM"
VERSION: Final = 1
MAX_FRAME_BYTES: Final = 1 << 20
"""Of everything after the length word; a longer frame ends the connection."""
MAX_LIST: Final = 4096
HELLO: Final = 0x0000
ADMIN: Final = 0x8000
NONE_U32: Final = 0xFFFFFFFF
LENGTH: Final = struct.Struct("<I")
_REQUEST: Final = struct.Struct("<HHI")
_RESPONSE: Final = struct.Struct("<II")
_RESPONSE_FRAME: Final = struct.Struct("<III")


class Request(NamedTuple):
    """One request: `opcode` names the call, `request_id` comes back with the answer."""

    opcode: int
    request_id: int
    payload: bytes


class Response(NamedTuple):
    """One answer: `code` is nvmlReturn_t; the payload is the result, or a text if the code is not SUCCESS."""

    request_id: int
    code: int
    payload: bytes


class Reader:
    """Takes values from a payload. DocumentError: it ends early, or holds what the type does not allow."""

    __slots__ = ("at", "payload")

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.at = 0

    def take(self, count: int) -> bytes:
        at, end = self.at, self.at + count
        if end > len(self.payload):
            raise DocumentError("payload", f"ends after {len(self.payload)} bytes where {end} are needed")
        self.at = end
        return self.payload[at:end]

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        """The integers of `layout`."""
        at, end = self.at, self.at + layout.size
        if end > len(self.payload):
            raise DocumentError("payload", f"ends after {len(self.payload)} bytes where {end} are needed")
        self.at = end
        return layout.unpack_from(self.payload, at)

    def finish(self) -> None:
        """DocumentError: bytes are left over."""
        if self.at != len(self.payload):
            raise DocumentError("payload", f"{len(self.payload) - self.at} bytes are left over")


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """How one type is written and read."""

    put: Callable[[bytearray, T], None]
    take: Callable[[Reader], T]


def _integer(layout: str) -> Codec[int]:
    word = struct.Struct(layout)

    def put(out: bytearray, value: int) -> None:
        try:
            out += word.pack(value)
        except struct.error as error:
            raise DocumentError("payload", f"{value} does not fit its field: {error}") from error

    def take(reader: Reader) -> int:
        return reader.unpack(word)[0]

    return Codec(put, take)


U16: Final = _integer("<H")
U32: Final = _integer("<I")
I32: Final = _integer("<i")
U64: Final = _integer("<Q")


def _put_text(out: bytearray, value: str) -> None:
    try:
        encoded = value.encode()
    except UnicodeEncodeError as error:
        raise DocumentError("payload", "a text holds half a character") from error
    U32.put(out, len(encoded))
    out += encoded


def _take_text(reader: Reader) -> str:
    try:
        return reader.take(U32.take(reader)).decode()
    except UnicodeDecodeError as error:
        raise DocumentError("payload", "a text is not UTF-8") from error


def _put_nothing(_out: bytearray, _value: None) -> None:
    return


def _take_nothing(_reader: Reader) -> None:
    return


TEXT: Final = Codec(_put_text, _take_text)
NOTHING: Final = Codec(_put_nothing, _take_nothing)


def _put_optional_id(out: bytearray, value: int | None) -> None:
    U32.put(out, NONE_U32 if value is None else value)


def _take_optional_id(reader: Reader) -> int | None:
    value = U32.take(reader)
    return None if value == NONE_U32 else value


OPTIONAL_ID: Final = Codec(_put_optional_id, _take_optional_id)
"""An instance id; NVML's own 0xFFFFFFFF means none."""


def _put_optional_value(out: bytearray, value: int | None) -> None:
    U32.put(out, 0 if value is None else 1)
    U64.put(out, value or 0)


def _take_optional_value(reader: Reader) -> int | None:
    present, value = U32.take(reader), U64.take(reader)
    return value if present else None


OPTIONAL_VALUE: Final = Codec(_put_optional_value, _take_optional_value)


def sequence(item: Codec[T]) -> Codec[tuple[T, ...]]:
    """A count, then that many items."""

    def put(out: bytearray, values: tuple[T, ...]) -> None:
        if len(values) > MAX_LIST:
            raise DocumentError("payload", f"a list of {len(values)}; at most {MAX_LIST}")
        U32.put(out, len(values))
        for value in values:
            item.put(out, value)

    def take(reader: Reader) -> tuple[T, ...]:
        count = U32.take(reader)
        if count > MAX_LIST:
            raise DocumentError("payload", f"a list of {count}; at most {MAX_LIST}")
        return tuple(item.take(reader) for _ in range(count))

    return Codec(put, take)


def pair(first: Codec[int], second: Codec[int]) -> Codec[tuple[int, int]]:
    """Two integers."""

    def put(out: bytearray, value: tuple[int, int]) -> None:
        first.put(out, value[0])
        second.put(out, value[1])

    return Codec(put, lambda reader: (first.take(reader), second.take(reader)))


def record(kind: type[T], **fields: Codec[Any]) -> Codec[T]:
    """A dataclass, its fields in the order given. The names must be exactly the class's."""
    assert {f.name for f in dataclasses.fields(kind)} == set(fields)  # type: ignore[arg-type]

    def put(out: bytearray, value: T) -> None:
        for name, codec in fields.items():
            codec.put(out, getattr(value, name))

    return Codec(put, lambda reader: kind(**{name: codec.take(reader) for name, codec in fields.items()}))


def render_request(request: Request) -> bytes:
    """The bytes of a request, length word included."""
    body = _REQUEST.pack(request.opcode, 0, request.request_id) + request.payload
    return _framed(body)


def render_response(response: Response) -> bytes:
    """The bytes of an answer, length word included."""
    length = _RESPONSE.size + len(response.payload)
    if length > MAX_FRAME_BYTES:
        raise DocumentError("frame", f"{length} bytes; at most {MAX_FRAME_BYTES}")
    return _RESPONSE_FRAME.pack(length, response.request_id, response.code) + response.payload


def parse_request(body: bytes) -> Request:
    """A request from a frame's body. DocumentError: too short, or its reserved word is not 0."""
    if len(body) < _REQUEST.size:
        raise DocumentError("frame", f"{len(body)} bytes; a request has at least {_REQUEST.size}")
    opcode, reserved, request_id = _REQUEST.unpack_from(body)
    if reserved:
        raise DocumentError("frame", "the reserved word of a request is not 0")
    return Request(opcode=opcode, request_id=request_id, payload=body[_REQUEST.size :])


def parse_response(body: bytes) -> Response:
    """An answer from a frame's body. DocumentError: too short."""
    if len(body) < _RESPONSE.size:
        raise DocumentError("frame", f"{len(body)} bytes; an answer has at least {_RESPONSE.size}")
    request_id, code = _RESPONSE.unpack_from(body)
    return Response(request_id=request_id, code=code, payload=body[_RESPONSE.size :])


def read_frame(connection: socket.socket, *, wait_s: float | None, body_s: float) -> bytes | None:
    """The next frame's body, or None where the peer closed between frames.

    Waits `wait_s` for a frame to begin (None: without limit) and `body_s` for all the rest of it. TimeoutError and
    ConnectionError as the socket raises them; DocumentError: a frame longer than MAX_FRAME_BYTES.
    """
    connection.settimeout(wait_s)
    first = connection.recv(LENGTH.size)
    if not first:
        return None
    end_s = time.monotonic() + body_s
    (length,) = LENGTH.unpack(first + _read_exactly(connection, LENGTH.size - len(first), end_s))
    if length > MAX_FRAME_BYTES:
        raise DocumentError("frame", f"{length} bytes; at most {MAX_FRAME_BYTES}")
    return _read_exactly(connection, length, end_s)


def _read_exactly(connection: socket.socket, count: int, end_s: float) -> bytes:
    pieces = bytearray()
    while len(pieces) < count:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the rest of a frame did not arrive in time")
        connection.settimeout(left_s)
        piece = connection.recv(count - len(pieces))
        if not piece:
            raise ConnectionResetError("the peer closed the connection inside a frame")
        pieces += piece
    return bytes(pieces)


def _framed(body: bytes) -> bytes:
    if len(body) > MAX_FRAME_BYTES:
        raise DocumentError("frame", f"{len(body)} bytes; at most {MAX_FRAME_BYTES}")
    return LENGTH.pack(len(body)) + body
