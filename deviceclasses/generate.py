# ruff: noqa: INP001 - a program beside its data, no package
"""Writes `profiles/`: a file per model family, with a DeviceClass for the whole GPU and one per MIG profile.

`--check` changes nothing, says which files differ from what it would write, and exits 1. The data is in `families.py`.
daemonset/chart/generate.py copies the files into the chart.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from families import FAMILIES, Family

HERE = Path(__file__).resolve().parent
PROFILES = HERE / "profiles"
ATTRIBUTES = 'device.attributes["gpu.nvidia.com"]'
HEAD = "# Written by deviceclasses/generate.py from families.py; `make catalogue` writes it anew.\n"
_SUFFIXES = {"": "", "+me": "-me", "+me.all": "-me-all", "+gfx": "-gfx", "-me": "-no-me"}
"""A class name has no `+`, and `+me` and `-me` must stay apart: with the media extensions, and without any."""


def name_class(family: Family, profile: str = "") -> str:
    """`nvidia-h100-80gb-1g-10gb`; without a profile the class of the whole GPU."""
    if not profile:
        return f"nvidia-{family.name}"
    plain = re.match(r"[1-9]g\.[0-9]+gb", profile)
    if plain is None or (suffix := _SUFFIXES.get(profile[plain.end() :])) is None:
        raise ValueError(f"{family.name}: {profile} is no profile name that a class can be named after")
    return f"nvidia-{family.name}-{plain[0].replace('.', '-')}{suffix}"


def list_terms(family: Family, profile: str = "") -> list[str]:
    """What a selector compares. `type` stands before `profile`, which not every driver's whole GPUs have."""
    terms = [
        'device.driver == "gpu.nvidia.com"',
        f'{ATTRIBUTES}.type == "{"mig" if profile else "gpu"}"',
        f'{ATTRIBUTES}.architecture == "{family.architecture}"',
        f'{ATTRIBUTES}.productName.matches(r"{family.product}")',
    ]
    if profile:
        return [*terms, f'{ATTRIBUTES}.profile == "{profile}"']
    memory = 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity'
    least, most = family.memory_gib
    return [*terms, f'{memory}("{least}Gi")) > 0', f'{memory}("{most}Gi")) < 0']


def render_class(family: Family, profile: str = "") -> str:
    """One DeviceClass as YAML."""
    expression = " &&\n          ".join(list_terms(family, profile))
    return f"""apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata:
  name: {name_class(family, profile)}
  labels:
    app.kubernetes.io/part-of: tesela
    app.kubernetes.io/component: {family.name}
spec:
  selectors:
    - cel:
        expression: >-
          {expression}
"""


def render_family(family: Family) -> str:
    """The family's file."""
    return HEAD + "---\n".join(render_class(family, profile) for profile in ("", *family.profiles))


def render_kustomization() -> str:
    """All families at once."""
    resources = "".join(f"  - {family.name}.yaml\n" for family in FAMILIES)
    return f"{HEAD}apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n{resources}"


def render_files() -> dict[Path, str]:
    """Every file that is generated, by its path."""
    return {
        PROFILES / "kustomization.yaml": render_kustomization(),
        **{PROFILES / f"{family.name}.yaml": render_family(family) for family in FAMILIES},
    }


def main() -> int:
    """Writes or checks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a file has drifted")
    check = parser.parse_args().check
    texts = render_files()
    drifted = {path for path, text in texts.items() if not path.exists() or path.read_text() != text}
    drifted |= set(PROFILES.glob("*")) - set(texts)
    for path in sorted(drifted):
        if check:
            shown = path.relative_to(HERE.parent)
            sys.stderr.write(f"{shown} is not what deviceclasses/generate.py writes; run `make catalogue`\n")
        elif path in texts:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(texts[path])
        else:
            path.unlink()
    return 1 if check and drifted else 0


if __name__ == "__main__":
    sys.exit(main())
