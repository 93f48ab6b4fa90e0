"""A node whose claims NVIDIA's driver prepared, and what takes it over."""

from __future__ import annotations

from node_world import DRIVER, POOL, World
from tesela.core.adoption import TheirPartitions
from tesela.core.model import ClaimRef, LivePartition
from tesela.edge.kube.port import RESOURCE_SLICES
from tesela.edge.store.checkpoint import CheckpointFile
from tesela.plugin.adopt import Adopter, look_around
from tesela.plugin.partition import Partitions
from their_driver import TheirDriver


class Moved:
    """NVIDIA's driver on a world's node: two A100-40GB, the first in MIG mode, and two H100-80GB."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.theirs = TheirDriver(POOL, world.machine.snapshot().boot_id)

    def partition(self, name: str, number: int, profile: str, start: int) -> tuple[ClaimRef, LivePartition]:
        """A claim with a partition that NVIDIA's driver made."""
        device = self.world.partition(number, profile, start)
        ref = self.world.claim(name, device)
        live = self.make(number, profile, start)
        self.theirs.give_partition(ref.uid, device, live.gpu_uuid, mig_uuid=live.mig_uuid, gi_id=live.gi_id)
        self.theirs.write_cdi(self.world.cdi_dir, ref.uid)
        return ref, live

    def whole(self, name: str, number: int, **state) -> ClaimRef:
        """A claim with a whole GPU."""
        ref = self.world.claim(name, f"gpu-{number}")
        self.theirs.give_gpu(ref.uid, f"gpu-{number}", self.world.uuid(number), **state)
        self.theirs.write_cdi(self.world.cdi_dir, ref.uid)
        return ref

    def make(self, number: int, profile: str, start: int) -> LivePartition:
        """A partition that somebody else makes."""
        known = self.world.node.lookout.roster.find_number(number)
        found = next(one for one in known.gpu.profiles if one.name == profile)
        placement = next(one for one in found.placements if one.start == start)
        return Partitions(self.world.admin).create(known.gpu.uuid, found, placement)

    def publish(self, *devices: str, on_demand: bool = True, **more) -> None:
        """Their ResourceSlice, as the API still has it; each device has `more` fields."""
        counters = (
            {"consumesCounters": [{"counterSet": "gpu-0-counter-set", "counters": {"memory-slice-0": {"value": "1"}}}]}
            if on_demand
            else {}
        )
        pool = {"name": POOL, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": POOL, "pool": pool}
        spec["devices"] = [{"name": device, **counters, **more} for device in devices]
        slices = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "theirs"}}
        self.world.kube.create(RESOURCE_SLICES, slices | {"spec": spec})

    def adopt(self, *refs: ClaimRef, partitions=TheirPartitions.ON_DEMAND, write=True, **changes):
        """A start of ours: the look, the adoption, recovery. The report; `refs` are what the kubelet names."""
        world = self.world
        if write:
            self.theirs.write(world.state_dir)
        world.node = world.build(**changes)
        world.node.lookout.refresh()
        around = look_around(world.node, list_names=lambda: refs, partitions=partitions)
        report = Adopter(world.node, CheckpointFile(world.state_dir), around).adopt()
        world.recover()
        return report

    def live(self, number: int) -> list[int]:
        return [one.gi_id for one in self.world.instances(number)]
