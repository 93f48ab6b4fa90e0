"""The binding's structs as values of the port: what `native` reads from them. Nothing else is asked of NVML here."""

from __future__ import annotations

from typing import Any, Final

import pynvml

from tesela.core.model import Placement
from tesela.edge.nvml import codes
from tesela.edge.nvml.binding import checked
from tesela.edge.nvml.port import GpuInstanceInfo

_VALUE_FIELDS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of nvmlValue_t by nvmlValueType_t."""


def gpu_instance_info(function: str, instance: Any) -> GpuInstanceInfo:
    """What a GPU instance's handle names. NvmlError: NOT_FOUND once the instance is gone."""
    info = checked(function, pynvml.nvmlGpuInstanceGetInfo, instance)
    return GpuInstanceInfo(
        gi_id=int(info.id),
        profile_id=int(info.profileId),
        placement=Placement(start=int(info.placement.start), size=int(info.placement.size)),
    )


def field_value(value: Any) -> int | None:
    """The value of a field, None where its own return code is no success."""
    if int(value.nvmlReturn) != codes.SUCCESS or not 0 <= int(value.valueType) < len(_VALUE_FIELDS):
        return None
    return int(getattr(value.value, _VALUE_FIELDS[int(value.valueType)]))


def profile_name(info: Any) -> str:
    """A profile's name without the prefix that drivers write, "" in the v1 structs, which have none."""
    return text_of(getattr(info, "name", "")).removeprefix("MIG ")


def text_of(value: Any) -> str:
    """A text, which the binding gives as bytes or not, depending on the struct."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
