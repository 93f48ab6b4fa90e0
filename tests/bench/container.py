"""The container image: how large it is, and how long its container takes to publish what a node has.

On a whole cluster with the shipped overlay `simulated`, as an operator applies it: kubelet, containerd, the DaemonSet's
token, a read-only root.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from e2e.harness import deployed
from e2e.harness.build import HarnessError
from e2e.harness.cluster import NODE, Cluster
from e2e.harness.container_image import build_image
from e2e.harness.deployed import Overlay
from e2e.harness.driver import list_slices
from e2e.harness.progress import step
from tesela.edge.kube.port import RESOURCE_SLICES, Json

from bench.budgets import GPUS
from bench.figures import Figure
from bench.node import Published
from image import archive

TAG = "0.1.0"
MIB = 1 << 20


def measure_container(binaries: Path, model: str, options: argparse.Namespace) -> Iterator[Figure]:
    """Every figure as soon as it is known; `binaries` are the cluster's."""
    image = build_image()
    facts = archive.read_facts(image)
    yield Figure(name="image: to pull, compressed", value=facts.compressed_bytes / MIB, unit="MiB")
    yield Figure(name="image: on disk, unpacked", value=facts.unpacked_bytes / MIB, unit="MiB")
    cluster = Cluster(binaries)
    cluster.up()
    try:
        began = time.monotonic()
        cluster.import_image(image)
        yield Figure(name="image: read and unpacked by containerd", value=time.monotonic() - began, unit="s")
        cluster.kubectl("label", "node", NODE, "gpu.nvidia.com/simulated=true")
        overlay = Overlay(cluster, "simulated", [_render_gpus(f"{model}*{GPUS}")])
        with step("starting containers"):
            overlay.apply(TAG)
            deployed.wait_rolled_out(cluster, deployed.SIM)
            started_s = [_start_anew(cluster, overlay) for _ in range(options.starts)]
        name = f"{GPUS} GPUs: container created to published slices"
        yield Figure(name=name, value=statistics.median(started_s), unit="s")
    finally:
        cluster.down()


def _start_anew(cluster: Cluster, overlay: Overlay) -> float:
    """Seconds from containerd's record of the container until the API server shows the whole pool."""
    deployed.wait_rolled_out(cluster, deployed.DRIVER)
    cluster.kubectl("-n", deployed.NAMESPACE, "delete", "daemonset", deployed.DRIVER, "--cascade=foreground", "--wait")
    for one in list_slices(cluster):
        cluster.kube.delete(RESOURCE_SLICES, one["metadata"]["name"])
    published = Published(cluster)
    overlay.apply(TAG)
    at = published.wait(lambda: json.dumps(deployed.list_pods(cluster, deployed.DRIVER), indent=1))
    published_at = time.time() - (time.monotonic() - at)
    return published_at - _get_creation(cluster)


def _get_creation(cluster: Cluster) -> float:
    """When the driver's container was made, in seconds of the epoch."""
    (status,) = deployed.get_pod(cluster, deployed.DRIVER)["status"]["containerStatuses"]
    container = status["containerID"].removeprefix("containerd://")
    told = cluster.run([*cluster.ctr, "containers", "info", container])
    created = json.loads(told).get("CreatedAt")
    if not created:
        raise HarnessError(f"containerd does not say when {container} was made: {told[:500]}")
    return datetime.fromisoformat(created).timestamp()


def _render_gpus(gpus: str) -> Json:
    """kustomize's patch that gives the simulator other GPUs."""
    change = [{"op": "replace", "path": "/spec/template/spec/containers/0/args/2", "value": f"--gpus={gpus}"}]
    return {"target": {"kind": "DaemonSet", "name": deployed.SIM}, "patch": json.dumps(change)}
