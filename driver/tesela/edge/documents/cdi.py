"""A CDI document in YAML, as NVIDIA's driver writes them: read for the devices that it names, and nothing else."""

from __future__ import annotations

from typing import Any

import yaml

from tesela.core.cdi import CDI_KIND

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # theirs have hundreds of lines; the C one may be missing


def list_device_names(data: bytes) -> frozenset[str]:
    """The names of the devices in `data`; none where no runtime would load it, or it is of another kind than ours."""
    try:
        document = yaml.load(data, _LOADER)  # noqa: S506 -- one of the two safe loaders
    except (yaml.YAMLError, UnicodeDecodeError):
        return frozenset()
    if not isinstance(document, dict) or document.get("kind") != CDI_KIND:
        return frozenset()
    devices = document.get("devices")
    if not isinstance(devices, list):
        return frozenset()
    return frozenset(str(one.get("name")) for one in devices if isinstance(one, dict) and one.get("name"))
