"""What a shared object says of itself: for which machine it is, and by which name programs ask for it.

A library for ELF would cost six megabytes for two facts. Layout: ELF-64, little-endian, as the System V ABI has it.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

MACHINES: Final = {"x86_64": 62, "aarch64": 183}
"""`e_machine` by the kernel's word."""
_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_ENTRY: Final = struct.Struct("<qQ")
_MAGIC: Final = b"\x7fELF\x02\x01"
_SHARED_OBJECT: Final = 3
_LOADED: Final = 1
_DYNAMIC: Final = 2
_END: Final = 0
_STRINGS: Final = 5
_SONAME: Final = 14
_MOST_SEGMENTS: Final = 128
_MOST_ENTRIES: Final = 4096
_LONGEST_NAME: Final = 255
_LARGEST_BYTES: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class SharedObject:
    """`machine` as in `MACHINES`; `soname` is "" where it has none."""

    machine: int
    soname: str


@dataclass(frozen=True, slots=True)
class _Segment:
    kind: int
    offset: int
    address: int
    size: int


def read_shared_object(path: Path) -> SharedObject | None:
    """The facts; None for what is no such file, or damaged. OSError where it cannot be read.

    A pipe, which nobody may ever write into, is not waited for.
    """
    with open(path, "rb", opener=_open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return None
        try:
            return _read(file)
        except (struct.error, ValueError, OverflowError):
            return None  # shorter or wilder than its own numbers say


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _read(file: BinaryIO) -> SharedObject | None:
    fields = _HEADER.unpack(file.read(_HEADER.size))
    ident, kind, machine, offset, size, count = fields[0], fields[1], fields[2], fields[5], fields[9], fields[10]
    if not ident.startswith(_MAGIC) or kind != _SHARED_OBJECT or size != _SEGMENT.size or count > _MOST_SEGMENTS:
        return None
    _seek(file, offset)
    segments = [_read_segment(file) for _ in range(count)]
    dynamic = next((one for one in segments if one.kind == _DYNAMIC), None)
    facts = dict(_list_entries(file, dynamic)) if dynamic is not None else {}
    if _SONAME not in facts or _STRINGS not in facts:
        return SharedObject(machine, "")
    return SharedObject(machine, _read_name(file, segments, facts[_STRINGS] + facts[_SONAME]))


def _seek(file: BinaryIO, offset: int) -> None:
    """ValueError for a place that no file has."""
    if offset > _LARGEST_BYTES:
        raise ValueError(offset)
    file.seek(offset)


def _read_segment(file: BinaryIO) -> _Segment:
    kind, _flags, offset, address, _physical, size, _memory, _align = _SEGMENT.unpack(file.read(_SEGMENT.size))
    return _Segment(kind, offset, address, size)


def _list_entries(file: BinaryIO, dynamic: _Segment) -> Iterator[tuple[int, int]]:
    _seek(file, dynamic.offset)
    for _ in range(min(dynamic.size // _ENTRY.size, _MOST_ENTRIES)):
        tag, value = _ENTRY.unpack(file.read(_ENTRY.size))
        if tag == _END:
            return
        yield tag, value


def _read_name(file: BinaryIO, segments: list[_Segment], address: int) -> str:
    """The text at an address of the loaded object; "" where no segment holds it."""
    for one in segments:
        if one.kind == _LOADED and one.address <= address < one.address + one.size:
            _seek(file, one.offset + address - one.address)
            name, _, _ = file.read(_LONGEST_NAME + 1).partition(b"\0")
            return name.decode("ascii") if len(name) <= _LONGEST_NAME else ""
    return ""
