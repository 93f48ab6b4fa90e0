"""Where the sockets lie: pure names, nothing is opened here.

With a pod UID in the names two instances of one driver can be registered at once, which a rolling update needs
(kubelet 1.33 or later). The names are those of Kubernetes' own plugin library, so that an operator finds them where the
documentation says; it shortens them when a path would not fit into a socket address, and so do we.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath, PurePosixPath

from tesela.core.dns import is_dns_subdomain
from tesela.core.errors import StartError

MAX_PATH_BYTES = 107
"""sun_path of Linux's unix(7) has 108 bytes, one of them for the terminator."""

_POD_UID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,62}[A-Za-z0-9])?")
_MAX_DRIVER_NAME = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketPaths:
    """`registrar` is what the kubelet discovers, `service` what it is then told to call. Absolute."""

    registrar: PurePosixPath
    service: PurePosixPath


def plan_sockets(driver_name: str, plugins_dir: PurePath, registry_dir: PurePath, pod_uid: str | None) -> SocketPaths:
    """The paths for this instance, below `plugins_dir`/`driver_name` and in `registry_dir`.

    The same paths must hold where the kubelet runs: it takes the service path literally. Raises StartError for a name
    or folder that cannot work, and where no candidate fits into a socket address.
    """
    if not is_dns_subdomain(driver_name, _MAX_DRIVER_NAME):
        raise StartError(f"driver name {driver_name!r} is not a DNS subdomain of at most {_MAX_DRIVER_NAME} characters")
    if pod_uid is not None and not _POD_UID.fullmatch(pod_uid):
        raise StartError(
            f"pod UID {pod_uid!r} is no UID: set it from the field metadata.uid of the pod, or leave it out"
        )
    for folder in (plugins_dir, registry_dir):
        if not folder.is_absolute():
            raise StartError(f"{folder} is not absolute: give the kubelet's folders as the kubelet sees them")
    return SocketPaths(
        registrar=_first_that_fits(registry_dir, _registrar_names(driver_name, pod_uid)),
        service=_first_that_fits(plugins_dir / driver_name, _service_names(pod_uid)),
    )


def is_registrar_of(driver_name: str, file_name: str) -> bool:
    """Whether `file_name` is a registrar socket of some pod of this driver.

    Only names that carry the driver's name are recognised: the shortest candidate is a bare hash, and nobody can tell
    whose it is.
    """
    middle = file_name.removeprefix(f"{driver_name}-").removesuffix("-reg.sock")
    if f"{driver_name}-{middle}-reg.sock" != file_name:
        return False
    return bool(re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}|[A-Za-z0-9_-]{11}", middle))


def is_service_of_a_pod(file_name: str) -> bool:
    """Whether `file_name`, in the driver's own folder, is the service socket of some pod."""
    return file_name.startswith("dra-") and file_name.endswith(".sock")


def _registrar_names(driver_name: str, pod_uid: str | None) -> tuple[str, ...]:
    if pod_uid is None:
        return (f"{driver_name}-reg.sock",)
    return (
        f"{driver_name}-{pod_uid}-reg.sock",
        f"{driver_name}-{_digest(pod_uid, 8)}-reg.sock",
        f"dra-{_digest(driver_name + chr(0) + pod_uid, 16)}-reg.sock",
    )


def _service_names(pod_uid: str | None) -> tuple[str, ...]:
    if pod_uid is None:
        return ("dra.sock",)
    # The last one fits below /var/lib/kubelet/plugins for the longest driver name there may be.
    return (f"dra-{pod_uid}.sock", f"dra-{_digest(pod_uid, 8)}.sock", f"dra-{_digest(pod_uid, 6)}.sock")


def _digest(text: str, size_bytes: int) -> str:
    digest = hashlib.sha256(text.encode()).digest()[:size_bytes]
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _first_that_fits(folder: PurePath, names: Sequence[str]) -> PurePosixPath:
    paths = [PurePosixPath(folder, name) for name in names]
    for path in paths:
        if len(str(path).encode("utf-8", "surrogateescape")) <= MAX_PATH_BYTES:
            return path
    raise StartError(
        f"{paths[-1]} is longer than the {MAX_PATH_BYTES} bytes of a Unix socket's address: use a shorter folder"
    )
