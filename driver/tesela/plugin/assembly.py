"""Builds the parts of the node program and joins them. Nothing runs yet, and no rule is decided here.

`main` starts the parts in order and stops them in reverse. A part that lives in the background (a thread that looks, or
that tells others) is a `Part` and goes into `Parts.background`; whoever adds one adds it here, in the place where it
is to start, and touches nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from tesela.core.device_plugins import PluginUse
from tesela.core.driver_files import LibraryMode
from tesela.core.health.model import Reach
from tesela.core.health.observations import Wedged
from tesela.core.health.signals import MODE_HELD
from tesela.core.model import DRIVER_NAME
from tesela.core.released import Released, describe_released
from tesela.core.shape import DEFAULT_POLICY
from tesela.edge.backends import open_library_file
from tesela.edge.documents.policy import read_policy
from tesela.edge.host.driver_files import DriverTree
from tesela.edge.host.host import Host
from tesela.edge.host.nvidia_smi import NvidiaSmi
from tesela.edge.host.toolkit import Toolkit
from tesela.edge.kube.port import Kube
from tesela.edge.kubelet.pod_resources import PodResources
from tesela.edge.kubelet.port import NodeService
from tesela.edge.kubelet.server import KubeletServer
from tesela.edge.nvml.watchdog import WatchedNvml, name_unread
from tesela.edge.store.cdi_files import CdiFiles
from tesela.edge.store.checkpoint import CheckpointFile
from tesela.edge.store.driver_files import DriverFilesStore
from tesela.edge.store.health import HealthStore
from tesela.edge.store.locks import FileLocks
from tesela.edge.store.metadata_files import MetadataFiles
from tesela.edge.store.records import RecordStore
from tesela.edge.store.released import ReleasedStore
from tesela.edge.store.roster import RosterStore
from tesela.edge.store.sweep import SweepStore
from tesela.edge.telemetry.port import SILENT, Telemetry
from tesela.plugin.adopt import Adopter, look_around
from tesela.plugin.announce import UNHEARD, Announcer, Announces
from tesela.plugin.claim_status import ClaimStatusWriter
from tesela.plugin.config import PluginConfig
from tesela.plugin.driver_files import DriverFilesKeeper
from tesela.plugin.gate import RecoveryGate
from tesela.plugin.health.keeper import HealthKeeper
from tesela.plugin.health.observers import Observers, build_observers
from tesela.plugin.health.report import HealthReport
from tesela.plugin.lookout import Lookout
from tesela.plugin.neighbours import Neighbours
from tesela.plugin.node import Node
from tesela.plugin.partition import Partitions
from tesela.plugin.plugin_uses import PluginUses
from tesela.plugin.pool_state import read_pool_state
from tesela.plugin.publish import Publisher
from tesela.plugin.recover import Recovery
from tesela.plugin.release_gpu import GpuRelease, Pausable, ReleaseFiles
from tesela.plugin.roster_repair import repair_roster
from tesela.plugin.service import ClaimService
from tesela.plugin.sweep import Sweeper
from tesela.plugin.usage import UsageSampler
from tesela.plugin.usage_source import NvmlUsage
from tesela.plugin.workload import WorkloadFiles


class Part(Protocol):
    """Something that works in the background from `start` to `stop`."""

    def start(self) -> None:
        """Begin; returns at once."""
        ...

    def stop(self, timeout_s: float) -> bool:
        """End, also one that was never started. False: a thread of it goes on, which may be inside NVML."""
        ...

    def find_fault(self) -> str | None:
        """What keeps it from working for good, as a sentence; None before the start and after the stop."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything that runs. `background` starts last, in this order, and stops first, in reverse.

    `pausable` are those that call NVML by themselves, by what they do: they pause while it is released.
    """

    node: Node
    publisher: Publisher
    adopter: Adopter
    recovery: Recovery
    server: KubeletServer
    observers: Observers
    sweeper: Sweeper
    release: GpuRelease
    usage: UsageSampler
    neighbours: Neighbours
    pausable: Mapping[str, Pausable]
    background: tuple[Part, ...]


def build_parts(
    config: PluginConfig,
    kube: Kube,
    nvml: WatchedNvml,
    *,
    on_registered: Callable[[bool, str], None],
    on_failure: Callable[[Exception], None],
    telemetry: Telemetry = SILENT,
    release_files: ReleaseFiles | None = None,
) -> Parts:
    """All parts over real files and these backends. StartError: a file of ours or a setting makes a start senseless.

    `release_files` are those that this process looked at before, if any.
    """
    announcer = Announcer(kube, config.node_name, telemetry=telemetry)
    node = build_node(config, kube, nvml, telemetry, announcer)
    publisher = _build_publisher(
        node, lambda: release.released, lambda: given.uses if given else (), lambda: neighbours
    )
    given = _build_plugin_uses(config, publisher)
    report = _build_report(node, lambda: release.released)
    statuses = _build_statuses(node, lambda: release.released)
    on_change = partial(_wake, publisher, report, statuses)
    _join_health(node, nvml, announcer, on_change)
    recovery = Recovery(node)
    observers = build_observers(node, nvml, recovery, on_change=on_change)
    sweeper = Sweeper(node, recovery, SweepStore(config.state_dir), on_change=on_change)
    files = _listen_to(release_files or build_release_files(config, kube), announcer)
    release = build_release(config, files, nvml, on_change=on_change, on_failure=on_failure)
    usage = _build_usage(node, nvml)
    looking = () if node.workload.driver_files is None else (node.workload.driver_files,)  # recovery waits for it
    server = _build_server(config, ClaimService(node, release.work), report, on_registered, on_failure)
    publisher.listen(server.send_health_again)  # when an older process ends, the kubelet forgets what both told
    neighbours = Neighbours(config, kube, announcer, own_socket=server.registrar_socket, on_change=publisher.wake)
    asking = _list_asking(config, usage, given, neighbours)
    return Parts(
        node=node,
        publisher=publisher,
        adopter=_build_adopter(config, node),
        recovery=recovery,
        server=server,
        observers=observers,
        sweeper=sweeper,
        release=release,
        usage=usage,
        neighbours=neighbours,
        pausable=_list_pausable(node, observers, sweeper, usage),
        background=(*looking, node.health, observers, sweeper, release, *asking, statuses, announcer),
    )


def _join_health(node: Node, nvml: WatchedNvml, announcer: Announcer, on_change: Callable[[str], None]) -> None:
    """Who hears of health, and whom health hears."""
    node.health.listen(lambda _changes: on_change("health changed"))
    nvml.listen(node.health.wake)
    node.mode_holds.attach(node.health.post, partial(_list_mode_held, node.health))
    node.health.listen(
        lambda changes: announcer.announce_health(changes, node.lookout.roster, lambda: node.records.list().records)
    )


def _list_asking(
    config: PluginConfig, usage: UsageSampler, given: PluginUses | None, neighbours: Neighbours
) -> tuple[Part, ...]:
    """Those that ask others. What claims use, only a scrape wants to know."""
    sampling = () if config.metrics_port is None else (usage,)
    return (*sampling, neighbours) if given is None else (*sampling, given, neighbours)


def _listen_to(files: ReleaseFiles, announcer: Announcer) -> ReleaseFiles:
    files.listen(announcer.announce_set_aside)
    return files


def _build_usage(node: Node, nvml: WatchedNvml) -> UsageSampler:
    return UsageSampler(
        records=lambda: node.records.list().records, roster=lambda: node.lookout.roster, source=NvmlUsage(nvml)
    )


def _build_adopter(config: PluginConfig, node: Node) -> Adopter:
    names = PodResources(config.pod_resources).list_claims if config.pod_resources is not None else tuple
    around = look_around(node, list_names=names, partitions=config.adopted_partitions)
    return Adopter(node, CheckpointFile(config.state_dir), around)


def _list_pausable(node: Node, observers: Observers, sweeper: Sweeper, usage: UsageSampler) -> dict[str, Pausable]:
    """Who calls NVML by itself, by what it does. NVIDIA's container toolkit does it in a process of its own."""
    files = node.workload.driver_files
    asking: dict[str, Pausable] = {} if files is None else {"the container toolkit": files}
    return {"a look at the GPUs": observers, "a sweep": sweeper, "a look at what claims use": usage, **asking}


