"""A man in the middle between NVML clients and a simulator: hands requests on, and answers as `Spoil` wants it.

With `keep_all` it is the recorder of `record`; with `hostile` it is the worst simulator that a client can meet.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

Spoil: TypeAlias = Callable[[bytes, bytes], tuple[list[bytes], bool]]
"""From a request and its answer (both without length words): what to send, and whether the connection goes on."""
SILENCE_S = 0.02
"""How long the silent kind of hostile answer is silent before the connection ends."""


@contextmanager
def between(upstream: Path, path: Path, spoil: Spoil) -> Iterator[None]:
    """Serves clients at `path` from the simulator at `upstream` until the end of the block."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(64)
    done = threading.Event()
    accepting = threading.Thread(target=_accept, args=(listener, upstream, spoil, done), name="proxy")
    accepting.start()
    try:
        yield
    finally:
        done.set()
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join()
        listener.close()
        path.unlink()


def _accept(listener: socket.socket, upstream: Path, spoil: Spoil, done: threading.Event) -> None:
    serving: list[threading.Thread] = []
    while not done.is_set():
        try:
            client, _ = listener.accept()
        except OSError:
            break
        serving = [thread for thread in serving if thread.is_alive()]
        serving.append(threading.Thread(target=_serve, args=(client, upstream, spoil, done), name="proxy"))
        serving[-1].start()
    for thread in serving:
        thread.join()


def _serve(client: socket.socket, upstream: Path, spoil: Spoil, done: threading.Event) -> None:
    with client, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as real:
        try:
            real.connect(str(upstream))
            while (request := _receive(client, done)) is not None:
                real.sendall(struct.pack("<I", len(request)) + request)
                answer = _receive(real, done)
                if answer is None:
                    return
                pieces, goes_on = spoil(request, answer)
                for piece in pieces:
                    client.sendall(piece)
                if not goes_on:
                    return
        except OSError:
            return  # a peer that left is nothing to a man in the middle


def _receive(connection: socket.socket, done: threading.Event) -> bytes | None:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while not poll.poll(50):
        if done.is_set():
            return None
    head = connection.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        return None
    body = connection.recv(struct.unpack("<I", head)[0], socket.MSG_WAITALL)
    return body if len(body) == struct.unpack("<I", head)[0] else None


def framed(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def keep_all(kept: dict[tuple[int, bytes], bytes]) -> Spoil:
    """Spoils nothing and notes the fullest answer to every call: a success rather than a refusal, then the longest."""

    def spoil(request: bytes, answer: bytes) -> tuple[list[bytes], bool]:
        (opcode,) = struct.unpack_from("<H", request)
        name = b""
        if opcode == 0x0060:
            (size,) = struct.unpack_from("<I", request, 8)
            name = request[12 : 12 + size]
        kept[opcode, name] = max(kept.get((opcode, name), answer), answer, key=_fullness)
        return [framed(answer)], True

    return spoil


def _fullness(answer: bytes) -> tuple[bool, int]:
    return answer[4:8] == bytes(4), len(answer)


def hostile(seed: int, *, often: float = 0.3) -> Spoil:
    """Spoils every third answer or so in one of the ways that a broken peer can; reproducible for one connection."""
    chance = random.Random(seed)

    def spoil(request: bytes, answer: bytes) -> tuple[list[bytes], bool]:
        if chance.random() > often:
            return [framed(answer)], True
        return chance.choice(_WAYS)(chance, answer)

    return spoil


def _word(chance: random.Random) -> bytes:
    return struct.pack("<I", chance.choice(WORDS))


def _noise(chance: random.Random, answer: bytes) -> tuple[list[bytes], bool]:
    return [chance.randbytes(chance.randrange(200))], False


def _flip(chance: random.Random, answer: bytes) -> tuple[list[bytes], bool]:
    at = chance.randrange(len(answer))
    return [framed(answer[:at] + bytes([answer[at] ^ 1 << chance.randrange(8)]) + answer[at + 1 :])], True


def _shorten(chance: random.Random, answer: bytes) -> tuple[list[bytes], bool]:
    return [framed(answer[: chance.randrange(len(answer))])], True


def _lengthen(chance: random.Random, answer: bytes) -> tuple[list[bytes], bool]:
    return [framed(answer + chance.randbytes(chance.randrange(1, 5000)))], True


def _lie_about_length(chance: random.Random, answer: bytes) -> tuple[list[bytes], bool]:
    return [_word(chance) + answer], False


def _answer_another(chance: random.Random, answer: bytes) -> tuple[list[bytes], bool]:
    return [framed(_word(chance) + answer[4:])], True


def _change_code(chance: random.Random, answer: bytes) -> tuple[list[bytes], bool]:
    return [framed(answer[:4] + _word(chance) + answer[8:])], True


def _change_word(chance: random.Random, answer: bytes) -> tuple[list[bytes], bool]:
    at = 8 + chance.randrange(max(1, len(answer) - 11))
    return [framed(answer[:at] + _word(chance) + answer[at + 4 :])], True


def _break_off(chance: random.Random, answer: bytes) -> tuple[list[bytes], bool]:
    return [framed(answer)[: chance.randrange(len(answer) + 4)]], False


def _trickle(chance: random.Random, answer: bytes) -> tuple[list[bytes], bool]:
    return [bytes([byte]) for byte in framed(answer)], True


def _be_silent(chance: random.Random, answer: bytes) -> tuple[list[bytes], bool]:
    threading.Event().wait(SILENCE_S)
    return [], False


def _repeat(chance: random.Random, answer: bytes) -> tuple[list[bytes], bool]:
    return [framed(answer), framed(answer)], True


WORDS = (0, 1, 2, 4, 7, 8, 96, 255, 4096, 4097, 2**16, 2**20 - 4, 2**20, 2**20 + 1, 2**31 - 1, 2**31, 2**32 - 1)
_WAYS = (
    *(_noise, _flip, _shorten, _lengthen, _lie_about_length, _answer_another),
    *(_change_code, _change_word, _change_word, _break_off, _trickle, _be_silent, _repeat),
)
