"""The example that users apply, deviceclasses/examples/bridge.yaml, on a node of two A100: one in MIG mode, one not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from e2e.harness.node import Node
from e2e.harness.pods import Namespace, fit_to_this_machine

GPUS = "a100-40gb:mig,a100-40gb"
EXAMPLE = Path(__file__).resolve().parents[2] / "deviceclasses" / "examples" / "bridge.yaml"
POD, CONTAINER, CLAIM, REQUEST = "omniverse-local-bridge", "bridge", "gpu", "primary-rendering-core"
METADATA = "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates"
LIST_DEVICE_NODES = "cd /dev && ls -d nvidia* | grep -v caps$; ls -d nvidia-caps/*"


@pytest.fixture(scope="module")
def bridge(node: Node) -> Iterator[Namespace]:
    namespace = Namespace(node.cluster, "spatial-net")
    for manifest in yaml.safe_load_all(EXAMPLE.read_text()):
        node.cluster.apply(fit_to_this_machine(manifest))
    namespace.wait_running(POD)
    yield namespace
    namespace.clear()
    node.wait_clean()
    namespace.remove()


def test_the_smallest_approved_profile_is_cut_on_the_gpu_in_mig_mode(node: Node, bridge: Namespace) -> None:
    (device,) = bridge.devices_of(POD, CLAIM)
    (seen,) = node.simulator.list_partitions()

    assert (device, seen.gpu, seen.profile) == (f"gpu-0-mig-1g5gb-19-{seen.start}", 0, "1g.5gb")


def test_the_container_shows_the_nodes_of_its_partition_and_no_others(node: Node, bridge: Namespace) -> None:
    shown = bridge.exec(POD, LIST_DEVICE_NODES, container=CONTAINER).split()

    assert set(shown) == node.simulator.list_device_nodes(*node.simulator.list_partitions())


def test_the_container_knows_uuid_and_profile(node: Node, bridge: Namespace) -> None:
    environment = bridge.environment(POD, container=CONTAINER)
    (seen,) = node.simulator.list_partitions()

    told = {key: value for key, value in environment.items() if key.startswith(("TESELA_", "NVIDIA_"))}
    assert told == {
        "TESELA_GPU_PRIMARY_RENDERING_CORE_UUIDS": seen.uuid,
        "TESELA_GPU_PRIMARY_RENDERING_CORE_PROFILES": "1g.5gb",
        "NVIDIA_VISIBLE_DEVICES": "void",
    }


def test_the_metadata_file_names_the_device(bridge: Namespace) -> None:
    path = f"{METADATA}/{CLAIM}/{REQUEST}/gpu.nvidia.com-metadata.json"
    text = bridge.exec(POD, f"cat {path}", container=CONTAINER)
    document, _ = json.JSONDecoder().raw_decode(text)

    (request,) = document["requests"]
    assert [device["name"] for device in request["devices"]] == bridge.devices_of(POD, CLAIM)


def test_the_pod_is_guaranteed_and_resizes_in_place(bridge: Namespace) -> None:
    pod = bridge.pod(POD)
    (container,) = pod["spec"]["containers"]

    policies = {policy["resourceName"]: policy["restartPolicy"] for policy in container["resizePolicy"]}
    assert (pod["status"]["qosClass"], policies) == ("Guaranteed", {"cpu": "NotRequired", "memory": "NotRequired"})


def test_the_ports_are_the_bridge_s(bridge: Namespace) -> None:
    (container,) = bridge.pod(POD)["spec"]["containers"]

    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"websocket-sync": 8080, "grpc-telemetry": 9090}
