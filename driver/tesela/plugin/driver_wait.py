"""Wait for the GPU driver: on a fresh node the kernel module or the library comes late, and nothing can be served yet.

The process stays unregistered meanwhile, says once a minute what it waits for, and gives up after a limit, so that the
pod shows as failing instead of idling for ever.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from tesela.core.errors import NvmlError, NvmlTimeout, StartError, TryAgain
from tesela.edge.nvml import codes
from tesela.edge.nvml.library_file import LibraryFile
from tesela.plugin.deadline import Deadline

log = logging.getLogger(__name__)

_PERIOD_S: Final = 2.0
_SAY_EVERY_S: Final = 60.0

_CAUSES: Final[dict[int, str]] = {
    codes.LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 is not found: is the driver installed? In a container, mount the "
    "host's root and point --driver-root-mount at it",
    codes.DRIVER_NOT_LOADED: "the nvidia kernel module is not loaded: look at `lsmod` and `dmesg` on the node",
    codes.LIB_RM_VERSION_MISMATCH: "libnvidia-ml.so.1 does not match the loaded kernel module: an upgrade is half "
    "done; reload the module or reboot",
    codes.NO_PERMISSION: "NVML may not use the GPU driver's device nodes: run tesela as root, in a privileged pod "
    "with the host's /dev",
    codes.UNKNOWN: "NVML answers Unknown Error, most often as the container's device cgroup denies /dev/nvidiactl: "
    "run tesela in a privileged pod, or look at `dmesg` on the node",
    codes.FUNCTION_NOT_FOUND: "libnvidia-ml.so.1 is too old (MIG needs R470 or later): upgrade the driver",
}

_OWN_WORDS: Final = frozenset({codes.LIBRARY_NOT_FOUND, codes.DRIVER_NOT_LOADED})
"""Where a backend may know more than NVML's words: which folders were searched, whose socket nobody serves."""


def init_nvml(
    try_init: Callable[[], None],
    *,
    wait_s: float,
    stop: threading.Event,
    library: LibraryFile | None = None,
    tell: Callable[[str], None] = lambda _sentence: None,
) -> bool:
    """Initialize NVML by `try_init`, waiting up to `wait_s`. False: `stop` was set.

    StartError: the GPU driver did not come, or never will.

    A library that was replaced since this process loaded it will never match: a new process has to load the new one.
    `tell` hears what it waits for, for /readyz.
    """
    deadline = Deadline.after(wait_s)
    said: Deadline | None = None
    while not stop.is_set():
        try:
            try_init()
        except (NvmlError, TryAgain) as error:
            cause = _describe(error)
            if isinstance(error, NvmlError) and error.code == codes.FUNCTION_NOT_FOUND:
                raise StartError(cause) from error
            if library is not None and (changed := library.describe_change()):
                raise StartError(f"{changed}, while it waited: {cause}; the next process loads the new one") from error
            # What else is not to be had now, a full disk for one, says itself what it is.
            is_driver = isinstance(error, NvmlError | NvmlTimeout)
            if not deadline.left_s:
                if is_driver:
                    raise StartError(f"gave up after {wait_s:.0f} s without a GPU driver: {cause}") from error
                raise StartError(f"gave up after {wait_s:.0f} s: {cause}") from error
            awaited = " for the GPU driver" if is_driver else ""
            tell(f"it waits{awaited}: {cause}")
            if said is None or not said.left_s:
                log.warning("waiting%s, %.0f s left: %s", awaited, deadline.left_s, cause)
                said = Deadline.after(_SAY_EVERY_S)
            stop.wait(min(_PERIOD_S, deadline.left_s))
        else:
            return True
    return False


def _describe(error: NvmlError | TryAgain) -> str:
    if not isinstance(error, NvmlError):
        return str(error)
    if error.code in _OWN_WORDS and error.text not in {"", codes.TEXTS[error.code]}:
        return error.text
    return _CAUSES.get(error.code, str(error))
