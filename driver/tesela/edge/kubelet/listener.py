"""The Unix sockets of a gRPC server, which appear when it listens, and vanish when we say so.

gRPC's C core binds a path by deleting whatever socket is there, served or not, and deletes the path again at shutdown,
whoever owns it by then. So the server is bound under a hidden name beside the real one, which the kubelet's watcher
skips, and renamed once it listens: nobody sees a socket that does not answer, a killed process's leftover is replaced
in one step, and the core's own deletion hits nothing.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from tesela.core.errors import StartError
from tesela.edge.kubelet.sockets import MAX_PATH_BYTES

_log = logging.getLogger(__name__)

_HIDDEN_PREFIX = ".dra"
_HIDDEN_TOKEN_BYTES = 2
_CONNECT_TIMEOUT_S = 1.0
_SWEEP_AGE_S = 10.0


class SocketFile:
    """The socket of a gRPC server at `path`: `bind` before the server starts, `show` after it, then `withdraw`."""

    def __init__(self, path: Path, *, role: str) -> None:
        self.path = path
        self.role = role
        self._hidden: Path | None = None
        self._shown: tuple[int, int] | None = None

    def bind(self, server: grpc.Server) -> None:
        """Has `server` listen beside the path. Raises StartError where the path is somebody's, or cannot be bound."""
        _refuse_if_served(self.path)
        # At most as long as the shortest real name, so that it fits where the real one does.
        self._hidden = self.path.with_name(_HIDDEN_PREFIX + secrets.token_hex(_HIDDEN_TOKEN_BYTES))
        try:
            try:
                server.add_insecure_port(f"unix:{self._hidden}")
            except RuntimeError:
                _probe_bind(self._hidden)
                raise
        except (OSError, RuntimeError) as error:
            raise StartError(f"cannot serve {self.path}: {error}") from error

    def show(self) -> None:
        """Gives the socket its real name; the server listens already. StartError."""
        if self._hidden is None:
            raise StartError(f"cannot serve {self.path}: it was not bound")
        try:
            self._hidden.chmod(0o600)
            shown = _identity(self._hidden)
            self._hidden.rename(self.path)
        except OSError as error:
            raise StartError(f"cannot serve {self.path}: {error}") from error
        self._hidden, self._shown = None, shown

    def withdraw(self) -> None:
        """Removes the socket file, if it is still ours; calls under way and open connections go on."""
        if self._hidden is not None:
            self._hidden.unlink(missing_ok=True)
        if self._shown is not None and _identity(self.path) == self._shown:
            self.path.unlink(missing_ok=True)
        self._hidden = self._shown = None

    def find_fault(self) -> str | None:
        """Why nobody can find this socket any more, as a sentence; None while all is well or once withdrawn."""
        shown = self._shown
        if shown is None:
            return None
        found = _identity(self.path)
        if found == shown:
            return None
        return f"the {self.role} socket {self.path} was {'removed' if found is None else 'replaced'} by somebody else"


def remove_dead_sockets(folder: Path, is_ours: Callable[[str], bool]) -> None:
    """Deletes sockets of `folder` that `is_ours` names, nobody listens on, and are not fresh.

    A pod that was killed leaves them; the kubelet would go on dialling its registrar. Fresh ones are spared, because a
    driver that binds its final name directly is deaf for a moment.
    """
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        _log.warning("cannot look for dead sockets in %s: %s", folder, error)
        return
    for name in names:
        if _is_hidden(name) or is_ours(name):
            _remove_if_dead(folder / name)


def _is_hidden(name: str) -> bool:
    return name.startswith(_HIDDEN_PREFIX) and len(name) == len(_HIDDEN_PREFIX) + 2 * _HIDDEN_TOKEN_BYTES


def _remove_if_dead(path: Path) -> None:
    try:
        status = path.lstat()
        fresh = abs(time.time() - status.st_mtime) < _SWEEP_AGE_S  # from the future: the clock was set back
        if stat.S_ISSOCK(status.st_mode) and not fresh and _connect(path) == errno.ECONNREFUSED:
            path.unlink(missing_ok=True)
            _log.info("removed %s, which a killed process left", path)
    except OSError as error:
        _log.warning("cannot remove the dead socket %s: %s", path, error)


def is_served(path: Path) -> bool:
    """Whether somebody listens on the socket at `path`; False where none is there, or can be at a path so long."""
    return len(os.fsencode(path)) <= MAX_PATH_BYTES and _connect(path) in {0, errno.EAGAIN}


def _refuse_if_served(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise StartError(f"cannot look at {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise StartError(f"{path} is not a socket: remove it")
    code = _connect(path)
    if code not in {errno.ECONNREFUSED, errno.ENOENT}:
        why = "somebody serves it" if code in {0, errno.EAGAIN} else errno.errorcode.get(code, str(code))
        raise StartError(
            f"{path} is in use ({why}): stop the other driver, or give each instance its pod UID for a rolling update"
        )


def _connect(path: Path) -> int:
    """Tries to reach a listener: 0, or the errno. EAGAIN: it is there and busy."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        probe.settimeout(_CONNECT_TIMEOUT_S)
        return probe.connect_ex(str(path))


def _probe_bind(path: Path) -> None:
    """Raises the OSError that keeps `path` from being bound: the C core does not hand it on."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        probe.bind(str(path))
    path.unlink(missing_ok=True)


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode; None where nothing is."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
