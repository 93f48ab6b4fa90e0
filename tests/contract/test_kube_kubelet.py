"""The stand-in kubelet against a fake driver on real Unix sockets: names of the tests follow upstream's scenarios."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from contract.kube_objects import DRIVER, NAMESPACE, claim, container, pod, request, template
from contract.kube_world import NODE, Control, FakeDriver, eventually, make_cluster, publish
from tesela.core.errors import ApiNotFound
from tesela.edge.embedded.kubelet import EmbeddedKubelet
from tesela.edge.kube.port import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES
from tesela.edge.kubelet.port import DeviceHealth
from tesela.edge.kubelet.server import KubeletServer
from wire.kubelet_fakes import FakeHealth


def healthy(device: str) -> DeviceHealth:
    return DeviceHealth(pool=NODE, device=device, healthy=True)


def sick(device: str) -> DeviceHealth:
    return DeviceHealth(pool=NODE, device=device, healthy=False, message="Xid 79")


class World:
    """A cluster at work: controller, scheduler and kubelet on their threads, one driver registered."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cluster = make_cluster()
        self.cluster.create(RESOURCE_CLAIM_TEMPLATES, template("one-gpu"))
        self.control = Control(self.cluster)
        self.cdi_dir = root / "cdi"
        self.driver = FakeDriver(self.cluster, self.cdi_dir)
        self.health = FakeHealth((healthy("gpu-0"), healthy("gpu-1")))
        (root / "r").mkdir()
        self.kubelet = EmbeddedKubelet(
            self.cluster,
            NODE,
            registry_dir=root / "r",
            cdi_dir=self.cdi_dir,
            retry_s=0.05,
            poll_s=0.02,
            wipe_delay_s=0.1,
        )
        self.server = self.serve()
        self.control.controller.start()
        self.control.scheduler.start()
        self.kubelet.start()
        publish(self.cluster)

    def serve(self) -> KubeletServer:
        server = KubeletServer(
            driver_name=DRIVER, service=self.driver, plugins_dir=self.root / "p", registry_dir=self.root / "r"
        )
        server.serve_health(self.health)
        server.start()
        return server

    def lose_driver(self) -> None:
        """Stops the driver and waits until the kubelet has noticed and wiped its slices."""
        eventually(self.kubelet.plugins.drivers, self.cluster)
        self.server.stop(1.0)
        eventually(lambda: not self.cluster.list(RESOURCE_SLICES).items, self.cluster)

    def close(self) -> None:
        self.driver.gate.set()
        self.server.stop(1.0)
        try:
            for part in (self.control.controller, self.control.scheduler, self.kubelet):
                part.close()
        finally:
            self.cluster.close()

    def create(self, name: str, **spec) -> None:
        given = {
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
            "containers": [container(claims=[{"name": "gpu"}])],
        }
        self.cluster.create(PODS, pod(name, **(given | spec)))

    def share(self, name: str, claim_name: str) -> None:
        self.create(name, resourceClaims=[{"name": "gpu", "resourceClaimName": claim_name}])

    def wait_for_phase(self, name: str, phase: str) -> None:
        eventually(lambda: self.control.pod(name)["status"]["phase"] == phase, self.cluster)

    def wait_for_condition(self, name: str, kind: str) -> str:
        def find() -> str | None:
            conditions = self.control.pod(name)["status"].get("conditions", [])
            return next((entry["message"] for entry in conditions if entry["type"] == kind), None)

        return str(eventually(find, self.cluster))

    def wait_until_gone(self, name: str) -> None:
        def gone() -> bool:
            try:
                self.control.pod(name)
            except ApiNotFound:
                return True
            return False

        eventually(gone, self.cluster)

    def wait_for_health(self, name: str, *expected: tuple[str, str]) -> None:
        """Until the first container shows exactly these healths, with their messages."""

        def seen() -> list[tuple[str, str]]:
            containers = self.control.pod(name)["status"].get("containerStatuses", [{}])
            shown = containers[0].get("allocatedResourcesStatus", [])
            resources = [one for claim in shown for one in claim["resources"]]
            return [(one["health"], one.get("message", "")) for one in resources]

        eventually(lambda: seen() == list(expected), self.cluster)

    def containers(self, name: str):
        return self.kubelet.containers(self.control.pod(name))


@pytest.fixture
def world():
    # a socket's address has 107 bytes: tmp_path is too long
    root = Path(tempfile.mkdtemp(prefix="k-", dir="/tmp"))
    made = World(root)
    yield made
    made.close()
    shutil.rmtree(root)


def test_registers_plugin(world):
    eventually(lambda: DRIVER in world.kubelet.plugins.drivers(), world.cluster)


