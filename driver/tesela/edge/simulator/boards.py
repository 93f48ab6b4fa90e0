"""What a board is besides MIG: power limits, clocks, memory bus, cores, PCIe. Facts as data; None is not known.

Sources: NVIDIA's data sheets (power, cores, bus width, PCIe), and what nvidia-smi printed for such boards in public
issue threads (clocks, power limits, vBIOS, BAR 1). What nobody published for a board is answered NOT_SUPPORTED; no
figure is made up. What follows from load is in `telemetry`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One model. Clocks in MHz, power in milliwatts, temperatures in degrees Celsius."""

    cores: int
    memory_bus_bits: int
    pcie_generation: int
    power_limit_mw: int
    power_min_mw: int | None
    power_max_mw: int | None
    memory_mhz: int
    graphics_max_mhz: int | None
    graphics_idle_mhz: int | None
    graphics_default_mhz: int | None
    video_max_mhz: int | None = None
    video_idle_mhz: int | None = None
    bar1_mib: int | None
    shutdown_celsius: int | None = None
    slowdown_celsius: int | None = None
    memory_max_celsius: int | None = None
    gpu_max_celsius: int | None = None
    idle_pstate: int = 0
    nvlinks: int | None = None
    vbios: str | None = None


_A100_40GB: Final = Board(
    cores=6912,
    memory_bus_bits=5120,
    pcie_generation=4,
    power_limit_mw=400_000,
    power_min_mw=100_000,
    power_max_mw=400_000,
    memory_mhz=1215,
    graphics_max_mhz=1410,
    graphics_idle_mhz=210,
    graphics_default_mhz=1095,
    video_max_mhz=1290,
    bar1_mib=65536,
    shutdown_celsius=92,
    slowdown_celsius=89,
    memory_max_celsius=95,
    gpu_max_celsius=85,
    nvlinks=12,
)
_A100_80GB: Final = Board(
    cores=6912,
    memory_bus_bits=5120,
    pcie_generation=4,
    power_limit_mw=400_000,
    power_min_mw=100_000,
    power_max_mw=400_000,
    memory_mhz=1593,
    graphics_max_mhz=1410,
    graphics_idle_mhz=210,
    graphics_default_mhz=1155,
    video_max_mhz=1290,
    bar1_mib=131072,
    shutdown_celsius=92,
    slowdown_celsius=89,
    memory_max_celsius=95,
    gpu_max_celsius=85,
    nvlinks=12,
    vbios="92.00.45.00.05",
)
_A30: Final = Board(
    cores=3584,
    memory_bus_bits=3072,
    pcie_generation=4,
    power_limit_mw=165_000,
    power_min_mw=None,
    power_max_mw=165_000,
    memory_mhz=1215,
    graphics_max_mhz=1440,
    graphics_idle_mhz=210,
    graphics_default_mhz=1200,
    bar1_mib=32768,
)
_H100: Final = Board(
    cores=16896,
    memory_bus_bits=5120,
    pcie_generation=5,
    power_limit_mw=700_000,
    power_min_mw=200_000,
    power_max_mw=700_000,
    memory_mhz=2619,
    graphics_max_mhz=1980,
    graphics_idle_mhz=345,
    graphics_default_mhz=1980,
    video_max_mhz=1545,
    video_idle_mhz=765,
    bar1_mib=131072,
    nvlinks=18,
)
_H200: Final = Board(
    cores=16896,
    memory_bus_bits=6144,
    pcie_generation=5,
    power_limit_mw=700_000,
    power_min_mw=200_000,
    power_max_mw=700_000,
    memory_mhz=3201,
    graphics_max_mhz=1980,
    graphics_idle_mhz=345,
    graphics_default_mhz=1980,
    bar1_mib=262144,
    nvlinks=18,
    vbios="96.00.89.00.01",
)
_RTX_PRO_6000: Final = Board(
    cores=24064,
    memory_bus_bits=512,
    pcie_generation=5,
    power_limit_mw=600_000,
    power_min_mw=None,
    power_max_mw=600_000,
    memory_mhz=12481,
    graphics_max_mhz=None,
    graphics_idle_mhz=None,
    graphics_default_mhz=None,
    bar1_mib=131072,
    idle_pstate=8,
)

BOARDS: Final[dict[str, Board]] = {
    "a100-40gb": _A100_40GB,
    "a100-80gb": _A100_80GB,
    "a30-24gb": _A30,
    "h100-80gb": _H100,
    "h200-141gb": _H200,
    "rtx-pro-6000": _RTX_PRO_6000,
}
"""By the name of the model's table; a test holds that none lacks its board."""
PCIE_WIDTH: Final = 16
