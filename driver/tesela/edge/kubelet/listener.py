"""One gRPC server on one Unix socket that appears when it listens, and vanishes when we say so.

gRPC's C core binds a path by deleting whatever socket is there, served or not, and deletes the path again at shutdown,
whoever owns it by then. So the server is bound under a hidden name beside the real one, which the kubelet's watcher
skips, and renamed once it listens: nobody sees a socket that does not answer, a killed process's leftover is replaced
in one step, and the core's own deletion hits nothing.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import secrets
import socket
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from tesela.core.errors import StartError

_log = logging.getLogger(__name__)

_HIDDEN_PREFIX = ".dra"
_HIDDEN_TOKEN_BYTES = 2
_CONNECT_TIMEOUT_S = 1.0
_SHUTDOWN_SLACK_S = 2.0
_SWEEP_AGE_S = 10.0


class SocketListener:
    """A gRPC server for `path`. Add services to `server`, then `open`, then `withdraw` and `close`; one life only."""

    def __init__(self, path: Path, *, workers: int, role: str) -> None:
        self.path = path
        self.role = role
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix=role)
        self.server = grpc.server(self._pool)
        self._published: tuple[int, int] | None = None

    def open(self) -> None:
        """Listens, then shows the socket under its real name. Raises StartError; what was made is undone then."""
        _refuse_if_served(self.path)
        # At most as long as the shortest real name, so that it fits where the real one does.
        hidden = self.path.with_name(_HIDDEN_PREFIX + secrets.token_hex(_HIDDEN_TOKEN_BYTES))
        try:
            self._bind(hidden)
            self.server.start()
            hidden.chmod(0o600)
            self._published = _identity(hidden)
            hidden.rename(self.path)
        except (OSError, RuntimeError) as error:
            self._published = None
            self.close(0.0)
            raise StartError(f"cannot serve {self.path}: {error}") from error

    def _bind(self, path: Path) -> None:
        try:
            self.server.add_insecure_port(f"unix:{path}")
        except RuntimeError:
            _probe_bind(path)
            raise

    def withdraw(self) -> None:
        """Removes the socket file, if it is still ours; calls under way and open connections go on."""
        if self._published is not None and _identity(self.path) == self._published:
            self.path.unlink(missing_ok=True)
        self._published = None

    def close(self, grace_s: float) -> bool:
        """Refuses new calls, gives those under way `grace_s`, then cancels them; False if gRPC did not end.

        A cancelled call's thread runs on until its handler returns; the answer is dropped.
        """
        self.withdraw()
        ended = self.server.stop(grace_s).wait(grace_s + _SHUTDOWN_SLACK_S)
        self._pool.shutdown(wait=False, cancel_futures=True)
        return ended

    def find_fault(self) -> str | None:
        """Why nobody can reach this server any more, as a sentence; None while all is well or once withdrawn."""
        if self._published is None:
            return None
        if not self.server.wait_for_termination(timeout=0):
            return f"the gRPC server of the {self.role} socket {self.path} ended by itself"
        found = _identity(self.path)
        if found == self._published:
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
        fresh = time.time() - status.st_mtime < _SWEEP_AGE_S
        if stat.S_ISSOCK(status.st_mode) and not fresh and _connect(path) == errno.ECONNREFUSED:
            path.unlink(missing_ok=True)
            _log.info("removed %s, which a killed process left", path)
    except OSError as error:
        _log.warning("cannot remove the dead socket %s: %s", path, error)


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
