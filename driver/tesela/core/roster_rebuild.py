"""A roster whose file is damaged, rebuilt from what hangs on it: the node's own slices, and the claims' records.

Both say which GPU a device name means, and that binding is what must never change (invariant 7). The rest is seen again
at the first look; of a GPU that is gone, what its slices told is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from tesela.core.errors import StateError
from tesela.core.model import Gpu
from tesela.core.naming import WholeName, parse_device_name
from tesela.core.quantity import NANOS, parse_quantity
from tesela.core.record import ClaimRecord
from tesela.core.roster import KnownGpu, Roster
from tesela.core.slices.state import Json

_STANDARD = "resource.kubernetes.io"


def rebuild_roster(slices: Iterable[Json], records: Iterable[ClaimRecord], pool: str) -> Roster:
    """The GPUs that this node's slices and records name; empty where they name none.

    A generation is the newest on record, of no boot that ever was: it rises at the first look unless a recorded
    partition lives. StateError where slices and records contradict each other.
    """
    records = tuple(records)
    devices = [device for one in slices if _pool_of(one) == pool for device in one["spec"].get("devices") or ()]
    numbers: dict[str, int] = {}
    for name, gpu_uuid in (*_list_published(devices), *_list_recorded(records, pool)):
        _bind(numbers, name, gpu_uuid)
    return Roster(
        boot_id="",
        module_token="",
        driver_version="",
        cuda_driver_version=0,
        gpus=tuple(
            KnownGpu(
                number=number,
                gpu=_recall_gpu(gpu_uuid, number, devices),
                present=True,
                generation=_newest_generation(gpu_uuid, records),
            )
            for gpu_uuid, number in sorted(numbers.items(), key=lambda item: item[1])
        ),
    )


def names_all(roster: Roster, records: Iterable[ClaimRecord], pool: str) -> bool:
    """Whether the roster has the GPU of every recorded device under the number that the device's name carries.

    A copy that is older than a record might not: then it must not deal numbers.
    """
    numbers = {known.gpu.uuid: known.number for known in roster.gpus}
    recorded = ((parse_device_name(name), gpu_uuid) for name, gpu_uuid in _list_recorded(records, pool))
    return all(parsed is None or numbers.get(gpu_uuid) == parsed.number for parsed, gpu_uuid in recorded)


def choose_newest(known: Roster, copy: Roster | None) -> Roster:
    """The copy, which has what another process wrote since `known` was read; `known` where it is of an older day.

    A release that wrote no copies may have worked in between.
    """
    if copy is None:
        return known
    entries = {one.gpu.uuid: one for one in copy.gpus}
    newer = all(
        (entry := entries.get(one.gpu.uuid)) is not None
        and entry.number == one.number
        and entry.generation >= one.generation
        for one in known.gpus
    )
    return copy if newer else known


def renew_generations(roster: Roster, records: Iterable[ClaimRecord]) -> Roster:
    """The same GPUs, none of a generation before its newest on record: another process may have raised one since."""
    records = tuple(records)
    return replace(
        roster,
        gpus=tuple(
            replace(known, generation=max(known.generation, _newest_generation(known.gpu.uuid, records)))
            for known in roster.gpus
        ),
    )


def _bind(numbers: dict[str, int], name: str, gpu_uuid: str) -> None:
    parsed = parse_device_name(name)
    if parsed is None or not gpu_uuid:
        return
    number = numbers.setdefault(gpu_uuid, parsed.number)
    other = next((uuid for uuid, taken in numbers.items() if taken == parsed.number and uuid != gpu_uuid), None)
    if number != parsed.number or other is not None:
        raise StateError(
            f"device {name} means GPU {gpu_uuid} by one slice or record, and by another {other or f'gpu-{number}'}"
        )


def _list_published(devices: Iterable[Json]) -> Iterator[tuple[str, str]]:
    for device in devices:
        yield device["name"], _text(device, "parentUUID") or _text_of_whole(device)


def _text_of_whole(device: Json) -> str:
    """A driver without `parentUUID` on whole GPUs may have published them; the UUID of a partition is no GPU's."""
    return _text(device, "uuid") if isinstance(parse_device_name(device["name"]), WholeName) else ""


def _list_recorded(records: Iterable[ClaimRecord], pool: str) -> Iterator[tuple[str, str]]:
    return ((device.device, device.gpu_uuid) for record in records for device in record.devices if device.pool == pool)


def _newest_generation(gpu_uuid: str, records: Iterable[ClaimRecord]) -> int:
    return max((device.generation for record in records for device in record.devices_on(gpu_uuid)), default=1)


def _recall_gpu(gpu_uuid: str, number: int, devices: Iterable[Json]) -> Gpu:
    """What was published of a GPU. Nothing says which profiles it has, so it offers none before it is seen."""
    mine = [one for one in devices if gpu_uuid in (_text(one, "parentUUID"), _text_of_whole(one))]
    whole = [one for one in mine if isinstance(parse_device_name(one["name"]), WholeName)]
    device = next(iter((*whole, *mine)), {"name": f"gpu-{number}"})
    memory = whole[0].get("capacity", {}).get("memory", {}).get("value") if whole else None
    numa_node = _value(device, f"{_STANDARD}/numaNode", "int")
    index = _value(device, "index", "int")
    return Gpu(
        uuid=gpu_uuid,
        index=number if index is None else int(index),
        minor=number,
        pci_bus_id=_text(device, f"{_STANDARD}/pciBusID"),
        product_name=_text(device, "productName"),
        brand=_text(device, "brand"),
        architecture=_text(device, "architecture"),
        cuda_compute_capability=_value(device, "cudaComputeCapability", "version") or "",
        memory_bytes=parse_quantity(memory).nanos // NANOS if memory else None,
        mig_enabled=None,
        resetless_mig=False,
        profiles=(),
        addressing_mode=_text(device, "addressingMode") or None,
        numa_node=None if numa_node is None else int(numa_node),
        pcie_root=_text(device, f"{_STANDARD}/pcieRoot") or None,
        fabric_clique=_text(device, "fabricClique") or None,
    )


def _text(device: Json, name: str) -> str:
    return str(_value(device, name, "string") or "")


def _value(device: Json, name: str, kind: str) -> Any:
    return (device.get("attributes") or {}).get(name, {}).get(kind)


def _pool_of(one: Json) -> str:
    return str(one.get("spec", {}).get("pool", {}).get("name", ""))
