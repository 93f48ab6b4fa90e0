"""Rows of the MIG map from a simulated machine, and what can still be handed out on it.

The pieces come from the machine alone, never from records or slices: the map shows what is, so that a test can hold
records and slices against it. Records only name who holds a piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tesela.cli.mig_map import MapBlock, MapRow
from tesela.core.geometry import Partition, list_survivors, plan_partitions
from tesela.core.record import ClaimRecord
from tesela.core.roster import KnownGpu
from tesela.edge.kube.port import Json
from tesela.edge.nvml import codes
from tesela.edge.simulator.state import GpuInstanceState, GpuState, MachineState

Slot = tuple[str, int, int]
"""GPU UUID, profile id and start: where a record says its partition stands, before and after it lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """Who holds what: partitions by slot, whole GPUs by UUID."""

    partitions: Mapping[Slot, str]
    whole_gpus: Mapping[str, str]


def plan_holders(records: Iterable[ClaimRecord], claims: Iterable[Json]) -> Holders:
    """Holders named by the pod that uses the claim, else by the claim. Admin access holds nothing."""
    pods = {claim["metadata"]["uid"]: _pod_of(claim) for claim in claims}
    partitions: dict[Slot, str] = {}
    whole: dict[str, str] = {}
    for record in records:
        holder = pods.get(record.claim.uid) or record.claim.name
        for device in record.devices:
            if device.admin_access:
                continue
            if not device.partitions:
                whole[device.gpu_uuid] = holder
            for partition in device.partitions:
                partitions[device.gpu_uuid, partition.profile_id, partition.placement.start] = holder
    return Holders(partitions=partitions, whole_gpus=whole)


def plan_map_rows(machine: MachineState, names: Mapping[str, str], holders: Holders) -> tuple[MapRow, ...]:
    """One row per GPU; `names` are device names by GPU UUID."""
    return tuple(_plan_row(gpu, names.get(gpu.uuid, gpu.uuid), holders) for gpu in machine.gpus)


def count_offers(known: Sequence[KnownGpu], machine: MachineState, holders: Holders) -> int:
    """Devices that a claim could still be given: legal partitions that nothing excludes, and whole GPUs that are empty.

    For the default policy, under which an empty node's count is that of its published devices.
    """
    gpus = {gpu.uuid: gpu for gpu in machine.gpus}
    return sum(_count_offers(one, gpus[one.gpu.uuid], holders) for one in known if one.gpu.uuid in gpus)


def _count_offers(known: KnownGpu, gpu: GpuState, holders: Holders) -> int:
    if gpu.uuid in holders.whole_gpus or gpu.presence != "present":
        return 0
    whole = known.gpu.resetless_mig or gpu.mig_current == codes.MIG_DISABLED
    if not (known.gpu.resetless_mig or gpu.mig_current == codes.MIG_ENABLED):
        return int(whole)
    everything = plan_partitions(known.gpu)
    taken = [partition for partition in everything if _stands(partition, gpu.instances)]
    return len(list_survivors(everything, taken)) + int(whole and not taken)


def _stands(partition: Partition, instances: Iterable[GpuInstanceState]) -> bool:
    slot = (partition.profile.profile_id, partition.placement)
    return any((instance.profile_id, instance.placement) == slot for instance in instances)


def _plan_row(gpu: GpuState, name: str, holders: Holders) -> MapRow:
    blocks = tuple(
        MapBlock(
            placement=instance.placement,
            profile=instance.profile,
            holder=holders.partitions.get((gpu.uuid, instance.profile_id, instance.placement.start)),
        )
        for instance in gpu.instances
    )
    return MapRow(
        name=name,
        product_name=gpu.product_name,
        mig="on" if gpu.mig_current == codes.MIG_ENABLED else "off",
        memory_slices=gpu.memory_slices,
        blocks=blocks,
        # A piece that lives is shown whatever a record says of the whole.
        whole_holder=None if blocks else holders.whole_gpus.get(gpu.uuid),
        remark="" if gpu.presence == "present" else gpu.presence.upper(),
    )


def _pod_of(claim: Json) -> str | None:
    reserved = claim.get("status", {}).get("reservedFor", [])
    return next((str(entry["name"]) for entry in reserved if entry["resource"] == "pods"), None)
