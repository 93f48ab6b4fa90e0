"""What a broken or hostile client may send to the simulator: hypothesis strategies for the bytes of a connection.

The calls and their arguments are read from docs/simulator-protocol.md and written here a second time, so that the
server is not fuzzed with its own encoder. A conversation is a list of pieces, each sent on its own.
"""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

from hypothesis import strategies as st

PAGE = (Path(__file__).parents[3] / "docs" / "simulator-protocol.md").read_text()
CALLS = {
    int(opcode, 16): arguments
    for opcode, arguments in re.findall(r"^\| 0x([0-9A-F]{4}) \| [^|]*\| ([^|]*) \|", PAGE, re.MULTILINE)
}
"""The argument column of every call on the page, by opcode."""
CALL, WAIT_EVENT, ADMIN = 0x0060, 0x0070, 0x8000
TYPED = sorted(set(CALLS) - {CALL, WAIT_EVENT, ADMIN})
NAMES = sorted(set(re.findall(r"nvml[A-Z]\w+", PAGE)))
OPERATIONS = sorted(set(re.findall(r"`([a-z-]+)`", PAGE.split("`op` is one of")[1].split(";")[0])) - {"hang", "slow"})
MAX_FRAME_BYTES = 1 << 20

EDGES = (0, 1, 2, 3, 5, 7, 9, 14, 19, 63, 255, 4096, 4097, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1)
numbers = st.sampled_from((*EDGES, 2**64 - 1, -1, -(2**31), -(2**63))) | st.integers(-(2**63), 2**64 - 1)
ids = st.integers(0, 15) | st.sampled_from([0xFFFFFFFF, 0xFFFFFFFE, 2**31, 4096])
ODD_TEXTS = ("", "0", "GPU-", "MIG-", "GPU-\0", "9" * 5000, "x" * 70000, "٣", "%n%s", "../..", "FFFFFFFF:FF:FF.F")
FIELDS = (
    *("gpu", "pid", "gi", "ci", "kind", "name", "real", "memory_mib", "function", "code", "after", "times", "when"),
    *("activation_status", "forever", "state", "clique_id", "cluster_uuid", "absent", "force", "driver_only", "xid"),
    *("corrected", "uncorrected", "sram", "volatile_only", "mode", "correctable", "uncorrectable", "pending"),
    *("failure", "action", "unknown"),
)
VALUES = ("0", "nvmlDeviceGetName", "*", 0, 1, -1, 0.5, 9, 2**32, 10**400, None, True, [], {}, "\ud800")
DELAYS = ("1e999", "NaN", "-1", "1e300", '"1"', "null", "0.001", "true", "9" * 5000)
HARD_JSON = ("[" * 20000, '{"op":' * 5000, '{"op": "\\ud800"}', "9" * 5000, '{"op": "lose", "gpu": "\\ud800"}')