def test_runs_a_pod_with_a_claim_from_a_template(world):
    world.create("a")
    world.wait_for_phase("a", "Running")
    injected = world.containers("a")["main"]
    assert (injected.env, injected.device_nodes) == ({"COMMON": "1", "DEVICE_GPU": "gpu-0"}, ("/dev/gpu-0",))


def test_a_device_node_may_come_from_another_path(world):
    world.create("a")
    world.wait_for_phase("a", "Running")
    assert world.containers("a")["main"].host_nodes == ("/host/gpu-0",)


def test_maps_devices_to_the_right_containers(world):
    world.cluster.create(RESOURCE_CLAIM_TEMPLATES, template("two", [request("first"), request("second")]))
    world.create(
        "a",
        resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "two"}],
        containers=[
            container("one", [{"name": "gpu", "request": "first"}]),
            container("two", [{"name": "gpu", "request": "second"}]),
            container("both", [{"name": "gpu"}]),
            container("none"),
        ],
    )
    world.wait_for_phase("a", "Running")
    nodes = {name: injected.device_nodes for name, injected in world.containers("a").items()}
    assert nodes == {
        "one": ("/dev/gpu-0",),
        "two": ("/dev/gpu-1",),
        "both": ("/dev/gpu-0", "/dev/gpu-1"),
        "none": (),
    }


def test_supports_init_containers(world):
    world.create("a", initContainers=[container("init", [{"name": "gpu"}])])
    world.wait_for_phase("a", "Running")
    assert world.containers("a")["init"].device_nodes == ("/dev/gpu-0",)


def test_prepares_a_claim_that_no_container_uses(world):
    world.create("a", containers=[container()])
    world.wait_for_phase("a", "Running")
    assert world.driver.verbs() == ["prepare"]


def test_prepares_all_claims_of_a_pod_in_one_call(world):
    claims = [{"name": name, "resourceClaimTemplateName": "one-gpu"} for name in ("x", "y")]
    world.create("a", resourceClaims=claims, containers=[container()])
    world.wait_for_phase("a", "Running")
    assert [len(uids) for _, uids in world.driver.calls] == [2]


def test_must_retry_prepare(world):
    world.driver.refusals += ["no partition left on GPU-1"]
    world.create("a")
    world.wait_for_phase("a", "Running")
    assert world.driver.verbs() == ["prepare", "prepare"]


def test_a_failed_prepare_is_told_in_the_kubelets_words(world):
    world.driver.refusals += ["no partition left on GPU-1"] * 1000
    world.create("a")
    message = world.wait_for_condition("a", "FailedPrepareDynamicResources")
    start = "Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources failed for Resource"
    assert (message.startswith(start), message.endswith("no partition left on GPU-1")) == (True, True)


def test_a_pod_waits_for_a_late_driver(world):
    world.lose_driver()
    publish(world.cluster)
    world.create("a")
    message = world.wait_for_condition("a", "FailedPrepareDynamicResources")
    world.server = world.serve()
    world.wait_for_phase("a", "Running")
    assert f"DRA driver {DRIVER} is not registered" in message


def test_slices_are_wiped_after_the_driver_went(world):
    world.lose_driver()
    assert world.cluster.list(RESOURCE_SLICES).items == ()


def test_a_deleted_pod_is_unprepared_and_gone(world):
    world.create("a")
    world.wait_for_phase("a", "Running")
    world.cluster.delete(PODS, "a", NAMESPACE)
    world.wait_until_gone("a")
    assert (world.driver.verbs(), list(world.cdi_dir.iterdir())) == (["prepare", "unprepare"], [])


def test_a_finished_pod_is_unprepared_first(world):
    world.create("a")
    world.wait_for_phase("a", "Running")
    world.kubelet.finish(NAMESPACE, "a")
    world.wait_for_phase("a", "Succeeded")
    assert world.driver.verbs() == ["prepare", "unprepare"]


def test_must_retry_unprepare(world):
    world.create("a")
    world.wait_for_phase("a", "Running")
    world.driver.unprepare_refusals += ["the GPU is away"]
    world.cluster.delete(PODS, "a", NAMESPACE)
    world.wait_until_gone("a")
    assert world.driver.verbs() == ["prepare", "unprepare", "unprepare"]


def test_unprepares_for_a_force_deleted_pod(world):
    world.create("a")
    world.wait_for_phase("a", "Running")
    world.cluster.delete(PODS, "a", NAMESPACE, grace_period_s=0)
    eventually(lambda: "unprepare" in world.driver.verbs(), world.cluster)


def test_a_shared_claim_is_prepared_once_and_unprepared_after_the_last(world):
    world.cluster.create(RESOURCE_CLAIMS, claim("shared"))
    for name in ("a", "b"):
        world.share(name, "shared")
        world.wait_for_phase(name, "Running")
    world.cluster.delete(PODS, "a", NAMESPACE)
    world.wait_until_gone("a")
    before = world.driver.verbs()
    world.cluster.delete(PODS, "b", NAMESPACE)
    world.wait_until_gone("b")
    assert (before, world.driver.verbs()) == (["prepare"], ["prepare", "unprepare"])


