"""One connection of the server: frames whole, in pieces, several at once, too long, too slow, and left unread."""

from __future__ import annotations

import socket
import struct
import threading

import pytest
from tesela.core.errors import DocumentError
from tesela.edge.simulator.frames import FrameStream
from tesela.edge.simulator.wire import MAX_FRAME_BYTES


def framed(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


@pytest.fixture
def ends():
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    far.settimeout(10)
    with near, far:
        yield near, far


@pytest.fixture
def far(ends):
    return ends[1]


@pytest.fixture
def stream(ends):
    return FrameStream(ends[0], frame_s=10)


def test_a_whole_frame(stream, far):
    far.sendall(framed(b"hello"))
    assert stream.receive() == b"hello"


def test_an_empty_frame(stream, far):
    far.sendall(framed(b""))
    assert stream.receive() == b""


def test_frames_that_come_at_once_are_taken_one_by_one(stream, far):
    far.sendall(framed(b"one") + framed(b"two") + framed(b"three"))
    assert [stream.receive() for _ in range(3)] == [b"one", b"two", b"three"]


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_frame_in_two_pieces(stream, far, cut):
    whole = framed(b"hello")
    far.sendall(framed(b"first") + whole[:cut])
    stream.receive()
    rest = threading.Timer(0.01, far.sendall, args=(whole[cut:],))
    rest.start()
    assert stream.receive() == b"hello"
    rest.join()


def test_a_long_frame(stream, far):
    body = bytes(MAX_FRAME_BYTES)
    sender = threading.Thread(target=far.sendall, args=(framed(body),))
    sender.start()
    assert stream.receive() == body
    sender.join()


def test_a_frame_that_is_too_long_is_not_read(stream, far):
    far.sendall(struct.pack("<I", MAX_FRAME_BYTES + 1))
    with pytest.raises(DocumentError, match="at most 1048576"):
        stream.receive()


def test_a_peer_that_leaves_between_frames(stream, far):
    far.close()
    assert stream.receive() is None


def test_a_peer_that_leaves_inside_a_frame(stream, far):
    far.sendall(framed(b"hello")[:-1])
    far.close()
    with pytest.raises(ConnectionResetError):
        stream.receive()


def test_a_frame_has_its_time_as_a_whole(ends):
    near, far = ends
    stream = FrameStream(near, frame_s=0.2)
    far.sendall(framed(b"hello")[:-1])
    with pytest.raises(TimeoutError):
        stream.receive()


def test_the_next_frame_may_take_its_time_again(ends):
    near, far = ends
    stream = FrameStream(near, frame_s=0.2)
    late = threading.Timer(0.3, far.sendall, args=(framed(b"late"),))
    late.start()
    assert stream.receive() == b"late"
    late.join()


def test_an_answer_that_nobody_reads_is_given_up(ends):
    stream = FrameStream(ends[0], frame_s=0.2)
    with pytest.raises(TimeoutError):
        stream.send(bytes(MAX_FRAME_BYTES))


def test_whoever_called_is_heard_again_at_once(stream, far):
    far.sendall(framed(b"one"))
    stream.receive()
    stream.send(framed(b"answer"))
    far.sendall(framed(b"two"))
    assert stream.receive() == b"two"


def test_whoever_pauses_after_a_call_is_heard_later(stream, far):
    stream.send(framed(b"answer"))
    late = threading.Timer(0.05, far.sendall, args=(framed(b"two"),))
    late.start()
    assert stream.receive() == b"two"
    late.join()


def test_the_look_out_for_a_next_request_is_counted(stream, far):
    before_s = FrameStream.watched_s
    stream.send(framed(b"answer"))
    far.sendall(framed(b"two"))
    stream.receive()
    assert 0 < FrameStream.watched_s - before_s < 1
