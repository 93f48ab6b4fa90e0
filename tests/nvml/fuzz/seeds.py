"""Writes the inputs of corpus/answers that have names: `PYTHONPATH=tests python -m nvml.fuzz.seeds`.

Each spoils answers in one way where it matters: at the ends of the buffers that every_call gives, in the first answers
of a session, in the calls of MIG. The inputs named by a digest were chosen by coverage from what `make fuzz` left in
found/corpus: `libfuzzer -merge=1 -use_counters=0 -set_cover_merge=1 NEW found/corpus corpus/answers`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

from nvml.fuzz import programs

SPOILS = (
    *("payload", "flip", "cut", "longer", "length", "id", "code", "word", "half", "drip", "close", "twice", "raw"),
    *("gone", "other", "empty", "stale", "numbers", "list", "text"),
)
"""In the order of enum spoil in simulator.h."""
VALUES = {
    "flip": 65,
    "cut": 3,
    "longer": 0xFF000FFF,
    "length": 0xFFFFFFFF,
    "id": 0xFFFFFFFF,
    "code": 4096,
    "word": 0x3FFFFFF,
    "half": 7,
    "gone": 3,
    "other": 5,
    "numbers": 0x1001F,
}
BYTES = {"payload": b"\xff" * 12, "raw": b"\xff" * 12}
ITEMS = 24
"""The room that every_call gives a list (MOST_ITEMS); a text has 96 bytes there."""
HELLO, BEGUN = 0, 9
"""Numbers of requests: the first, and the first after a session and its handles have been set up."""


def input_of(spoil: str, value: int, row: int, count: int, at: Iterable[int], seed: int = 1) -> bytes:
    """An input that calls `count` rows from `row` on and spoils the answers to the requests `at`."""
    more = BYTES.get(spoil)
    tail = b"" if more is None else bytes([len(more)]) + more
    edits = (bytes([number, SPOILS.index(spoil)]) + struct.pack("<I", value) + tail for number in at)
    return bytes([seed, row, count, 0]) + b"".join(edits)


def list_inputs() -> dict[str, bytes]:
    """Every input by its name."""
    table = (programs.HERE / "rows.c").read_text()
    rows = re.findall(r"^ +(?:ROW|DEVICE_WORD|DEVICE_TEXT)\((nvml\w+)", table, re.MULTILINE)
    reads, mig = rows.index("nvmlDeviceGetHandleByIndex"), rows.index("nvmlDeviceGetApplicationsClock")
    processes, instances = rows.index("nvmlDeviceGetP2PStatus"), rows.index("nvmlDeviceGetMigMode")
    compute, samples = rows.index("nvmlGpuInstanceGetComputeInstanceProfileInfoV"), len(rows) - 13
    found = {}
    for spoil in SPOILS[:-2]:
        value = VALUES.get(spoil, 0)
        found[f"{spoil}-in-hello"] = input_of(spoil, value, reads, 63, [HELLO])
        found[f"{spoil}-in-reads"] = input_of(spoil, value, reads, 63, range(BEGUN, 60, 5))
        found[f"{spoil}-in-mig"] = input_of(spoil, value, mig, 63, range(7, 75, 3), seed=2)
    for size in (0, 15, 16, 31, 32, 33, 63, 64, 80, 95, 96, 97, 4096):
        found[f"text-of-{size:04}-in-first-rows"] = input_of("text", size, 0, 63, range(7, 80), seed=3)
        found[f"text-of-{size:04}-in-middle-rows"] = input_of("text", size, 63, 63, range(7, 80), seed=3)
    for length in (0, 1, ITEMS * 4, ITEMS * 4 + 4, 4096):
        found[f"list-of-{length:04}-processes"] = input_of("list", length, processes, 20, range(16, 80), seed=5)
    for length in (ITEMS * 6, ITEMS * 6 + 6):
        found[f"list-of-{length:04}-samples"] = input_of("list", length, samples, 13, range(BEGUN, 80), seed=5)
    for length in (0, ITEMS - 1, ITEMS, ITEMS + 1, ITEMS * 2 + 2, 4096):
        for seed in (6, 8, 9):
            name = f"list-of-{length:04}-instances-{seed}"
            found[name] = input_of("list", length, instances, 26, range(BEGUN, 80), seed)
        found[f"list-of-{length:04}-compute"] = input_of("list", length, compute, 12, range(BEGUN, 80), seed=4)
    return found


if __name__ == "__main__":
    for name, data in list_inputs().items():
        (programs.CORPUS / f"{name}.bin").write_bytes(data)