def test_the_device_of_a_finished_pod_serves_the_next(world):
    for name in ("a", "b", "c"):
        world.create(name)
    world.wait_for_phase("b", "Running")
    world.kubelet.finish(NAMESPACE, "a")
    world.wait_for_phase("c", "Running")
    assert world.containers("c")["main"].device_nodes == ("/dev/gpu-0",)


def test_a_restart_wipes_the_nodes_slices(world):
    world.kubelet.restart()
    assert world.cluster.list(RESOURCE_SLICES).items == ()


def test_a_restart_registers_again(world):
    eventually(world.kubelet.plugins.drivers, world.cluster)
    world.kubelet.restart()
    eventually(lambda: DRIVER in world.kubelet.plugins.drivers(), world.cluster)


def test_a_restart_prepares_again_only_for_the_next_pod(world):
    world.cluster.create(RESOURCE_CLAIMS, claim("shared"))
    world.share("a", "shared")
    world.wait_for_phase("a", "Running")
    world.kubelet.restart()
    world.share("b", "shared")
    world.wait_for_phase("b", "Running")
    assert world.driver.verbs() == ["prepare", "prepare"]


def test_a_claim_of_the_same_name_waits_for_the_old_ones_unprepare(world):
    world.cluster.create(RESOURCE_CLAIMS, claim("shared"))
    world.share("a", "shared")
    world.wait_for_phase("a", "Running")
    world.driver.unprepare_refusals += ["the GPU is away"] * 1000
    world.cluster.delete(PODS, "a", NAMESPACE, grace_period_s=0)
    world.cluster.delete(RESOURCE_CLAIMS, "shared", NAMESPACE)
    eventually(lambda: not world.control.claims(), world.cluster)
    world.cluster.create(RESOURCE_CLAIMS, claim("shared"))
    world.share("b", "shared")
    message = world.wait_for_condition("b", "FailedPrepareDynamicResources")
    assert "old ResourceClaim with same name shared and different UID" in message


def test_a_prepare_that_the_kubelets_restart_cut_off_is_repeated(world):
    world.driver.gate.clear()
    world.create("a")
    eventually(world.driver.verbs, world.cluster)
    world.kubelet.restart()
    world.driver.gate.set()
    world.wait_for_phase("a", "Running")
    assert world.driver.verbs() == ["prepare", "prepare"]


def test_shows_the_health_of_a_containers_devices(world):
    world.create("a")
    world.wait_for_health("a", ("Healthy", ""))
    statuses = world.control.pod("a")["status"]["containerStatuses"][0]["allocatedResourcesStatus"]
    resource = {"resourceID": world.containers("a")["main"].cdi_ids[0], "health": "Healthy"}
    assert statuses == [{"name": "claim:gpu", "resources": [resource]}]


def test_a_container_that_names_one_request_shows_its_devices_alone(world):
    world.cluster.create(RESOURCE_CLAIM_TEMPLATES, template("two", [request("first"), request("second")]))
    world.health.tell(healthy("gpu-0"), sick("gpu-1"))
    world.create(
        "a",
        resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "two"}],
        containers=[container("one", [{"name": "gpu", "request": "second"}])],
    )
    world.wait_for_health("a", ("Unhealthy", "Xid 79"))
    statuses = world.control.pod("a")["status"]["containerStatuses"][0]["allocatedResourcesStatus"]
    assert [one["name"] for one in statuses] == ["claim:gpu/second"]


def test_a_container_without_claims_shows_no_health(world):
    world.create("a", containers=[container()])
    world.wait_for_phase("a", "Running")
    assert "allocatedResourcesStatus" not in world.control.pod("a")["status"]["containerStatuses"][0]


def test_a_device_that_falls_ill_shows_it_with_a_message_until_it_recovers(world):
    world.create("a")
    world.wait_for_health("a", ("Healthy", ""))
    world.health.tell(sick("gpu-0"))
    world.wait_for_health("a", ("Unhealthy", "Xid 79"))
    world.health.tell(healthy("gpu-0"))
    world.wait_for_health("a", ("Healthy", ""))


def test_health_is_unknown_without_the_driver_and_back_with_it(world):
    world.create("a")
    world.wait_for_health("a", ("Healthy", ""))
    world.lose_driver()
    world.wait_for_health("a", ("Unknown", ""))
    world.server = world.serve()
    world.wait_for_health("a", ("Healthy", ""))


def test_a_device_that_is_not_reported_is_unknown(world):
    world.health.tell()
    world.create("a")
    world.wait_for_health("a", ("Unknown", ""))
