"""`make cluster`: the end-to-end tests' cluster with GPUs and a driver, for a person to type at, until Ctrl-C.

GPUs='h100-80gb*2,a100-40gb:mig' chooses the machine, as `tesela sim serve` does; arguments are the driver's. Nothing is
tested here.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from pathlib import Path

from e2e.harness import build, images
from e2e.harness.cluster import Cluster
from e2e.harness.node import Node
from e2e.harness.tesela_command import find_tesela

ROOT = Path(__file__).resolve().parents[3]
PERMISSIONS = ROOT / "daemonset" / "base" / "permissions"
GPUS = "h100-80gb*2,a100-40gb:mig"
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
        cluster.apply(PERMISSIONS, ROOT / "deviceclasses")
        node = Node(cluster, "by-hand", os.environ.get("GPUS") or GPUS, arguments or DRIVER)
        stack.callback(node.close)
        print(describe(cluster, write_entrance(cluster, node)), flush=True)
        while True:
            signal.pause()


def write_entrance(cluster: Cluster, node: Node) -> Path:
    """A command that runs the one that follows it inside, as administrator and beside the GPUs."""
    environment = {
        **node.simulator.client_environment,
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
