"""Builds the parts of the node program and joins them. Nothing runs yet, and no rule is decided here.

`main` starts the parts in order and stops them in reverse. A part that lives in the background (a thread that looks, or
that tells others) is a `Part` and goes into `Parts.background`; whoever adds one adds it here, in the place where it
is to start, and touches nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tesela.core.model import DRIVER_NAME
from tesela.core.shape import DEFAULT_POLICY
from tesela.edge.documents.policy import read_policy
from tesela.edge.host.host import Host
from tesela.edge.host.nvidia_smi import NvidiaSmi
from tesela.edge.kube.port import Kube
from tesela.edge.kubelet.server import KubeletServer
from tesela.edge.nvml.watchdog import WatchedNvml
from tesela.edge.store.cdi_files import CdiFiles
from tesela.edge.store.locks import FileLocks
from tesela.edge.store.metadata_files import MetadataFiles
from tesela.edge.store.records import RecordStore
from tesela.edge.store.roster import RosterStore
from tesela.plugin.config import PluginConfig
from tesela.plugin.gate import RecoveryGate
from tesela.plugin.lookout import Lookout
from tesela.plugin.monitor import Monitor
from tesela.plugin.node import Node
from tesela.plugin.partition import Partitions
from tesela.plugin.pool_state import read_pool_state
from tesela.plugin.publish import Publisher
from tesela.plugin.recover import Recovery
from tesela.plugin.roster_repair import repair_roster
from tesela.plugin.service import ClaimService
from tesela.plugin.workload import WorkloadFiles


class Part(Protocol):
    """Something that works in the background from `start` to `stop`."""

    def start(self) -> None:
        """Begin; returns at once."""
        ...

    def stop(self, timeout_s: float) -> bool:
        """End, also one that was never started. False: a thread of it goes on, which may be inside NVML."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything that runs. `background` starts last, in this order, and stops first, in reverse."""

    node: Node
    publisher: Publisher
    recovery: Recovery
    server: KubeletServer
    background: tuple[Part, ...]


def build_parts(
    config: PluginConfig,
    kube: Kube,
    nvml: WatchedNvml,
    *,
    on_registered: Callable[[bool, str], None],
    on_failure: Callable[[Exception], None],
) -> Parts:
    """All parts over real files and these backends. StartError: a file of ours or a setting makes a start senseless."""
    node = build_node(config, kube, nvml)
    publisher = Publisher(
        kube=kube,
        node_name=config.node_name,
        state=lambda: read_pool_state(node, nvml),
        lock=node.locks.publisher_lock(),
    )
    nvml.listen(lambda: publisher.wake("a call into NVML hangs, or hangs no longer"))
    recovery = Recovery(node)
    server = KubeletServer(
        driver_name=DRIVER_NAME,
        service=ClaimService(node),
        plugins_dir=config.plugins_dir,
        registry_dir=config.registry_dir,
        pod_uid=config.pod_uid,
        on_registered=on_registered,
        on_failure=on_failure,
    )
    return Parts(
        node=node,
        publisher=publisher,
        recovery=recovery,
        server=server,
        background=(Monitor(node, recovery, publisher.wake),),
    )


def build_node(config: PluginConfig, kube: Kube, nvml: WatchedNvml) -> Node:
    """The ports and the files of this node; a roster that is damaged is rebuilt first."""
    host = Host(
        proc_root=config.proc_root,
        sys_root=config.sys_root,
        dev_root=config.dev_root,
        dev_root_mount=config.dev_root_mount,
    )
    records, locks, partitions = RecordStore(config.state_dir), FileLocks(config.state_dir), Partitions(nvml)
    roster_store = RosterStore(config.state_dir)
    repair_roster(roster_store, records, locks, kube, config.node_name)
    lookout = Lookout(
        nvml=nvml, partitions=partitions, host=host, roster_store=roster_store, records=records, locks=locks
    )
    return Node(
        pool=config.node_name,
        nvml=nvml,
        partitions=partitions,
        host=host,
        nvidia_smi=NvidiaSmi(driver_root_mount=config.driver_root_mount),
        kube=kube,
        records=records,
        locks=locks,
        workload=WorkloadFiles(
            cdi=CdiFiles(config.cdi_dir),
            metadata=MetadataFiles(config.state_dir),
            host=host,
            nvml=nvml,
            lookout=lookout,
        ),
        lookout=lookout,
        policy=DEFAULT_POLICY if config.policy is None else read_policy(config.policy),
        gate=RecoveryGate(),
    )
