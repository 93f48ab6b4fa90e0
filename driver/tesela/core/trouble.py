"""What may be wrong around the driver on its node, by name, for metrics and Events (`plugin/neighbours` looks)."""

from __future__ import annotations

from enum import StrEnum


class Trouble(StrEnum):
    """The values are an interface: labels of `tesela_node_trouble`."""

    DEVICE_PLUGIN = "device-plugin"
    """NVIDIA's device plugin offers the same GPUs, and the scheduler counts it apart from claims."""
    OTHER_DRIVER = "other-driver"
    """A driver of our name that is no tesela serves the same node, and the kubelet calls one of the two."""
    KUBELET = "kubelet"
    """The kubelet refused this driver, or does not ask for it."""
