"""Counters: what the partitions of one GPU compete for, and how much each takes.

One set per GPU, named and filled as NVIDIA's driver does it: engines and memory as maxima over the profiles, and one
counter per memory slice, so that a conflict of placements is a conflict of counters. The whole GPU takes everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tesela.core.geometry import Partition
from tesela.core.model import Gpu, Profile
from tesela.core.naming import render_counter_set_name
from tesela.core.quantity import NANOS, Quantity, QuantityFormat, format_quantity
from tesela.core.roster import KnownGpu
from tesela.core.slices.offer import GpuOffer
from tesela.core.slices.state import Json

MAX_COUNTERS = 32
"""Counters of a set, and of one device's consumption (resource.k8s.io/v1)."""


def render_integer(value: int) -> str:
    """A whole number as a quantity, in the binary form that the API keeps as it is: `4864Mi`, `14`, `0`."""
    return format_quantity(Quantity(value * NANOS, QuantityFormat.BINARY_SI))


def plan_capacity(profile: Profile) -> dict[str, int]:
    """The capacities of a partition, by the names of NVIDIA's driver; memory in bytes."""
    return {
        "memory": profile.memory_bytes,
        "multiprocessors": profile.multiprocessors,
        "copyEngines": profile.copy_engines,
        "decoders": profile.decoders,
        "encoders": profile.encoders,
        "jpegEngines": profile.jpeg_engines,
        "ofaEngines": profile.ofa_engines,
    }


CAPACITIES = ("memory", "multiprocessors", "copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines")
_COUNTER_NAMES = {
    "memory": "memory",
    "multiprocessors": "multiprocessors",
    "copyEngines": "copy-engines",
    "decoders": "decoders",
    "encoders": "encoders",
    "jpegEngines": "jpeg-engines",
    "ofaEngines": "ofa-engines",
}


def plan_gpu_capacity(gpu: Gpu) -> dict[str, int]:
    """Each capacity's maximum over the profiles, memory being what NVML says of the board; 0 where unknown."""
    capacity = dict.fromkeys(CAPACITIES, 0)
    for profile in gpu.profiles:
        capacity = {name: max(value, plan_capacity(profile)[name]) for name, value in capacity.items()}
    return capacity if gpu.memory_bytes is None else {**capacity, "memory": gpu.memory_bytes}


def plan_consumption(partition: Partition) -> dict[str, int]:
    """What a partition takes from its GPU's counters."""
    counters = {_COUNTER_NAMES[name]: value for name, value in plan_capacity(partition.profile).items()}
    counters.update({f"memory-slice-{index}": 1 for index in partition.placement.slices})
    return counters


def plan_counters(offer: GpuOffer) -> dict[str, int]:
    """The counters of a GPU, at least what its published devices and all that claims hold together consume.

    A counter below what is allocated would make the scheduler refuse every counted device of the node.
    """
    gpu = offer.known.gpu
    highest = dict.fromkeys(_COUNTER_NAMES.values(), 0)
    for profile in gpu.profiles:
        for name, value in plan_capacity(profile).items():
            highest[_COUNTER_NAMES[name]] = max(highest[_COUNTER_NAMES[name]], value)
    highest.update({f"memory-slice-{index}": 1 for index in range(gpu.grid_size)})
    published = [device for device in offer.devices if device.partition]
    for device in published:
        _raise(highest, plan_consumption(device.partition) if device.partition else {})
    _raise(highest, _sum(plan_consumption(d.partition) for d in published if d.held and d.partition))
    return highest


def render_counter_set(offer: GpuOffer) -> Json:
    """The offer's entry in sharedCounters."""
    return {"name": render_counter_set_name(offer.known.number), "counters": _render(plan_counters(offer))}


def render_consumption(known: KnownGpu, counters: dict[str, int]) -> list[Json]:
    """A device's consumesCounters."""
    return [{"counterSet": render_counter_set_name(known.number), "counters": _render(counters)}]


def _render(counters: dict[str, int]) -> Json:
    return {name: {"value": render_integer(value)} for name, value in counters.items()}


def _raise(counters: dict[str, int], at_least: dict[str, int]) -> None:
    for name, value in at_least.items():
        counters[name] = max(counters.get(name, 0), value)


def _sum(consumptions: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for consumption in consumptions:
        total.update(consumption)
    return dict(total)
