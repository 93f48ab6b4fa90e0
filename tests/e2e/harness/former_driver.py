"""A node as NVIDIA's driver leaves it, with pods that run: what ours prepared is written down as that driver does.

Everything else of ours goes, so that the next start finds a node on which it never ran: that driver's checkpoint, its
CDI files and its ResourceSlices (ours, which count partitions on demand alike, without the attribute that tells whose
they are).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from e2e.harness.cluster import NODE
from e2e.harness.driver import DRIVER, list_records
from e2e.harness.node import Node
from tesela.edge.kube.port import RESOURCE_SLICES, Json
from their_driver import TheirDriver


def hand_over(node: Node) -> TheirDriver:
    """Stops our driver and leaves what NVIDIA's would have left of every prepared claim."""
    node.driver.stop()
    boot_id = (node.simulator.host / "proc/sys/kernel/random/boot_id").read_text().strip()
    theirs = TheirDriver(NODE, boot_id)
    for uid, body in list_records(node.cluster).items():
        _write_down(theirs, uid, body["record"])
        _hand_over_cdi(node.cluster.cdi_folder, uid)
    state_dir = node.cluster.kubelet_folder / "plugins" / DRIVER
    shutil.rmtree(state_dir)
    state_dir.mkdir()
    theirs.write(state_dir)
    _hand_over_slices(node)
    return theirs


def _write_down(theirs: TheirDriver, uid: str, record: Mapping[str, Json]) -> None:
    for device in record["devices"]:
        name, gpu_uuid, request = device["device"], device["gpuUuid"], device["request"]
        if not device["partitions"]:
            theirs.give_gpu(uid, name, gpu_uuid, request=request)
            continue
        (partition,) = device["partitions"]
        theirs.give_partition(
            uid, name, gpu_uuid, mig_uuid=partition["migUuid"], gi_id=partition["giId"], request=request
        )


def _hand_over_slices(node: Node) -> None:
    kube = node.cluster.kube
    for one in kube.list(RESOURCE_SLICES).items:
        devices = one["spec"].get("devices") or ()
        if one["spec"]["driver"] == DRIVER and devices:
            for device in devices:
                device["attributes"].pop("placementStart", None)
            kube.replace(RESOURCE_SLICES, one)


def _hand_over_cdi(folder: Path, uid: str) -> None:
    """The same devices in a file named as theirs is; every container of the claim is told who wrote it."""
    theirs = TheirDriver.cdi_path(folder, uid)
    ours = theirs.with_suffix(".json")
    document = json.loads(ours.read_text())
    document.pop("annotations", None)
    document["containerEdits"]["env"].append("WROTE_IT=nvidia")
    theirs.write_text(json.dumps(document))  # JSON is YAML, too
    ours.unlink()
