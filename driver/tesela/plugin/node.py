"""The ports of the node program joined into one value, and the few questions that prepare and unprepare share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from tesela.core.errors import NvmlError, TryAgain
from tesela.core.model import ClaimRef, GpuInstance, LivePartition
from tesela.core.record import ClaimRecord
from tesela.core.roster import KnownGpu
from tesela.core.shape import Policy
from tesela.edge.host.host import Host
from tesela.edge.host.nvidia_smi import NvidiaSmi
from tesela.edge.kube.port import Kube
from tesela.edge.nvml.port import Nvml
from tesela.edge.store.locks import FileLock, FileLocks, hold
from tesela.edge.store.records import RecordStore
from tesela.edge.telemetry.port import SILENT, Phase, Telemetry
from tesela.plugin.announce import UNHEARD, Announces
from tesela.plugin.deadline import Deadline
from tesela.plugin.gate import RecoveryGate
from tesela.plugin.health.keeper import HealthKeeper
from tesela.plugin.lookout import Lookout
from tesela.plugin.mode_holds import ModeHolds
from tesela.plugin.partition import Partitions
from tesela.plugin.workload import WorkloadFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Everything a claim's life on this node touches.

    `pool` is the name of this node's pool (its node name). `in_use_retry_s` bounds how long an unprepare insists on a
    partition that is in use; `fabric_wait_s` how long a whole GPU waits for its NVSwitch fabric; `api_retry_s` how long
    a prepare asks an API server that does not answer (the kubelet itself asks again only a minute later). `fabricless`
    are the GPUs that said they have no NVSwitch fabric. `mode_holds` counts refused switches of MIG modes.
    `announcer` hears of damaged files and of partitions that are in use.
    """

    pool: str
    nvml: Nvml
    partitions: Partitions
    host: Host
    nvidia_smi: NvidiaSmi
    kube: Kube
    records: RecordStore
    locks: FileLocks
    workload: WorkloadFiles
    lookout: Lookout
    policy: Policy
    gate: RecoveryGate
    health: HealthKeeper
    in_use_retry_s: float = 5.0
    fabric_wait_s: float = 20.0
    api_retry_s: float = 5.0
    fabricless: set[str] = field(default_factory=set)
    telemetry: Telemetry = SILENT
    mode_holds: ModeHolds = field(default_factory=ModeHolds)
    announcer: Announces = UNHEARD

    def within(self, deadline: Deadline) -> Node:
        """The same node, whose partitions begin no call of NVML after `deadline` (TryAgain)."""
        return replace(self, partitions=self.partitions.within(deadline))

    @contextlib.contextmanager
    def hold_claim(self, ref: ClaimRef, deadline: Deadline) -> Iterator[FileLock]:
        """The claim's lock for the length of the block."""
        with contextlib.ExitStack() as stack:
            with self.telemetry.phase(Phase.CLAIM_LOCK):
                lock = stack.enter_context(hold(self.locks.claim_lock(ref.uid), deadline.left_s, f"claim {ref}"))
            yield lock

    @contextlib.contextmanager
    def hold_gpus(self, gpu_uuids: Iterable[str], deadline: Deadline) -> Iterator[None]:
        """The locks of these GPUs, in ascending UUID order, for the length of the block.

        A boot or a module reload is noted before anybody works on a GPU.
        """
        with contextlib.ExitStack() as stack:
            with self.telemetry.phase(Phase.GPU_LOCK):
                for uuid in sorted(set(gpu_uuids)):
                    stack.enter_context(hold(self.locks.gpu_lock(uuid), deadline.left_s, f"GPU {uuid}"))
                    self.lookout.catch_up(uuid)
            yield

    def list_instances(self, known: KnownGpu) -> tuple[GpuInstance, ...]:
        """The GPU's instances; empty on a GPU without MIG."""
        self.partitions.check_read(known.gpu)
        return self.partitions.list_instances(known.gpu.uuid, known.gpu.profiles)

    def lives(self, record: ClaimRecord) -> bool:
        """Whether every partition of a record lives under its UUID. TryAgain where a GPU does not answer."""
        for device in record.devices:
            if not device.partitions:
                continue
            known = self.lookout.roster.find(device.gpu_uuid)
            try:
                live = {one.mig_uuid for one in self.list_live(known)} if known is not None else set()
            except NvmlError as error:
                claim = record.claim
                raise TryAgain(
                    f"claim {claim.namespace}/{claim.name}: device {device.device}: its GPU does not answer: {error}; "
                    "the kubelet tries again by itself"
                ) from error
            if any(partition.mig_uuid not in live for partition in device.partitions):
                return False
        return True

    def list_live(self, known: KnownGpu) -> tuple[LivePartition, ...]:
        """The GPU's instances with their MIG devices."""
        self.partitions.check_read(known.gpu)
        return self.partitions.list_live(known.gpu.uuid, known.gpu.profiles)