def _build_server(
    config: PluginConfig,
    service: NodeService,
    report: HealthReport,
    on_registered: Callable[[bool, str], None],
    on_failure: Callable[[Exception], None],
) -> KubeletServer:
    server = KubeletServer(
        driver_name=DRIVER_NAME,
        service=service,
        plugins_dir=config.plugins_dir,
        registry_dir=config.registry_dir,
        pod_uid=config.pod_uid,
        on_registered=on_registered,
        on_failure=on_failure,
    )
    server.serve_health(report)
    return server


def _build_plugin_uses(config: PluginConfig, publisher: Publisher) -> PluginUses | None:
    if config.pod_resources is None:
        return None
    return PluginUses(PodResources(config.pod_resources), on_change=publisher.wake)


def _build_publisher(
    node: Node,
    released: Callable[[], Released],
    given: Callable[[], Iterable[PluginUse]],
    neighbours: Callable[[], Neighbours],
) -> Publisher:
    return Publisher(
        kube=node.kube,
        node_name=node.pool,
        state=lambda: read_pool_state(node, released(), given(), neighbours().get_offered()),
        lock=node.locks.publisher_lock(),
        telemetry=node.telemetry,
    )


def _build_statuses(node: Node, released: Callable[[], Released]) -> ClaimStatusWriter:
    statuses = ClaimStatusWriter(
        node.kube, node.records, lambda: node.health.health, unread=lambda: describe_released(released())
    )
    node.records.listen(statuses.wake)
    return statuses


