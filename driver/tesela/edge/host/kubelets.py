"""Which kubelets run on this host, and with which folder of their own: to say what a wrong path should have been.

Only the host's own /proc shows them, and a kubelet inside another program (k3s, microk8s) is not seen. For a sentence,
never for a decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DEFAULT_ROOT: Final = Path("/var/lib/kubelet")
_NAME: Final = "kubelet"
_FLAG: Final = "--root-dir"
_WHOLE_RANGE: Final = ["0", "0", "4294967295"]
"""user_namespaces(7): the first namespace maps every id to itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletProcess:
    """One kubelet: `root` is its --root-dir. `rootless`: it runs in a user namespace, so its root is not the host's."""

    pid: int
    root: Path
    rootless: bool


def list_kubelets(proc_root: Path) -> tuple[KubeletProcess, ...]:
    """Every kubelet under `proc_root`, by PID; what cannot be read is left out."""
    try:
        pids = sorted(int(entry.name) for entry in proc_root.iterdir() if entry.name.isdecimal())
    except OSError:
        return ()
    return tuple(_list_kubelets(proc_root, pids))


def is_whole_user_namespace(uid_map: Path = Path("/proc/self/uid_map")) -> bool:
    """Whether root here is the host's root; True where the kernel has no user namespaces."""
    try:
        lines = uid_map.read_text(encoding="ascii").splitlines()
    except OSError:
        return True
    return [line.split() for line in lines] == [_WHOLE_RANGE]


def _list_kubelets(proc_root: Path, pids: Sequence[int]) -> Iterator[KubeletProcess]:
    for pid in pids:
        process = proc_root / str(pid)
        try:
            if (process / "comm").read_text(encoding="utf-8", errors="replace").strip() != _NAME:
                continue
            words = (process / "cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
        except OSError:
            continue  # it ended meanwhile
        root = _find_root(words)
        yield KubeletProcess(pid=pid, root=root, rootless=not is_whole_user_namespace(process / "uid_map"))


def _find_root(words: Sequence[str]) -> Path:
    for word, following in zip(words, (*words[1:], ""), strict=True):
        if word.startswith(f"{_FLAG}="):
            return Path(word.partition("=")[2])
        if word == _FLAG and following:
            return Path(following)
    return DEFAULT_ROOT
