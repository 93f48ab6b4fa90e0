"""The machine behind the watchdog; tests of other backends bring their own fixtures of these names."""

from contract.nvml_watched import inner, machine, nvml

__all__ = ["inner", "machine", "nvml"]
