"""What the publisher renders from: the durable facts, and one look at the partitions that live."""

from __future__ import annotations

import logging

from tesela.core.errors import NvmlError, NvmlTimeout
from tesela.core.model import LivePartition
from tesela.core.roster import KnownGpu
from tesela.core.slices.state import PoolState
from tesela.plugin.node import Node

log = logging.getLogger(__name__)


def read_pool_state(node: Node) -> PoolState:
    """The state of this node's pool. Records are read before and after the look at NVML (see `PoolState`)."""
    before = node.records.list().records
    roster = node.lookout.roster
    live = tuple(partition for known in roster.gpus for partition in _list_live(node, known))
    records = {record.claim.uid: record for record in (*before, *node.records.list().records)}
    return PoolState(pool=node.pool, roster=roster, policy=node.policy, live=live, records=tuple(records.values()))


def _list_live(node: Node, known: KnownGpu) -> tuple[LivePartition, ...]:
    """The GPU's live partitions; those of the last look where it does not answer, so that one GPU stops no other's."""
    if not known.present or known.gpu.mig_enabled is None:
        return ()
    try:
        return node.list_live(known)
    except (NvmlError, NvmlTimeout) as error:
        log.warning("GPU %s does not answer, its partitions are taken as last seen: %s", known.gpu.uuid, error)
        return tuple(one for one in node.lookout.inventory.partitions if one.gpu_uuid == known.gpu.uuid)