def text(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def frame(opcode: int, payload: bytes, request_id: int = 7) -> bytes:
    return struct.pack("<IHHI", 8 + len(payload), opcode, 0, request_id) + payload


HELLO = frame(0, b"TSIM" + struct.pack("<HH", 1, 1), 1)


def _word(draw: st.DrawFn, size: int) -> bytes:
    return (draw(numbers) & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _id(draw: st.DrawFn) -> bytes:
    return struct.pack("<I", draw(ids))


def _body(draw: st.DrawFn, gpus: tuple[str, ...]) -> bytes:
    """A GPU of the machine above all, then what resembles one, then anything."""
    match draw(st.integers(0, 7)):
        case 0:
            return draw(st.sampled_from(ODD_TEXTS)).encode()
        case 1:
            return draw(st.binary(max_size=40))
        case 2:
            shape = draw(st.sampled_from(["MIG-{}/1/0", "MIG-{}/-1/x", "{}x", "{}\0", "00000000:{}", " {}"]))
            return shape.format(draw(st.sampled_from(gpus))).encode()
        case _:
            return draw(st.sampled_from(gpus)).encode()


def _listed(items: list[bytes]) -> bytes:
    return struct.pack("<I", len(items)) + b"".join(items)


def _argument(draw: st.DrawFn, kind: str, gpus: tuple[str, ...]) -> bytes:
    if "list of" in kind:
        item = kind.partition("list of ")[2]
        return _listed([_argument(draw, item, gpus) for _ in range(draw(st.integers(0, 5)))])
    match kind.rsplit(maxsplit=1)[-1]:
        case "text":
            return text(_body(draw, gpus))
        case "Placement":
            return _id(draw) + _id(draw)
        case "u64" | "i64":
            return _word(draw, 8)
        case "u32" | "i32":
            return _id(draw) if draw(st.booleans()) else _word(draw, 4)
        case other:
            raise AssertionError(f"the page has an argument of a kind that the fuzzer does not know: {other}")


def _typed_call(draw: st.DrawFn, gpus: tuple[str, ...]) -> bytes:
    """A call of the page's table, its arguments of the right types and of any value."""
    opcode = draw(st.sampled_from(TYPED))
    kinds = [kind.strip() for kind in CALLS[opcode].split(",") if kind.strip() != "none"]
    return frame(opcode, b"".join(_argument(draw, kind, gpus) for kind in kinds))


def _named_call(draw: st.DrawFn, gpus: tuple[str, ...]) -> bytes:
    """0x0060: function text, gpu text, gi u32, ci u32, numbers, text."""
    function = draw(st.sampled_from(NAMES)).encode() if draw(st.integers(0, 9)) else draw(st.binary(max_size=24))
    gpu = _body(draw, gpus) if draw(st.integers(0, 3)) else b""
    given = [_word(draw, 8) for _ in range(draw(st.integers(0, 5)))]
    other = _body(draw, gpus) if draw(st.booleans()) else b""
    return frame(CALL, text(function) + text(gpu) + _id(draw) + _id(draw) + _listed(given) + text(other))


def _wait(draw: st.DrawFn, gpus: tuple[str, ...]) -> bytes:
    """0x0070, with timeouts that end soon: the server's own limit has a test of its own."""
    count = draw(st.integers(0, 3))
    registrations = [text(_body(draw, gpus)) + _word(draw, 8) + _word(draw, 8) for _ in range(count)]
    return frame(WAIT_EVENT, _listed(registrations) + struct.pack("<I", draw(st.sampled_from([0, 1, 20]))))


def _admin(draw: st.DrawFn, gpus: tuple[str, ...]) -> bytes:
    """0x8000: operations with fields of any kind, and JSON that is hard to read. Nothing that may legally take long."""
    match draw(st.integers(0, 5)):
        case 0:
            body = draw(st.sampled_from(HARD_JSON))
        case 1:
            body = f'{{"op": "slow", "function": "get_name", "seconds": {draw(st.sampled_from(DELAYS))}}}'
        case _:
            fields = draw(st.dictionaries(st.sampled_from(FIELDS), st.sampled_from((*VALUES, *gpus)), max_size=6))
            gpu = {"gpu": draw(st.sampled_from(gpus))} if draw(st.booleans()) else {}
            body = json.dumps({**fields, **gpu, "op": draw(st.sampled_from(OPERATIONS))})
    return frame(ADMIN, text(body.encode()))


def _frame(draw: st.DrawFn, gpus: tuple[str, ...]) -> bytes:
    kinds = (_typed_call, _typed_call, _named_call, _named_call, _wait, _admin)
    return draw(st.sampled_from(kinds))(draw, gpus)


def _break(draw: st.DrawFn, whole: bytes) -> bytes:
    """A frame with one thing wrong."""
    # Not the last word: of a wait it is the timeout, and five seconds of the server's own patience are no finding.
    at = draw(st.integers(0, len(whole) - 5))
    word = _word(draw, 4)
    match draw(st.sampled_from(["flip", "cut", "twice", "length", "word", "opcode", "reserved", "longer", "frame"])):
        case "flip":
            broken = whole[:at] + bytes([whole[at] ^ 1 << draw(st.integers(0, 7))]) + whole[at + 1 :]
        case "cut":
            broken = whole[:at]
        case "twice":
            broken = whole + whole
        case "length":
            broken = word + whole[4:]
        case "word":
            broken = whole[:at] + word + whole[at + 4 :]
        case "opcode":
            broken = whole[:4] + word[:2] + whole[6:]
        case "reserved":
            broken = whole[:6] + word[:2] + whole[8:]
        case "longer":
            more = draw(st.binary(min_size=1, max_size=8))
            broken = struct.pack("<I", len(whole) - 4 + len(more)) + whole[4:] + more
        case _:
            size = draw(st.sampled_from([0, 4, 7, MAX_FRAME_BYTES, MAX_FRAME_BYTES + 1]))
            broken = struct.pack("<I", size) + bytes(min(size, MAX_FRAME_BYTES))
    return broken


@st.composite
def conversations(draw: st.DrawFn, gpus: tuple[str, ...]) -> list[bytes]:
    """All that one connection sends: most greet, and then send frames of which some are broken."""
    match draw(st.integers(0, 7)):
        case 0:
            pieces = [_break(draw, HELLO)]
        case 1:
            pieces = [draw(st.binary(max_size=64))]
        case _:
            pieces = [HELLO]
    for _ in range(draw(st.integers(0, 8))):
        match draw(st.integers(0, 7)):
            case 0:
                pieces.append(draw(st.binary(max_size=64)))
            case 1 | 2:
                pieces.append(_break(draw, _frame(draw, gpus)))
            case _:
                pieces.append(_frame(draw, gpus))
    return pieces
