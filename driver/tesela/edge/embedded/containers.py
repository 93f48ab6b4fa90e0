"""What a container runtime would put into a container for its CDI ids: environment, device nodes, mounts.

Reads the CDI folder as runtimes do (JSON files, all edits of the file and of the device); starts nothing.
Rules: the Container Device Interface specification, sections on `containerEdits`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tesela.core.errors import TryAgain
from tesela.edge.kube.port import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedContainer:
    """One container's share of its claims. `device_nodes` are paths inside, `mounts` (host path, container path).

    `host_nodes` are where the device nodes come from; equal to `device_nodes` where the CDI file names no other path.
    """

    env: dict[str, str]
    device_nodes: tuple[str, ...]
    host_nodes: tuple[str, ...]
    mounts: tuple[tuple[str, str], ...]
    cdi_ids: tuple[str, ...] = ()


def inject(cdi_dir: Path, cdi_ids: Sequence[str]) -> InjectedContainer:
    """The edits of all `cdi_ids`, each file's common edits once. TryAgain names the ids that no file defines."""
    specs = _read_specs(cdi_dir)
    env: dict[str, str] = {}
    nodes: dict[str, str] = {}
    mounts: dict[tuple[str, str], None] = {}
    missing, used = [], set()
    for cdi_id in dict.fromkeys(cdi_ids):
        found = specs.get(cdi_id)
        if found is None:
            missing.append(cdi_id)
            continue
        path, common, own = found
        for edits in (common, own) if path not in used else (own,):
            env |= dict(entry.split("=", 1) for entry in edits.get("env", []))
            nodes |= {node["path"]: node.get("hostPath", node["path"]) for node in edits.get("deviceNodes", [])}
            mounts |= {(mount["hostPath"], mount["containerPath"]): None for mount in edits.get("mounts", [])}
        used.add(path)
    if missing:
        raise TryAgain(f"unresolvable CDI devices {', '.join(missing)} in {cdi_dir}")
    return InjectedContainer(
        env=env,
        device_nodes=tuple(nodes),
        host_nodes=tuple(nodes.values()),
        mounts=tuple(mounts),
        cdi_ids=tuple(cdi_ids),
    )


def cdi_ids_of(container: Json, devices: Sequence[tuple[str, tuple[str, ...], tuple[str, ...]]]) -> tuple[str, ...]:
    """CDI ids for a container, in order and with repeats, as the kubelet passes them.

    `devices` are (the pod's name for the claim, request names, CDI ids) as the drivers answered.
    """
    wanted = [(claim["name"], claim.get("request")) for claim in container.get("resources", {}).get("claims", [])]
    return tuple(
        cdi_id
        for name, request in wanted
        for pod_claim_name, request_names, cdi_ids in devices
        if name == pod_claim_name and (not request or not request_names or request in request_names)
        for cdi_id in cdi_ids
    )


def _read_specs(cdi_dir: Path) -> dict[str, tuple[Path, Any, Any]]:
    """By CDI id: its file, the file's common edits, the device's own."""
    found: dict[str, tuple[Path, Any, Any]] = {}
    if not cdi_dir.is_dir():
        return found
    for path in sorted(cdi_dir.glob("*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            # removed between listing and reading
            continue
        except ValueError as error:
            raise TryAgain(f"CDI file {path} is not JSON: {error}") from error
        for device in document.get("devices", []):
            edits = device.get("containerEdits", {})
            if not edits:
                raise TryAgain(f"CDI file {path}: device {device.get('name')} has empty containerEdits")
            found[f"{document['kind']}={device['name']}"] = (path, document.get("containerEdits", {}), edits)
    return found
