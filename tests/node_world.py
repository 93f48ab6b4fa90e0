"""A node in memory: simulated GPUs with their host tree, an embedded cluster and the node program over real files.

`World` plays everybody around the driver: the kubelet (prepare, unprepare), the scheduler (claims come allocated), an
administrator with `nvidia-smi`, and the machine itself. It remembers what it was promised, and `check_invariants` holds
the node to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from node_invariants import check_invariants
from tesela.core.model import ClaimRef, PreparedDevice, Refusal
from tesela.core.naming import render_partition_name
from tesela.core.record import ClaimRecord
from tesela.core.shape import DEFAULT_POLICY, Policy
from tesela.edge.embedded.cluster import EmbeddedCluster
from tesela.edge.host.host import Host
from tesela.edge.host.nvidia_smi import NvidiaSmi
from tesela.edge.kube.port import NAMESPACES, RESOURCE_CLAIMS
from tesela.edge.simulator.hosttree import HostTree
from tesela.edge.simulator.machine import Machine, build_machine
from tesela.edge.simulator.nvml import SimulatedNvml
from tesela.edge.simulator.state import GpuInstanceState
from tesela.edge.store.cdi_files import CdiFiles
from tesela.edge.store.health import HealthStore
from tesela.edge.store.locks import FileLocks
from tesela.edge.store.metadata_files import MetadataFiles
from tesela.edge.store.records import RecordStore
from tesela.edge.store.roster import RosterStore
from tesela.plugin.announce import UNHEARD, Announces
from tesela.plugin.driver_files import DriverFilesKeeper
from tesela.plugin.gate import RecoveryGate
from tesela.plugin.health.keeper import HealthKeeper
from tesela.plugin.lookout import Lookout
from tesela.plugin.monitor import Monitor
from tesela.plugin.node import Node
from tesela.plugin.partition import Partitions
from tesela.plugin.recover import Recovery
from tesela.plugin.service import ClaimService
from tesela.plugin.workload import WorkloadFiles

POOL = "node-1"
DRIVER = "gpu.nvidia.com"
ADMIN_NAMESPACE = "watchers"
DEADLINE_S = 20.0
_SMI = '#!/bin/sh\necho "$@" >> "{calls}"\n'


@dataclass(frozen=True, kw_only=True)
class Ports:
    """What the node program touches; a test wraps one to record, to fail or to crash."""

    nvml: Any
    host: Any
    nvidia_smi: Any
    kube: Any
    records: Any
    cdi: Any
    metadata: Any
    rosters: Any
    locks: Any


@dataclass
class World:
    """One node and everybody around it.

    `foreign` holds the GPU instances of others, by GPU UUID and id. `promised` is what the kubelet was told. `granted`
    are the GPU-instance ids that containers may open, by GPU UUID and id: claim UID to the MIG UUID it was for; a grant
    ends with its claim or a boot, whatever becomes of the promise. `lost_gpus` lost their partitions, `unnoticed` since
    the last look.
    """

    root: Path
    machine: Machine
    kube: EmbeddedCluster
    policy: Policy = DEFAULT_POLICY
    wrap: Callable[[Ports], Ports] = lambda ports: ports
    driver_files: DriverFilesKeeper | None = None
    node: Node = field(init=False)
    foreign: set[tuple[str, int]] = field(default_factory=set)
    promised: dict[str, tuple[PreparedDevice, ...]] = field(default_factory=dict)
    granted: dict[tuple[str, int], dict[str, str]] = field(default_factory=dict)
    lost_gpus: set[str] = field(default_factory=set)
    unnoticed: set[str] = field(default_factory=set)

    @property
    def state_dir(self) -> Path:
        return self.root / "plugins" / DRIVER

    @property
    def cdi_dir(self) -> Path:
        return self.root / "cdi"

    @property
    def admin(self) -> SimulatedNvml:
        """NVML as an administrator uses it, beside the driver."""
        nvml = SimulatedNvml(self.machine)
        nvml.init()
        return nvml

    # The driver's process

    def start(self, **changes: Any) -> Node:
        """A new driver process over the same folders and GPUs, its claims recovered."""
        self.node = self.build(**changes)
        self.node.lookout.refresh()
        self.recover()
        self.unnoticed.clear()
        return self.node

    def recover(self) -> None:
        """What the process does at start, to its end."""
        recovery = Recovery(self.node)
        recovery.start()
        recovery.join(DEADLINE_S)

    def build(self, **changes: Any) -> Node:
        """A process that has looked at nothing yet. `changes` replace fields of its `Node`."""
        announcer = changes.pop("announcer", UNHEARD)
        node = self._build(self.wrap(self._open_ports()), announcer)
        return replace(node, **changes)

    def _open_ports(self) -> Ports:
        host = Host(
            proc_root=self.root / "host/proc",
            sys_root=self.root / "host/sys",
            dev_root=self.root / "host",
            dev_root_mount=self.root / "host",
        )
        return Ports(
            nvml=self.admin,
            host=host,
            nvidia_smi=NvidiaSmi(driver_root_mount=self.root / "driver"),
            kube=self.kube,
            records=RecordStore(self.state_dir),
            cdi=CdiFiles(self.cdi_dir),
            metadata=MetadataFiles(self.state_dir),
            rosters=RosterStore(self.state_dir),
            locks=FileLocks(self.state_dir),
        )

    def _build(self, ports: Ports, announcer: Announces) -> Node:
        partitions = Partitions(ports.nvml)
        lookout = Lookout(
            nvml=ports.nvml,
            partitions=partitions,
            host=ports.host,
            roster_store=ports.rosters,
            records=ports.records,
            locks=ports.locks,
            announcer=announcer,
        )
        workload = WorkloadFiles(
            cdi=ports.cdi,
            metadata=ports.metadata,
            host=ports.host,
            nvml=ports.nvml,
            lookout=lookout,
            driver_files=self.driver_files,
        )
        health = HealthKeeper(
            store=HealthStore(self.state_dir),
            lock=FileLocks(self.state_dir).health_lock,
            policy=self.policy.health,
            roster=lambda: lookout.roster,
            announcer=announcer,
        )
        return Node(
            pool=POOL,
            nvml=ports.nvml,
            partitions=partitions,
            host=ports.host,
            nvidia_smi=ports.nvidia_smi,
            kube=ports.kube,
            records=ports.records,
            locks=ports.locks,
            workload=workload,
            lookout=lookout,
            policy=self.policy,
            gate=RecoveryGate(),
            health=health,
            announcer=announcer,
            in_use_retry_s=0.0,
            fabric_wait_s=0.0,
            api_retry_s=0.0,
        )

    def look(self) -> None:
        """The monitor's look at the machine and at the files."""
        recovery = Recovery(self.node)
        monitor = Monitor(self.node, recovery, lambda _reason: None)
        monitor.look_at_machine()
        recovery.join(DEADLINE_S)
        monitor.restore_files()
        self.unnoticed.clear()

    # The scheduler and the kubelet

    def claim(self, name: str, *devices: str, configs: tuple[Mapping[str, Any], ...] = (), **result: Any) -> ClaimRef:
        """A claim allocated with these devices of ours, one request each: `r0`, `r1`... `result` adds to each."""
        results = [
            {"request": f"r{number}", "driver": DRIVER, "pool": POOL, "device": device, **result}
            for number, device in enumerate(devices)
        ]
        return self.allocate(name, results, configs)

    def allocate(
        self, name: str, results: list[dict[str, Any]] | None, configs: tuple[Mapping[str, Any], ...] = ()
    ) -> ClaimRef:
        """A claim with this allocation, None for none."""
        admin = any(result.get("adminAccess") for result in results or ())
        namespace = ADMIN_NAMESPACE if admin else "default"
        names = dict.fromkeys(result["request"].split("/")[0] for result in results or [{"request": "r0"}])
        requests = [_render_request(name, results or [], admin=admin) for name in names]
        obj = self.kube.create(
            RESOURCE_CLAIMS,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"devices": {"requests": requests}},
            },
        )
        if results is not None:
            devices = {"results": results, "config": [dict(config) for config in configs]}
            obj["status"] = {"allocation": {"devices": {key: value for key, value in devices.items() if value}}}
            self.kube.replace_status(RESOURCE_CLAIMS, obj)
        return ClaimRef(namespace=namespace, name=name, uid=obj["metadata"]["uid"])

    def prepare(self, ref: ClaimRef, node: Node | None = None) -> tuple[PreparedDevice, ...] | Refusal:
        """The kubelet's call; a promise is remembered."""
        node = node or self.node
        answer = ClaimService(node).prepare([ref], DEADLINE_S)[ref.uid]
        if not isinstance(answer, Refusal):
            self.promised[ref.uid] = answer
            self._start_containers(ref)
        return answer

    def _start_containers(self, ref: ClaimRef) -> None:
        record = self.record(ref)
        assert record is not None, "answered before the record was written"
        for device in record.devices:
            for partition in device.partitions:
                self.granted.setdefault((device.gpu_uuid, partition.gi_id), {})[ref.uid] = partition.mig_uuid

    def unprepare(self, ref: ClaimRef, node: Node | None = None) -> str | None:
        """The kubelet's call; its containers have ended before."""
        node = node or self.node
        self.forget_containers(ref)
        self.promised.pop(ref.uid, None)
        return ClaimService(node).unprepare([ref], DEADLINE_S)[ref.uid]

    def forget_containers(self, ref: ClaimRef) -> None:
        """The claim's containers have ended, with all that they might have opened."""
        for holders in self.granted.values():
            holders.pop(ref.uid, None)

    def refuse(self, ref: ClaimRef, node: Node | None = None) -> str:
        """Prepare what must be refused; the sentence."""
        answer = self.prepare(ref, node)
        assert isinstance(answer, Refusal), answer
        return answer.message

    def serve(self, ref: ClaimRef, node: Node | None = None) -> ClaimRecord:
        """Prepare what must be served; its record."""
        answer = self.prepare(ref, node)
        assert not isinstance(answer, Refusal), answer.message
        record = self.record(ref)
        assert record is not None
        return record

    # What there is

    def partition(self, number: int, profile: str, start: int) -> str:
        """The device name of a partition of GPU `number`."""
        known = self.node.lookout.roster.find_number(number)
        assert known is not None
        found = next(one for one in known.gpu.profiles if one.name == profile)
        return render_partition_name(number, found, next(p for p in found.placements if p.start == start))

    def uuid(self, number: int) -> str:
        return self.machine.snapshot().gpus[number].uuid

    def instances(self, number: int) -> tuple[GpuInstanceState, ...]:
        return self.machine.snapshot().gpus[number].instances

    def record(self, ref: ClaimRef) -> ClaimRecord | None:
        return RecordStore(self.state_dir).read(ref.uid)

    def record_path(self, ref: ClaimRef) -> Path:
        return RecordStore(self.state_dir).path(ref.uid)

    def cdi_path(self, ref: ClaimRef) -> Path:
        return CdiFiles(self.cdi_dir).path(ref.uid)

    def leftovers(self) -> list[str]:
        """What must not be there once every claim is unprepared."""
        listing = RecordStore(self.state_dir).list()
        ours = [
            f"GPU instance {instance.gi_id} of {gpu.uuid}"
            for gpu in self.machine.snapshot().gpus
            for instance in gpu.instances
            if (gpu.uuid, instance.gi_id) not in self.foreign
        ]
        files = [*CdiFiles(self.cdi_dir).list_ours(), *MetadataFiles(self.state_dir).list_claims()]
        return [*ours, *files, *(record.claim.uid for record in listing.records), *map(str, listing.unreadable)]

    # The administrator

    def make_foreign(self, number: int, profile: str, start: int) -> int:
        """A partition that somebody else makes; its GPU-instance id."""
        known = self.node.lookout.roster.find_number(number)
        assert known is not None
        found = next(one for one in known.gpu.profiles if one.name == profile)
        placement = next(p for p in found.placements if p.start == start)
        made = Partitions(self.admin).create(known.gpu.uuid, found, placement)
        self.foreign.add((known.gpu.uuid, made.gi_id))
        return made.gi_id

    def destroy_by_hand(self, number: int, gi_id: int) -> None:
        """`nvidia-smi mig -dgi` behind the driver's back, which then has its look."""
        uuid = self.uuid(number)
        found = next(one for one in self.instances(number) if one.gi_id == gi_id)
        for compute in found.compute_instances:
            self.admin.destroy_compute_instance(uuid, gi_id, compute.ci_id)
        self.admin.destroy_gpu_instance(uuid, gi_id)
        self.foreign.discard((uuid, gi_id))
        self.lost_gpus.add(uuid)
        self.look()

    def set_mig(self, number: int, *, on: bool) -> None:
        """Switch the MIG mode by hand."""
        assert self.admin.set_mig_mode(self.uuid(number), int(on)) == 0

    def reset(self, number: int) -> None:
        """A GPU reset: every partition and container's process of it is gone."""
        uuid = self.uuid(number)
        self.machine.reset(uuid, force=True)
        self.foreign = {one for one in self.foreign if one[0] != uuid}
        self.lost_gpus.add(uuid)
        self.unnoticed.add(uuid)

    def reboot(self) -> None:
        """The node restarts: no container runs, no partition lives, the driver starts anew, /var/run is empty."""
        self.machine.reboot()
        self._lose_everything()
        self.granted.clear()
        self.promised.clear()
        for path in self.cdi_dir.glob("*"):
            path.unlink()
        self.start()

    def reload_module(self) -> None:
        """The kernel module is loaded anew while the driver runs."""
        self.machine.reload_driver()
        self._lose_everything()

    def _lose_everything(self) -> None:
        self.foreign.clear()
        uuids = [gpu.uuid for gpu in self.machine.snapshot().gpus]
        self.lost_gpus.update(uuids)
        self.unnoticed.update(uuids)

    def install_smi(self) -> Path:
        """A stand-in for the host's nvidia-smi that writes down its arguments; the file it writes."""
        program, calls = self.root / "driver/usr/bin/nvidia-smi", self.root / "smi-calls"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(_SMI.format(calls=calls))
        program.chmod(0o755)
        return calls

    def check(self) -> None:
        """Every invariant of docs/invariants.md that can be seen from outside."""
        check_invariants(self)


def make_world(root: Path, gpus: str, **fields: Any) -> World:
    """A started node with these GPUs (`edge/simulator/spec.py` has the grammar)."""
    machine = build_machine(gpus)
    HostTree(root / "host", machine, make_nodes=False)
    kube = EmbeddedCluster()
    labels = {"resource.kubernetes.io/admin-access": "true"}
    kube.create(NAMESPACES, {"metadata": {"name": ADMIN_NAMESPACE, "labels": labels}})
    world = World(root=root, machine=machine, kube=kube, **fields)
    world.start()
    return world


def _render_request(name: str, results: list[dict[str, Any]], *, admin: bool) -> dict[str, Any]:
    subrequests = dict.fromkeys(
        result["request"].split("/")[1] for result in results if result["request"].startswith(f"{name}/")
    )
    if subrequests:
        return {
            "name": name,
            "firstAvailable": [{"name": subrequest, "deviceClassName": DRIVER} for subrequest in subrequests],
        }
    return {"name": name, "exactly": {"deviceClassName": DRIVER, **({"adminAccess": True} if admin else {})}}
