"""Switch a GPU's MIG mode, and tell the truth about it.

NVML answers SUCCESS to a switch that only became pending, so the mode is read again; after a refusal the
pending mode is set back, else the next reset would surprise everybody. Who holds the GPU is named (`holders.py`).
"""

from __future__ import annotations

import logging

from tesela.core.errors import NvmlError, TryAgain
from tesela.core.model import ClaimRef
from tesela.core.prepare import ModeSwitch
from tesela.edge.nvml import codes
from tesela.edge.nvml.port import MigMode, Nvml
from tesela.plugin.deadline import Deadline
from tesela.plugin.holders import Processes, describe_gpu_holders

log = logging.getLogger(__name__)

_NAMES = {codes.MIG_ENABLED: "on", codes.MIG_DISABLED: "off"}


class ModeRefused(TryAgain):
    """The GPU does not change its mode now; `holder` says in words who keeps it from that."""

    def __init__(self, message: str, *, gpu_uuid: str, wants_mig: bool, holder: str) -> None:
        super().__init__(message)
        self.gpu_uuid = gpu_uuid
        self.wants_mig = wants_mig
        self.holder = holder


def switch_mig_mode(nvml: Nvml, processes: Processes, switch: ModeSwitch, ref: ClaimRef, deadline: Deadline) -> None:
    """Switch the mode and verify that it took effect. ModeRefused names the holder; the pending mode is then as before.

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
    holder = describe_gpu_holders(nvml, processes, uuid, deadline)
    raise ModeRefused(
        f"claim {ref.namespace}/{ref.name}: device {switch.device}: MIG mode of GPU {uuid} cannot be switched "
        f"{_NAMES[wanted]} now: {codes.TEXTS.get(status, 'refused')} ({status}); held by {holder}; stop what holds it, "
        "the kubelet tries again by itself",
        gpu_uuid=uuid,
        wants_mig=switch.enable,
        holder=holder,
    ) from (NvmlError(status, "nvmlDeviceSetMigMode") if status != codes.SUCCESS else None)


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
