"""How a named call and its answer are written and read.

By hand and not from the parts in `wire`: half of all calls of a monitor come this way, and each part costs a call.
"""

from __future__ import annotations

import struct
from typing import Final

from tesela.core.errors import DocumentError
from tesela.edge.simulator.targets import NamedAnswer, NamedRequest
from tesela.edge.simulator.wire import MAX_LIST, NONE_U32, TEXT, Codec, Reader

_COUNT: Final = struct.Struct("<I")
_IDS_AND_COUNT: Final = struct.Struct("<III")
_ALL_ONES: Final = (1 << 64) - 1


def _put_request(out: bytearray, request: NamedRequest) -> None:
    TEXT.put(out, request.function)
    TEXT.put(out, request.gpu)
    gi_id, ci_id = (NONE_U32 if i is None else i for i in (request.gi_id, request.ci_id))
    numbers = request.numbers
    _check_count(len(numbers))
    try:
        out += struct.pack(f"<III{len(numbers)}q", gi_id, ci_id, len(numbers), *numbers)
    except struct.error as error:
        raise DocumentError("payload", f"a number of {request.function} does not fit its field: {error}") from error
    TEXT.put(out, request.text)


def _take_request(reader: Reader) -> NamedRequest:
    payload, at = reader.payload, reader.at
    try:
        function, at = _text(payload, at)
        gpu, at = _text(payload, at)
        gi_id, ci_id, count = _IDS_AND_COUNT.unpack_from(payload, at)
        at += _IDS_AND_COUNT.size
        numbers: tuple[int, ...] = ()
        if count:
            _check_count(count)
            numbers = struct.unpack_from(f"<{count}q", payload, at)
            at += 8 * count
        text, at = _text(payload, at)
    except struct.error as error:
        raise DocumentError("payload", f"ends after {len(payload)} bytes: {error}") from error
    except UnicodeDecodeError as error:
        raise DocumentError("payload", "a text is not UTF-8") from error
    if at > len(payload):
        raise DocumentError("payload", f"ends after {len(payload)} bytes where {at} are needed")
    reader.at = at
    return NamedRequest(
        function, gpu, None if gi_id == NONE_U32 else gi_id, None if ci_id == NONE_U32 else ci_id, numbers, text
    )


def _text(payload: bytes, at: int) -> tuple[str, int]:
    # A text that ends early shows in where the next value begins.
    begin = at + _COUNT.size
    end = begin + _COUNT.unpack_from(payload, at)[0]
    return payload[begin:end].decode(), end


def _put_answer(out: bytearray, answer: NamedAnswer) -> None:
    numbers, count = answer.numbers, len(answer.numbers)
    _check_count(count)
    try:
        out += struct.pack(f"<I{count}Q", count, *numbers)
    except struct.error:
        # A negative number travels in two's complement: the reader knows the function, and with it the sign.
        out += struct.pack(f"<I{count}Q", count, *(value & _ALL_ONES for value in numbers))
    TEXT.put(out, answer.text)


def _take_answer(reader: Reader) -> NamedAnswer:
    (count,) = reader.unpack(_COUNT)
    _check_count(count)
    numbers = struct.unpack(f"<{count}Q", reader.take(8 * count))
    return NamedAnswer(numbers, TEXT.take(reader))


def _check_count(count: int) -> None:
    if count > MAX_LIST:
        raise DocumentError("payload", f"a list of {count}; at most {MAX_LIST}")


NAMED_REQUEST: Final = Codec(_put_request, _take_request)
NAMED_ANSWER: Final = Codec(_put_answer, _take_answer)
