"""Switch a GPU's MIG mode, and tell the truth about it.

NVML answers SUCCESS to a switch that only became pending, so the mode is read again; after a refusal the
pending mode is set back, else the next reset would surprise everybody. Who holds the GPU is named, from NVML's process
lists and the open device files in the host's /proc.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Protocol

from tesela.core.errors import NvmlError, TryAgain
from tesela.core.model import ClaimRef
from tesela.core.prepare import ModeSwitch
from tesela.edge.nvml import codes
from tesela.edge.nvml.port import MigMode, Nvml
from tesela.plugin.deadline import Deadline

log = logging.getLogger(__name__)

_NAMES = {codes.MIG_ENABLED: "on", codes.MIG_DISABLED: "off"}


class Holders(Protocol):
    """Who on the host has a device node open."""

    def list_gpu_holders(self, minor: int) -> tuple[str, ...]:
        """Processes with /dev/nvidia<minor> open, each as `name (pid 123)`, this process left out."""
        ...

    def get_command(self, pid: int) -> str:
        """`name (pid 123)` for a PID that NVML reports."""
        ...


def switch_mig_mode(nvml: Nvml, holders: Holders, switch: ModeSwitch, ref: ClaimRef, deadline: Deadline) -> None:
    """Switch the mode and verify that it took effect. TryAgain names the holder; the pending mode is then as before.

    Not begun after `deadline`; what was begun is verified or set back whatever time it is.
    """
    uuid = switch.known.gpu.uuid
    wanted = codes.MIG_ENABLED if switch.enable else codes.MIG_DISABLED
    deadline.check(f"the MIG mode of GPU {uuid}")
    before = nvml.get_mig_mode(uuid)
    if before.current == wanted and before.pending == wanted:
        return
    deadline.check(f"the MIG mode of GPU {uuid}")
    try:
        status = _set_mode(nvml, uuid, wanted)
        if status == codes.SUCCESS and nvml.get_mig_mode(uuid).current == wanted:
            return
    except NvmlError:
        _set_pending_back(nvml, uuid, before)
        raise
    _set_pending_back(nvml, uuid, before)
    raise TryAgain(
        f"claim {ref.namespace}/{ref.name}: device {switch.device}: MIG mode of GPU {uuid} cannot be switched "
        f"{_NAMES[wanted]} now: {codes.TEXTS.get(status, 'refused')} ({status}); held by "
        f"{describe_holders(nvml, holders, uuid, deadline)}; stop what holds it, the kubelet tries again by itself"
    )


def _set_mode(nvml: Nvml, uuid: str, mode: int) -> int:
    """The activation status; IN_USE and RESET_REQUIRED as an error of the call mean the same as as a status."""
    try:
        return nvml.set_mig_mode(uuid, mode)
    except NvmlError as error:
        if error.code in (codes.IN_USE, codes.RESET_REQUIRED):
            return error.code
        raise


def _set_pending_back(nvml: Nvml, uuid: str, before: MigMode) -> None:
    """Where that fails too, the refusal is still the error to report."""
    try:
        after = nvml.get_mig_mode(uuid)
        if after.current == before.current and after.pending != before.pending:
            _set_mode(nvml, uuid, before.pending)
    except (NvmlError, TryAgain) as error:
        log.warning("the pending MIG mode of GPU %s may differ from its mode, look at it: %s", uuid, error)


def describe_holders(nvml: Nvml, holders: Holders, uuid: str, deadline: Deadline) -> str:
    """The processes on a GPU, in words: NVML's lists first, then whoever has its device node open.

    It explains an error, so it raises none of NVML's: what cannot be asked, or not in time, goes unnamed.
    """
    named: set[str] = set()
    for listing in (nvml.get_compute_running_processes, nvml.get_graphics_running_processes):
        with contextlib.suppress(NvmlError, TryAgain):
            deadline.check("who uses the GPU")
            named.update(holders.get_command(process.pid) for process in listing(uuid))
    with contextlib.suppress(NvmlError, TryAgain):
        deadline.check("who uses the GPU")
        named.update(holders.list_gpu_holders(nvml.get_minor_number(uuid)))
    if not named and not deadline.left_s:
        return "a client that there was no time to name"
    return ", ".join(sorted(named)) or "a client that neither NVML nor /proc names (a kernel client, another VM)"
