"""The certificate of a server, from files that are renewed while it runs.

The kubelet replaces the files of a Secret by moving a link, so that both are there at any moment; whoever writes them
by hand may be seen half-way. A pair that cannot be used is said once and the one before goes on serving.
"""

from __future__ import annotations

import logging
import ssl
import threading
from pathlib import Path
from typing import Final, TypeAlias

from tesela.core.errors import StartError

_LOG: Final = logging.getLogger(__name__)
_Seen: TypeAlias = tuple[tuple[int, int, int], ...]


class CertificateFiles:
    """TLS 1.2 and later with the chain in `certificate` and its `key` (PEM), as they are when somebody connects."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """StartError: no such pair is there."""
        self._paths = (certificate, key)
        self._guard = threading.Lock()
        self._said = ""
        try:
            self._seen = self._look()
            self._context = self._load()
        except OSError as error:
            raise StartError(f"{self._describe(error)}; point the flags at a certificate and its key") from error

    def get_context(self) -> ssl.SSLContext:
        """For a connection that begins now."""
        with self._guard:
            self._renew()
            return self._context

    def _renew(self) -> None:
        try:
            seen = self._look()
            if seen == self._seen:
                return
            self._seen = seen
            self._context = self._load()
        except OSError as error:
            self._say(f"{self._describe(error)}: the certificate before goes on serving; renew both files")
        else:
            self._said = ""
            _LOG.info("the certificate in %s was renewed", self._paths[0])

    def _say(self, trouble: str) -> None:
        """Once: a file that is gone is met by every connection, each probe among them."""
        if trouble != self._said:
            self._said = trouble
            _LOG.error("%s", trouble)

    def _look(self) -> _Seen:
        stats = [path.stat() for path in self._paths]
        return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Without a password OpenSSL would ask for that of an encrypted key, on a terminal, with the guard held.
        context.load_cert_chain(*self._paths, password="")
        return context

    def _describe(self, error: OSError) -> str:
        reason = error.strerror or getattr(error, "reason", None) or str(error)
        return f"certificate {self._paths[0]} and key {self._paths[1]} cannot be used: {reason}"
