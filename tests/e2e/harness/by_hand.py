"""`make cluster`: the end-to-end tests' cluster with GPUs and a driver, for a person to type at, until Ctrl-C.

GPUs='h100-80gb*2,a100-40gb:mig' chooses the machine, as `tesela sim serve` does; arguments are the driver's. GPUS=none
leaves both out and gives the node the image, for the manifests of daemonset/, applied by hand. Nothing is tested here.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from e2e.harness import build, container_image, images
from e2e.harness.cluster import NODE, Cluster
from e2e.harness.node import Node
from e2e.harness.tesela_command import find_tesela

ROOT = Path(__file__).resolve().parents[3]
PERMISSIONS = ROOT / "daemonset" / "base" / "permissions"
GPUS = "h100-80gb*2,a100-40gb:mig"
NO_GPUS = "none"
DRIVER = ("--metrics-port=9400",)


def main(arguments: list[str]) -> int:
    """Brings it up, says how to use it, and takes it down on SIGINT or SIGTERM."""
    if os.geteuid() != 0:
        print("make cluster: a Kubernetes in namespaces of its own: run it as root", file=sys.stderr)
        return 1
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.default_int_handler)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            hold(arguments)
    except build.HarnessError as error:
        print(f"make cluster: {error}", file=sys.stderr)
        return 1
    return 0


def hold(arguments: list[str]) -> None:
    """Until KeyboardInterrupt. HarnessError: it does not come up."""
    cluster = Cluster(build.prepare())
    with contextlib.ExitStack() as stack:
        cluster.up()
        stack.callback(cluster.down)
        gpus = os.environ.get("GPUS") or GPUS
        if gpus == NO_GPUS:
            cluster.import_image(container_image.build_image())
            print(describe_bare(cluster, write_entrance(cluster, {})), flush=True)
        else:
            cluster.apply(PERMISSIONS, ROOT / "deviceclasses")
            node = Node(cluster, "by-hand", gpus, arguments or DRIVER)
            stack.callback(node.close)
            print(describe(cluster, write_entrance(cluster, node.simulator.client_environment)), flush=True)
        while True:
            signal.pause()


def write_entrance(cluster: Cluster, of_gpus: Mapping[str, str]) -> Path:
    """A command that runs the one that follows it inside, as administrator and beside the GPUs."""
    environment = {
        **of_gpus,
        "KUBECONFIG": str(cluster.certificates.path("admin.kubeconfig")),
        "PATH": f"{find_tesela().parent}:{cluster.binaries}:{os.environ.get('PATH', '')}",
    }
    settings = [f"{name}={value}" for name, value in environment.items()]
    entrance = cluster.sandbox.folder / "in"
    entrance.write_text(f'#!/bin/sh\nexec {shlex.join(cluster.sandbox.command(["env", *settings]))} "$@"\n')
    entrance.chmod(0o755)
    return entrance


def describe(cluster: Cluster, entrance: Path) -> str:
    """What a person types."""
    return f"""\
{entrance} kubectl get resourceslices
{entrance} kubectl apply -f MANIFEST        # by its whole path; the node has one image, {images.BUSYBOX}
{entrance} tesela sim xid 0 79
{entrance} tesela health list
{entrance} curl -s http://127.0.0.1:9400/metrics
logs: {cluster.sandbox.folder}/process-logs
Ctrl-C ends it, and nothing is left."""


def describe_bare(cluster: Cluster, entrance: Path) -> str:
    """What a person types where no driver runs yet: docs/install.md from its second step on."""
    return f"""\
{entrance} kubectl label node {NODE} gpu.nvidia.com/simulated=true
{entrance} kubectl apply -k {ROOT}/daemonset/overlays/simulated
{entrance} kubectl apply -k {ROOT}/deviceclasses
The node has {container_image.REFERENCE} and, for pods, {images.BUSYBOX}; files and folders by their whole path.
logs: {cluster.sandbox.folder}/process-logs
Ctrl-C ends it, and nothing is left."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
