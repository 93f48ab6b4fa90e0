"""Every metric of the driver: name, kind, labels and what it means. The only list; docs/observability.md is held to it.

Names and labels are an interface: dashboards and alerts are built on them. None is renamed; a new one is added here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """Prometheus' metric types."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `name` is as scraped, a counter's with `_total`; `help` begins where HELP does."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


_DEVICE_LABELS: Final = ("gpu", "uuid", "profile", "namespace", "claim")

METRICS: Final = (
    Metric(
        "tesela_build_info",
        Kind.GAUGE,
        ("version", "driver_version", "cuda_version"),
        "Always 1: the release of Tesela, of the GPU driver, and the CUDA version that the GPU driver supports.",
    ),
    Metric("tesela_gpus", Kind.GAUGE, ("model", "state"), "GPUs of this node by model and health state."),
    Metric(
        "tesela_devices",
        Kind.GAUGE,
        ("model", "profile", "state"),
        "Published devices by model, MIG profile (empty for whole GPUs) and state: free, allocated, tainted, or "
        "excluded by an allocated device on the same memory slices.",
    ),
    Metric(
        "tesela_gpu_health",
        Kind.GAUGE,
        ("gpu", "uuid", "model", "state"),
        "1 for the state that the GPU is in, 0 for the others: healthy, degraded, unhealthy, gone.",
    ),
    Metric(
        "tesela_health_findings",
        Kind.GAUGE,
        ("gpu", "signal", "state"),
        "Standing health findings of a GPU and its partitions, by signal and the state that it means.",
    ),
    Metric(
        "tesela_partition_memory_used_bytes",
        Kind.GAUGE,
        _DEVICE_LABELS,
        "Memory in use on a device that a claim holds (profile empty for a whole GPU); absent where unknown.",
    ),
    Metric(
        "tesela_partition_memory_total_bytes",
        Kind.GAUGE,
        _DEVICE_LABELS,
        "Memory of a device that a claim holds (profile empty for a whole GPU); absent where unknown.",
    ),
    Metric(
        "tesela_sm_activity_ratio",
        Kind.GAUGE,
        _DEVICE_LABELS,
        "How busy the multiprocessors of a device that a claim holds were since the last scrape, 0 to 1; absent where "
        "the GPU does not tell.",
    ),
    Metric("tesela_claims_prepared", Kind.GAUGE, (), "Claims that are prepared on this node."),
    Metric(
        "tesela_claim_operation_seconds",
        Kind.HISTOGRAM,
        ("verb", "phase", "result"),
        "How long prepare, unprepare and recover of one claim took, as a whole (phase total) and by phase.",
    ),
    Metric(
        "tesela_claim_failures_total",
        Kind.COUNTER,
        ("verb", "cause"),
        "Calls for one claim that failed, by cause.",
    ),
    Metric(
        "tesela_nvml_call_seconds",
        Kind.HISTOGRAM,
        ("function", "result"),
        "How long callers waited for an NVML function, their turn included; result is ok, timeout or NVML's code.",
    ),
    Metric(
        "tesela_nvml_wedged",
        Kind.GAUGE,
        ("gpu",),
        "1 while a call into NVML about this GPU has not returned in time, or NVML as a whole is suspect.",
    ),
    Metric("tesela_xids_total", Kind.COUNTER, ("gpu", "xid"), "Xid errors that the GPU reported."),
    Metric(
        "tesela_api_requests_total",
        Kind.COUNTER,
        ("verb", "resource", "code"),
        "Requests to the Kubernetes API by verb, resource and HTTP status (0: no answer).",
    ),
    Metric("tesela_slice_writes_total", Kind.COUNTER, (), "ResourceSlices created, replaced or deleted."),
    Metric(
        "tesela_records_set_aside_total", Kind.COUNTER, (), "Damaged state files that were kept aside and replaced."
    ),
    Metric(
        "tesela_orphans",
        Kind.GAUGE,
        ("kind",),
        "What the last sweep found on this node that belongs to no claim, by kind.",
    ),
    Metric(
        "tesela_largest_profile_memory_bytes",
        Kind.GAUGE,
        ("gpu", "profile"),
        "Memory of the largest device that a claim could still be given on this GPU, with its MIG profile (empty for "
        "a whole GPU); 0 with an empty profile where nothing can.",
    ),
    Metric(
        "tesela_kubelet_registered", Kind.GAUGE, (), "1 once the kubelet has accepted the registration of this driver."
    ),
    Metric("tesela_slices_published", Kind.GAUGE, (), "ResourceSlices of this node's pool as last rendered."),
    Metric("tesela_health_streams", Kind.GAUGE, (), "Open health streams of the kubelet."),
    Metric(
        "tesela_node_trouble",
        Kind.GAUGE,
        ("kind",),
        "1 while something on the node is in the driver's way: a device plugin for the same GPUs, another driver of "
        "the same name, a kubelet that does not register it.",
    ),
    Metric("tesela_nvml_released", Kind.GAUGE, (), "1 while NVML is released for maintenance of the GPUs."),
    Metric(
        "tesela_last_sweep_timestamp_seconds", Kind.GAUGE, (), "When the last sweep of this node ended, in Unix time."
    ),
    Metric("tesela_event_set_open", Kind.GAUGE, (), "1 while NVML's events (Xids and others) are being listened to."),
    Metric(
        "tesela_driver_libraries",
        Kind.GAUGE,
        ("source", "driver_version"),
        "Always 1: how containers get the libraries of the GPU driver: toolkit, mount, or none.",
    ),
    Metric(
        "tesela_lock_wait_seconds",
        Kind.HISTOGRAM,
        ("lock",),
        "How long a lock was waited for, until it was had or given up, by kind.",
    ),
)
"""In the order in which docs/observability.md explains them."""

BY_NAME: Final = {metric.name: metric for metric in METRICS}
