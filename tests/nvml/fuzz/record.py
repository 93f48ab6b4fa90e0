"""Records what a simulator answers well, for the one of simulator.c: `PYTHONPATH=tests python -m nvml.fuzz.record`.

Run it when the protocol gains calls: what is not recorded is answered "function not found" there, and never spoiled in
an interesting way.
"""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

from nvml.fuzz import programs, proxy, served


def record() -> bytes:
    """The answers to `every_call`, each as opcode u16, name length u16, name, code u32, payload length u32, payload."""
    kept: dict[tuple[int, bytes], bytes] = {}
    program = programs.build("every_call", "plain")
    names = "\n".join(programs.exported())
    with tempfile.TemporaryDirectory() as folder:
        upstream, path = Path(folder) / "real.sock", Path(folder) / "proxy.sock"
        with (
            served.served(upstream) as simulator,
            served.lively(simulator),
            proxy.between(upstream, path, proxy.keep_all(kept)),
        ):
            ended = programs.run([program, "200", "1"], socket=path, names=names)
    if ended.status:
        raise RuntimeError(f"every_call ended with {ended.status}: {ended.report}")
    out = bytearray()
    for (opcode, name), answer in sorted(kept.items()):
        out += (
            struct.pack("<HH", opcode, len(name)) + name + answer[4:8] + struct.pack("<I", len(answer) - 8) + answer[8:]
        )
    return bytes(out)


def list_functions(recorded: bytes) -> list[tuple[int, bytes]]:
    """Opcode and name of each recorded answer."""
    found, at = [], 0
    while at < len(recorded):
        opcode, size = struct.unpack_from("<HH", recorded, at)
        found.append((opcode, recorded[at + 4 : at + 4 + size]))
        at += 12 + size + struct.unpack_from("<I", recorded, at + 8 + size)[0]
    return found


if __name__ == "__main__":
    programs.ANSWERS.write_bytes(record())