def _build_report(node: Node, released: Callable[[], Released]) -> HealthReport:
    return HealthReport(
        pool=node.pool,
        health=lambda: node.health.health,
        roster=lambda: node.lookout.roster,
        records=lambda: node.records.list().records,
        released=released,
    )


def _wake(publisher: Publisher, report: HealthReport, statuses: ClaimStatusWriter, reason: str) -> None:
    publisher.wake(reason)
    report.wake()
    statuses.wake()


def _list_mode_held(health: HealthKeeper) -> dict[str, bool]:
    """GPUs whose mode is held, and whether MIG mode is the one that cannot be had: then it fences the partitions."""
    held = (one for one in health.health.findings if one.signal == MODE_HELD)
    return {one.gpu_uuid: one.reach is Reach.PARTITIONS for one in held}


def build_release_files(config: PluginConfig, kube: Kube) -> ReleaseFiles:
    """What `tesela release-gpu` and the node's label say, for a process that has opened nothing yet."""
    return ReleaseFiles(ReleasedStore(config.state_dir), FileLocks(config.state_dir), kube, config.node_name)


def build_release(
    config: PluginConfig,
    files: ReleaseFiles,
    nvml: WatchedNvml,
    *,
    on_change: Callable[[str], None],
    on_failure: Callable[[Exception], None],
) -> GpuRelease:
    """Who closes NVML when asked to. Only the host's library can be replaced under this process."""
    return GpuRelease(
        nvml,
        files,
        on_change=on_change,
        on_failure=on_failure,
        library=open_library_file(config.nvml, config.driver_root_mount),
    )


def build_node(
    config: PluginConfig, kube: Kube, nvml: WatchedNvml, telemetry: Telemetry = SILENT, announcer: Announces = UNHEARD
) -> Node:
    """The ports and the files of this node; a roster that is damaged is rebuilt first."""
    host = _build_host(config)
    records, partitions = RecordStore(config.state_dir), Partitions(nvml)
    locks, roster_store = FileLocks(config.state_dir, telemetry), RosterStore(config.state_dir)
    repair_roster(roster_store, records, locks, kube, config.node_name, announcer)
    lookout = Lookout(
        nvml=nvml,
        partitions=partitions,
        host=host,
        roster_store=roster_store,
        records=records,
        locks=locks,
        announcer=announcer,
    )
    policy = DEFAULT_POLICY if config.policy is None else read_policy(config.policy)
    health = HealthKeeper(
        store=HealthStore(config.state_dir),
        lock=locks.health_lock,
        policy=policy.health,
        roster=lambda: lookout.roster,
        wedged=partial(_list_wedged, nvml, lookout),
        announcer=announcer,
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
        workload=_build_workload(config, host, nvml, lookout, health),
        lookout=lookout,
        policy=policy,
        gate=RecoveryGate(),
        health=health,
        telemetry=telemetry,
        announcer=announcer,
    )


def _list_wedged(nvml: WatchedNvml, lookout: Lookout) -> Wedged:
    """Where a call hangs. A GPU that does not even tell its UUID is the one that its index had, as a look takes it."""
    stuck = nvml.wedged_gpus()
    if not stuck:
        return Wedged(whole_node=nvml.wedged_node)
    unread = {name_unread(known.gpu.index): known.gpu.uuid for known in lookout.roster.gpus if known.present}
    return Wedged(gpu_uuids=frozenset(unread.get(name, name) for name in stuck), whole_node=nvml.wedged_node)


def _build_host(config: PluginConfig) -> Host:
    return Host(
        proc_root=config.proc_root,
        sys_root=config.sys_root,
        dev_root=config.dev_root,
        dev_root_mount=config.dev_root_mount,
    )


def _build_workload(
    config: PluginConfig, host: Host, nvml: WatchedNvml, lookout: Lookout, health: HealthKeeper
) -> WorkloadFiles:
    return WorkloadFiles(
        cdi=CdiFiles(config.cdi_dir),
        metadata=MetadataFiles(config.state_dir),
        host=host,
        nvml=nvml,
        lookout=lookout,
        health=lambda: health.health,
        driver_files=_build_driver_files(config, lookout),
    )


def _build_driver_files(config: PluginConfig, lookout: Lookout) -> DriverFilesKeeper | None:
    if config.driver_libraries is LibraryMode.NONE:
        return None
    tree = DriverTree(driver_root=config.driver_root, driver_root_mount=config.driver_root_mount)
    return DriverFilesKeeper(
        tree,
        Toolkit(tree),
        DriverFilesStore(config.state_dir),
        mode=config.driver_libraries,
        driver_version=lambda: lookout.roster.driver_version,
    )
