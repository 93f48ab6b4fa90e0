# ruff: noqa: INP001 - data beside its program, no package
"""GPU model families and their MIG profiles, as data for `generate.py`.

The names are those that NVIDIA's MIG User Guide lists, or that nvidia-smi printed on such a board; they come from the
GPU driver and may change with it, as they did on GB200. Families that the simulator has are held to its tables by a
test. Left out are boards of which the guides disagree or leave the profiles' names open (RTX PRO 5000 and 4500, Thor).
"""

from __future__ import annotations

from dataclasses import dataclass

AMPERE, HOPPER, BLACKWELL = "Ampere", "Hopper", "Blackwell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Boards with one set of profiles. `product` is a regular expression (RE2) that is searched for in productName.

    `memory_gib` are the bounds of a whole GPU's memory, since a product's name does not say it all: boards of two sizes
    share one, and a vGPU of four gigabytes is called `NVIDIA A30-4C`. A partition needs none: the size stands in its
    profile's name.
    """

    name: str
    architecture: str
    product: str
    profiles: tuple[str, ...]
    memory_gib: tuple[int, int]


def _seven_slices(*names: str) -> tuple[str, ...]:
    """The profiles of a board of seven slices; it has `+me` for the smallest one alone."""
    return (names[0], f"{names[0]}+me", *names[1:])


FAMILIES = (
    Family(
        name="a30-24gb",
        architecture=AMPERE,
        product=r"\bA30\b",
        profiles=("1g.6gb", "1g.6gb+me", "2g.12gb", "2g.12gb+me", "4g.24gb"),
        memory_gib=(20, 26),
    ),
    Family(
        name="a100-40gb",
        architecture=AMPERE,
        product=r"\bA100\b.*\b40GB\b",
        profiles=_seven_slices("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"),
        memory_gib=(35, 45),
    ),
    Family(
        name="a100-80gb",
        architecture=AMPERE,
        product=r"\bA100\b.*\b80GB\b",
        profiles=_seven_slices("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
        memory_gib=(70, 85),
    ),
    Family(
        name="h100-80gb",
        architecture=HOPPER,
        product=r"\bH100\b",
        profiles=_seven_slices("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
        memory_gib=(70, 85),
    ),
    Family(
        name="h100-94gb",
        architecture=HOPPER,
        product=r"\bH100\b.*\b(NVL|94GB)\b",
        profiles=_seven_slices("1g.12gb", "1g.24gb", "2g.24gb", "3g.47gb", "4g.47gb", "7g.94gb"),
        memory_gib=(85, 100),
    ),
    Family(
        name="h100-96gb",
        architecture=HOPPER,
        product=r"\bH100\b.*\b96GB\b",
        profiles=_seven_slices("1g.12gb", "1g.24gb", "2g.24gb", "3g.48gb", "4g.48gb", "7g.96gb"),
        memory_gib=(85, 100),
    ),
    Family(
        name="h20-96gb",
        architecture=HOPPER,
        product=r"\bH20\b",
        profiles=_seven_slices("1g.12gb", "1g.24gb", "2g.24gb", "3g.48gb", "4g.48gb", "7g.96gb"),
        memory_gib=(85, 100),
    ),
    Family(
        name="h200-141gb",
        architecture=HOPPER,
        product=r"\bH200\b",
        profiles=_seven_slices("1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"),
        memory_gib=(130, 150),
    ),
    Family(
        name="gh200-96gb",
        architecture=HOPPER,
        product=r"\bGH200\b",
        profiles=_seven_slices("1g.12gb", "1g.24gb", "2g.24gb", "3g.48gb", "4g.48gb", "7g.96gb"),
        memory_gib=(85, 100),
    ),
    Family(
        name="gh200-144gb",
        architecture=HOPPER,
        product=r"\bGH200\b",
        profiles=_seven_slices("1g.18gb", "1g.36gb", "2g.36gb", "3g.72gb", "4g.72gb", "7g.144gb"),
        memory_gib=(130, 150),
    ),
    Family(
        name="b200-180gb",
        architecture=BLACKWELL,
        product=r"\bB200\b",
        profiles=_seven_slices("1g.23gb", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"),
        memory_gib=(165, 190),
    ),
    Family(
        name="gb200-186gb",
        architecture=BLACKWELL,
        product=r"\bGB200\b",
        profiles=_seven_slices("1g.23gb", "1g.47gb", "2g.47gb", "3g.93gb", "4g.93gb", "7g.186gb"),
        memory_gib=(165, 195),
    ),
    Family(
        name="b300-269gb",
        architecture=BLACKWELL,
        product=r"\bB300\b",
        profiles=_seven_slices("1g.34gb", "1g.67gb", "2g.67gb", "3g.135gb", "4g.135gb", "7g.269gb"),
        memory_gib=(250, 290),
    ),
    Family(
        name="gb300-278gb",
        architecture=BLACKWELL,
        product=r"\bGB300\b",
        profiles=_seven_slices("1g.35gb", "1g.70gb", "2g.70gb", "3g.139gb", "4g.139gb", "7g.278gb"),
        memory_gib=(250, 295),
    ),
    Family(
        name="rtx-pro-6000",
        architecture=BLACKWELL,
        product=r"\bRTX PRO 6000\b",
        profiles=(
            *("1g.24gb", "1g.24gb+me", "1g.24gb+gfx", "1g.24gb+me.all", "1g.24gb-me"),
            *("2g.48gb", "2g.48gb+gfx", "2g.48gb+me.all", "2g.48gb-me"),
            *("4g.96gb", "4g.96gb+gfx"),
        ),
        memory_gib=(85, 100),
    ),
)
