"""What the publisher renders from: the durable facts, and one look at the partitions that live."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from functools import partial

from tesela.core.device_plugins import PluginUse, plan_offered_fences, plan_plugin_fences
from tesela.core.errors import NvmlError, NvmlReleased, NvmlTimeout
from tesela.core.model import LivePartition, Shape
from tesela.core.released import NOT_RELEASED, Released, plan_released_fences
from tesela.core.roster import KnownGpu
from tesela.core.slices.state import PoolState
from tesela.plugin.inventory import LOOK_TIMEOUT_S
from tesela.plugin.node import Node
from tesela.plugin.side_by_side import run_side_by_side

log = logging.getLogger(__name__)


def read_pool_state(
    node: Node,
    released: Released = NOT_RELEASED,
    given: Iterable[PluginUse] = (),
    offered: Collection[str] = (),
) -> PoolState:
    """The state of this node's pool. Records are read before and after the look at NVML (see `PoolState`).

    While NVML is `released` every device is tainted, and the partitions are those last seen. NvmlReleased: this process
    has seen none, and what a GPU offers is what somebody else made on it. `given` is what a device plugin gave,
    `offered` what it offers on the node, where the two are not to share it.
    """
    if released.is_wanted and _must_look_first(node):
        raise NvmlReleased("static partitions are published when NVML is open again; what the API has of them stays")
    before = node.records.list().records
    roster = node.lookout.roster
    looks = {known.gpu.uuid: partial(_list_live, node, known) for known in roster.gpus}
    seen = run_side_by_side(looks, timeout_s=LOOK_TIMEOUT_S, name="slices")
    live = [partition for uuid in looks for partition in (seen[uuid] if uuid in seen else _recall(node, uuid))]
    records = {record.claim.uid: record for record in (*before, *node.records.list().records)}
    return PoolState(
        pool=node.pool,
        roster=roster,
        policy=node.policy,
        live=tuple(live),
        records=tuple(records.values()),
        fences=(
            *node.health.fences(),
            *plan_released_fences(released, roster),
            *plan_offered_fences(offered, roster),
            *plan_plugin_fences(given, roster, live),
        ),
        health=node.health.health,
    )


def _must_look_first(node: Node) -> bool:
    static = any(node.policy.find_rule(known).mode is Shape.STATIC for known in node.lookout.roster.gpus)
    return static and not node.lookout.inventory.driver_version


def _list_live(node: Node, known: KnownGpu) -> tuple[LivePartition, ...]:
    """The GPU's live partitions; those of the last look where it does not answer, so that one GPU stops no other's."""
    if not known.present or known.gpu.mig_enabled is None:
        return ()
    try:
        return node.list_live(known)
    except NvmlReleased:
        return _recall(node, known.gpu.uuid)
    except (NvmlError, NvmlTimeout) as error:
        log.warning("GPU %s does not answer, its partitions are taken as last seen: %s", known.gpu.uuid, error)
        return _recall(node, known.gpu.uuid)


def _recall(node: Node, gpu_uuid: str) -> tuple[LivePartition, ...]:
    return tuple(one for one in node.lookout.inventory.partitions if one.gpu_uuid == gpu_uuid)
