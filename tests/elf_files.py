"""Shared objects of a few hundred bytes, as far as a reader of names looks at them: ELF-64, little-endian."""

from __future__ import annotations

import struct
from pathlib import Path

X86_64, AARCH64 = 62, 183
_BASE = 0x1000


def render_shared_object(soname: str = "", *, machine: int = X86_64, kind: int = 3) -> bytes:
    """One segment that is loaded at an address of its own, one with the dynamic section; without `soname` it has none.

    As in real files the section tells an address of its strings, not a place in the file.
    """
    strings = b"\0" + soname.encode() + b"\0"
    entries = [(1, 1), *([(14, 1)] if soname else []), (5, 0), (0, 0)]
    at_dynamic = 64 + 2 * 56
    at_strings = at_dynamic + 16 * len(entries)
    size = at_strings + len(strings)
    dynamic = b"".join(
        struct.pack("<qQ", tag, _BASE + at_strings if tag == 5 else value) for tag, value in entries
    )  # fmt: skip
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", kind, machine, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0
    )  # fmt: skip
    loaded = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)
    table = struct.pack("<IIQQQQQQ", 2, 6, at_dynamic, _BASE + at_dynamic, 0, len(dynamic), len(dynamic), 8)
    return header + loaded + table + dynamic + strings


def install_libraries(
    root: Path, version: str, folder: str = "usr/lib/x86_64-linux-gnu", *, machine: int = X86_64, others: int = 0
) -> Path:
    """A driver of this version below `root`, and its folder.

    CUDA, its compiler, one library whose SONAME has the version, and so many `others`.
    """
    place = root / folder
    place.mkdir(parents=True, exist_ok=True)
    sonames = {
        "libcuda": "libcuda.so.1",
        "libnvidia-ptxjitcompiler": "libnvidia-ptxjitcompiler.so.1",
        "libnvidia-glcore": f"libnvidia-glcore.so.{version}",
        **{f"libnvidia-other{number}": f"libnvidia-other{number}.so.1" for number in range(others)},
    }
    for name, soname in sonames.items():
        (place / f"{name}.so.{version}").write_bytes(render_shared_object(soname, machine=machine))
    return place


def install_toolkit(root: Path, version: str, *, says: str | None = None, folder: str = "usr/bin") -> Path:
    """A stand-in for NVIDIA's nvidia-ctk that describes what `install_libraries` installed, or runs the script `says`.

    It counts its calls in `<root>/ctk-calls`, and its hook is beside it.
    """
    place = root / folder
    place.mkdir(parents=True, exist_ok=True)
    for name, script in (("nvidia-ctk", says or _SAYS.format(version=version)), ("nvidia-cdi-hook", "exit 0")):
        (place / name).write_text(f'#!/bin/sh\necho "$*" >> {root}/ctk-calls\n{script}\n')
        (place / name).chmod(0o755)
    return place / "nvidia-ctk"


def count_calls(root: Path) -> int:
    """How often that nvidia-ctk was run."""
    calls = root / "ctk-calls"
    return len(calls.read_text().splitlines()) if calls.exists() else 0


_SAYS = """\
for one in "$@"; do
  case $one in --driver-root=*) root=${{one#*=}};; --nvidia-cdi-hook-path=*) hook=${{one#*=}};; esac
done
lib=/usr/lib/x86_64-linux-gnu
cat <<END
{{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{{"name": "none", "containerEdits": {{}}}}],
 "containerEdits": {{
  "env": ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK_LIBCUDA_DIR=$lib"],
  "deviceNodes": [{{"path": "/dev/nvidiactl"}}],
  "hooks": [{{"hookName": "createContainer", "path": "$hook", "env": ["NVIDIA_CTK_DEBUG=false"],
    "args": ["nvidia-cdi-hook", "create-symlinks", "--link", "libcuda.so.{version}::$lib/libcuda.so.1"]}}],
  "mounts": [{{"hostPath": "$root$lib/libcuda.so.{version}", "containerPath": "$lib/libcuda.so.{version}",
    "options": ["ro", "rbind"]}}]
 }}}}
END"""
