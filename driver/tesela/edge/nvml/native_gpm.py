"""NVML's GPM samples under the port's: buffers that the library allocates, and the metrics between two of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pynvml

from tesela.core.errors import NvmlError
from tesela.edge.nvml import codes
from tesela.edge.nvml.binding import checked
from tesela.edge.nvml.functions import FUNCTIONS
from tesela.edge.nvml.port import GpmSample


@dataclass(frozen=True, slots=True)
class NativeSample:
    """The port's sample over nvmlGpmSample_t."""

    gpu_uuid: str
    buffer: Any


def read_sample(function: str, gpu_uuid: str, get: Callable[[Any], Any]) -> GpmSample:
    """A new sample that `get` fills. NvmlError: the code of that, with nothing left allocated."""
    buffer = checked(function, pynvml.nvmlGpmSampleAlloc)
    try:
        get(buffer)
    except NvmlError:
        checked("free_gpm_sample", pynvml.nvmlGpmSampleFree, buffer)
        raise
    return NativeSample(gpu_uuid, buffer)


def free_sample(sample: GpmSample) -> None:
    """nvmlGpmSampleFree."""
    checked("free_gpm_sample", pynvml.nvmlGpmSampleFree, _buffer_of(sample))


def read_metrics(before: GpmSample, after: GpmSample, metric_ids: Sequence[int]) -> tuple[float | None, ...]:
    """nvmlGpmMetricsGet; each metric has a code of its own."""
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    request.sample1, request.sample2 = _buffer_of(before), _buffer_of(after)
    if len(metric_ids) > len(request.metrics):
        raise _invalid()
    request.numMetrics = len(metric_ids)
    for metric, metric_id in zip(request.metrics, metric_ids, strict=False):
        metric.metricId = metric_id
    answer = checked("get_gpm_metrics", pynvml.nvmlGpmMetricsGet, request)
    found = answer.metrics[: len(metric_ids)]
    return tuple(float(one.value) if int(one.nvmlReturn) == codes.SUCCESS else None for one in found)


def _buffer_of(sample: GpmSample) -> Any:
    if not isinstance(sample, NativeSample):
        raise _invalid()
    return sample.buffer


def _invalid() -> NvmlError:
    return NvmlError(codes.INVALID_ARGUMENT, FUNCTIONS["get_gpm_metrics"], codes.TEXTS[codes.INVALID_ARGUMENT])
