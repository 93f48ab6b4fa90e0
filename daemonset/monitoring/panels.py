# ruff: noqa: INP001 - data of a program beside it, no package
"""What the dashboards show: their variables, and per panel a query, its unit and what to read from it. Data alone.

Names of metrics are those of docs/observability.md; `node` is set by the scrape (scrape.yaml, podmonitor.yaml).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A choice at the top of a dashboard; `query` is Grafana's, over the data source."""

    name: str
    label: str
    query: str
    several: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One query. `legend` is per series, empty where there is one; `width` is of 24 columns."""

    title: str
    description: str
    query: str
    unit: str = "short"
    kind: Literal["graph", "stat", "table"] = "graph"
    legend: str = ""
    width: int = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One dashboard; `uid` is its file's name, too."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: Mapping[str, tuple[Panel, ...]]


_OPERATIONS: Final = "tesela_claim_operation_seconds"
_MEMORY: Final = "tesela_partition_memory"
_NODES: Final = 'node=~"$node"'
_NODE: Final = 'node="$node"'
_GPU: Final = f'{_NODE},gpu=~"$gpu"'
_CLAIM: Final = f'{_GPU},namespace=~"$namespace",claim=~"$claim"'
_WHO: Final = "{{namespace}}/{{claim}} {{gpu}} {{profile}}"


def _quantile(share: str, by: str, metric: str, labels: str) -> str:
    return f"histogram_quantile({share}, sum by (le, {by}) (rate({metric}_bucket{{{labels}}}[$__rate_interval])))"


FLEET: Final = Board(
    uid="tesela-fleet",
    title="Tesela / Fleet",
    description="GPUs and MIG partitions of all nodes: what there is, what is taken, what is ill, and how claims fare.",
    variables=(Variable(name="node", label="Node", query="label_values(tesela_build_info, node)"),),
    rows={
        "Now": (
            Panel(
                title="GPUs",
                description="GPUs that the nodes showed and nobody forgot, by state of health.",
                query=f"sum by (state) (tesela_gpus{{{_NODES}}})",
                kind="stat",
                legend="{{state}}",
                width=6,
            ),
            Panel(
                title="Claims prepared",
                description="Claims whose devices are ready on their nodes.",
                query=f"sum(tesela_claims_prepared{{{_NODES}}})",
                kind="stat",
                width=4,
            ),
            Panel(
                title="Devices given out",
                description="Whole GPUs and partitions that claims hold.",
                query=f'sum(tesela_devices{{{_NODES},state="allocated"}})',
                kind="stat",
                width=4,
            ),
            Panel(
                title="Drivers scraped",
                description="Drivers that answer, of those that Prometheus knows.",
                query='sum(up{job="tesela"}) / count(up{job="tesela"})',
                unit="percentunit",
                kind="stat",
                width=4,
            ),
            Panel(
                title="Alerts",
                description="Alerts of Tesela that fire. Each has a page in docs/runbooks.",
                query='count(ALERTS{alertname=~"Tesela.+",alertstate="firing"}) or vector(0)',
                kind="stat",
                width=6,
            ),
        ),
        "Inventory": (
            Panel(
                title="Devices by state",
                description=(
                    "Published devices. Excluded: an allocated device holds memory slices of it. Free: alone; two free "
                    "ones may exclude each other."
                ),
                query=f"sum by (state) (tesela_devices{{{_NODES}}})",
                legend="{{state}}",
            ),
            Panel(
                title="Devices by model, profile and state",
                description="The same as numbers. An empty profile is a whole GPU.",
                query=f"sum by (model, profile, state) (tesela_devices{{{_NODES}}})",
                kind="table",
            ),
            Panel(
                title="Largest device that a node could still give",
                description="A falling line with much memory free is fragmentation.",
                query=f"max by (node) (tesela_largest_profile_memory_bytes{{{_NODES}}})",
                unit="bytes",
                legend="{{node}}",
            ),
            Panel(
                title="GPUs by the largest profile that they have room for",
                description="How many GPUs could still give a device of that profile at most; an empty one is none.",
                query=f"count by (profile) (tesela_largest_profile_memory_bytes{{{_NODES}}} > 0)",
                legend="{{profile}}",
            ),
        ),
        "Health": (
            Panel(
                title="GPUs that are not healthy",
                description="Degraded ones work and get no new claims; unhealthy and gone ones hurt what runs on them.",
                query=f'sum by (node, state) (tesela_gpus{{{_NODES},state!="healthy"}})',
                legend="{{node}} {{state}}",
            ),
            Panel(
                title="Findings",
                description="What stands against GPUs and their partitions, by signal (docs/health.md).",
                query=f"sum by (node, gpu, signal, state) (tesela_health_findings{{{_NODES}}})",
                kind="table",
            ),
            Panel(
                title="Xids",
                description="Xid errors since each driver started. Most are the application's own.",
                query=f"sum by (node, xid) (tesela_xids_total{{{_NODES}}})",
                legend="{{node}} Xid {{xid}}",
            ),
            Panel(
                title="Found by sweeps",
                description="What belongs to no claim, or does not fit, and was not repaired (docs/sweep.md).",
                query=f"sum by (node, kind) (tesela_orphans{{{_NODES}}})",
                legend="{{node}} {{kind}}",
            ),
        ),
        "Claims": (
            Panel(
                title="Prepares and unprepares",
                description="Calls for one claim, by how they ended. Retry: the same call may succeed later.",
                query=f'sum by (verb, result) (rate({_OPERATIONS}_count{{{_NODES},phase="total"}}[$__rate_interval]))',
                unit="ops",
                legend="{{verb}} {{result}}",
            ),
            Panel(
                title="How long prepares and unprepares take",
                description="99 of 100 calls that ended well were done within this time.",
                query=_quantile("0.99", "verb", _OPERATIONS, f'{_NODES},phase="total",result="ok"'),
                unit="s",
                legend="{{verb}}",
            ),
            Panel(
                title="Where the time of a prepare goes",
                description="Nine of ten times, this phase of a prepare took no longer (docs/observability.md).",
                query=_quantile("0.9", "phase", _OPERATIONS, f'{_NODES},verb="prepare",phase!="total"'),
                unit="s",
                legend="{{phase}}",
            ),
            Panel(
                title="Failures by cause",
                description="Calls for one claim that failed. The sentence is in the driver's log, and on the pod.",
                query=f"sum by (verb, cause) (increase(tesela_claim_failures_total{{{_NODES}}}[$__rate_interval])) > 0",
                legend="{{verb}} {{cause}}",
            ),
        ),
        "Drivers": (
            Panel(
                title="Requests to the API server",
                description="By HTTP status; 0 is no answer.",
                query=f"sum by (code) (rate(tesela_api_requests_total{{{_NODES}}}[$__rate_interval]))",
                unit="reqps",
                legend="{{code}}",
            ),
            Panel(
                title="ResourceSlices written",
                description="An idle driver writes none.",
                query=f"sum by (node) (increase(tesela_slice_writes_total{{{_NODES}}}[$__rate_interval]))",
                legend="{{node}}",
            ),
            Panel(
                title="Memory of the drivers",
                description="Resident.",
                query=f'process_resident_memory_bytes{{{_NODES},job="tesela"}}',
                unit="bytes",
                legend="{{node}}",
            ),
            Panel(
                title="Versions",
                description="Of Tesela, of the GPU driver, and of the CUDA that it supports.",
                query=f"count by (node, version, driver_version, cuda_version) (tesela_build_info{{{_NODES}}})",
                kind="table",
            ),
        ),
    },
)

NODE: Final = Board(
    uid="tesela-node",
    title="Tesela / Node and claims",
    description="One node: its driver, its GPUs, and what each claim uses.",
    variables=(
        Variable(name="node", label="Node", query="label_values(tesela_build_info, node)", several=False),
        Variable(name="gpu", label="GPU", query=f"label_values(tesela_gpu_health{{{_NODE}}}, gpu)"),
        Variable(
            name="namespace",
            label="Namespace",
            query=f"label_values(tesela_partition_memory_total_bytes{{{_GPU}}}, namespace)",
        ),
        Variable(
            name="claim",
            label="Claim",
            query=f'label_values(tesela_partition_memory_total_bytes{{{_GPU},namespace=~"$namespace"}}, claim)',
        ),
    ),
    rows={
        "Driver": (
            Panel(
                title="Registered with the kubelet",
                description="1 once the kubelet accepted the driver; without it no pod gets a GPU here.",
                query=f"tesela_kubelet_registered{{{_NODE}}}",
                unit="bool_yes_no",
                kind="stat",
                width=4,
            ),
            Panel(
                title="ResourceSlices",
                description="Published for this node. None while the driver waits for the GPU driver.",
                query=f"tesela_slices_published{{{_NODE}}}",
                kind="stat",
                width=4,
            ),
            Panel(
                title="Health streams",
                description="Open ones of the kubelet. 0: pods show no device health.",
                query=f"tesela_health_streams{{{_NODE}}}",
                kind="stat",
                width=4,
            ),
            Panel(
                title="Listens for Xids",
                description="Whether NVML's events are listened to.",
                query=f"tesela_event_set_open{{{_NODE}}}",
                unit="bool_yes_no",
                kind="stat",
                width=4,
            ),
            Panel(
                title="Released for maintenance",
                description="Whether NVML is closed, so that the GPU driver can be changed (docs/maintenance.md).",
                query=f"tesela_nvml_released{{{_NODE}}}",
                unit="bool_yes_no",
                kind="stat",
                width=4,
            ),
            Panel(
                title="Driver libraries by",
                description="How containers get the GPU driver's libraries (docs/driver-libraries.md).",
                query=f"tesela_driver_libraries{{{_NODE}}}",
                legend="{{source}} {{driver_version}}",
                kind="stat",
                width=4,
            ),
            Panel(
                title="In the driver's way",
                description="A device plugin, another driver, or a kubelet that is silent (docs/troubleshooting.md).",
                query=f"max(tesela_node_trouble{{{_NODE}}})",
                unit="bool_yes_no",
                kind="stat",
                width=4,
            ),
            Panel(
                title="Since the last sweep",
                description="A sweep comes every five minutes.",
                query=f"time() - tesela_last_sweep_timestamp_seconds{{{_NODE}}}",
                unit="s",
                kind="stat",
                width=4,
            ),
        ),
        "GPUs": (
            Panel(
                title="State of health",
                description="The state that each GPU is in, its partitions included.",
                query=f"max by (gpu, uuid, model, state) (tesela_gpu_health{{{_GPU}}} == 1)",
                kind="table",
            ),
            Panel(
                title="Findings",
                description="What stands against each GPU; docs/health.md says what takes it back.",
                query=f"sum by (gpu, signal, state) (tesela_health_findings{{{_GPU}}})",
                kind="table",
            ),
            Panel(
                title="Xids",
                description="Xid errors since the driver started.",
                query=f"sum by (gpu, xid) (tesela_xids_total{{{_GPU}}})",
                legend="{{gpu}} Xid {{xid}}",
            ),
            Panel(
                title="NVML hangs",
                description="1 while a call about the GPU does not return.",
                query=f"tesela_nvml_wedged{{{_GPU}}}",
                legend="{{gpu}}",
            ),
            Panel(
                title="Largest device that a GPU could still give",
                description="By records, fences and counters; 0 where none could.",
                query=f"max by (gpu, profile) (tesela_largest_profile_memory_bytes{{{_GPU}}})",
                unit="bytes",
                legend="{{gpu}} {{profile}}",
            ),
            Panel(
                title="Devices by state",
                description="Published devices of the node. An empty profile is a whole GPU.",
                query=f"sum by (profile, state) (tesela_devices{{{_NODE}}})",
                legend="{{profile}} {{state}}",
            ),
        ),
        "Claims": (
            Panel(
                title="Who holds what",
                description="Devices of prepared claims, with their memory; an empty profile is a whole GPU.",
                query=f"max by (namespace, claim, gpu, uuid, profile) ({_MEMORY}_total_bytes{{{_CLAIM}}})",
                unit="bytes",
                kind="table",
                width=24,
            ),
            Panel(
                title="Memory in use",
                description="Of the device that the claim holds. Absent where the GPU does not tell.",
                query=f"{_MEMORY}_used_bytes{{{_CLAIM}}}",
                unit="bytes",
                legend=_WHO,
            ),
            Panel(
                title="Memory in use, of its own",
                description="At 100 % the next allocation fails.",
                query=f"{_MEMORY}_used_bytes{{{_CLAIM}}} / {_MEMORY}_total_bytes{{{_CLAIM}}}",
                unit="percentunit",
                legend=_WHO,
            ),
            Panel(
                title="Multiprocessors at work",
                description="How busy they were between two scrapes. Hopper and later.",
                query=f"tesela_sm_activity_ratio{{{_CLAIM}}}",
                unit="percentunit",
                legend=_WHO,
                width=24,
            ),
        ),
        "Work": (
            Panel(
                title="Where the time of a prepare goes",
                description="Nine of ten times, this phase took no longer.",
                query=_quantile("0.9", "phase", _OPERATIONS, f'{_NODE},verb="prepare",phase!="total"'),
                unit="s",
                legend="{{phase}}",
            ),
            Panel(
                title="Failures by cause",
                description="Calls for one claim that failed.",
                query=f"sum by (verb, cause) (increase(tesela_claim_failures_total{{{_NODE}}}[$__rate_interval])) > 0",
                legend="{{verb}} {{cause}}",
            ),
            Panel(
                title="How long NVML takes",
                description="Nine of ten calls came back within this time, their turn in line included.",
                query=_quantile("0.9", "function", "tesela_nvml_call_seconds", _NODE),
                unit="s",
                legend="{{function}}",
            ),
            Panel(
                title="How long locks are waited for",
                description="Nine of ten waits were over within this time.",
                query=_quantile("0.9", "lock", "tesela_lock_wait_seconds", _NODE),
                unit="s",
                legend="{{lock}}",
            ),
            Panel(
                title="Found by the last sweep",
                description="What belongs to no claim, or does not fit, and was not repaired (docs/sweep.md).",
                query=f"sum by (kind) (tesela_orphans{{{_NODE}}})",
                legend="{{kind}}",
            ),
            Panel(
                title="Damaged files set aside",
                description="Since the driver started. They lie under aside/ in its folder.",
                query=f"tesela_records_set_aside_total{{{_NODE}}}",
                legend="files",
            ),
        ),
    },
)

DASHBOARDS: Final = (FLEET, NODE)
