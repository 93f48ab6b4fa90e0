"""Unprepare one claim: the reverse of prepare, and success for what is not known.

It needs no API object (the claim may be gone or replaced by one of the same name): the record,
keyed by UID, is enough.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from tesela.core.model import ClaimRef
from tesela.core.record import ClaimRecord
from tesela.edge.telemetry.port import Phase
from tesela.plugin.deadline import Deadline
from tesela.plugin.node import Node
from tesela.plugin.rebuild import read_or_rebuild
from tesela.plugin.release import give_back, mark_unpreparing
from tesela.plugin.sentence import naming

log = logging.getLogger(__name__)


def unprepare_claim(node: Node, ref: ClaimRef, deadline: Deadline) -> None:
    """Give everything of the claim back. Raises a TeselaError with a sentence; calling again goes on from there."""
    node = node.within(deadline)
    with node.hold_claim(ref, deadline) as lock:
        with node.telemetry.phase(Phase.READ_RECORD):
            record = read_or_rebuild(node, ref, deadline)
        unprepare_locked(node, ref, record, deadline)
        lock.discard()
    log.info("claim %s: unprepared%s", ref, "" if record is not None else " (it was not prepared here)")


def unprepare_locked(node: Node, ref: ClaimRef, record: ClaimRecord | None, deadline: Deadline) -> None:
    """The same with the claim's lock held and its record read."""
    with naming(ref, (device.device for device in record.devices) if record is not None else ()):
        if record is not None:
            record = replace(record, claim=ref)  # of an adopted claim the kubelet may be the first to tell the name
            give_back(node, mark_unpreparing(node, record), deadline)
        with node.telemetry.phase(Phase.FILES):
            node.workload.remove(ref.uid)
        with node.telemetry.phase(Phase.RECORD):
            node.records.remove(ref.uid)
