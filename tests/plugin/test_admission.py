"""The webhook's reviews: what it is asked, what it answers, and what it does while DeviceClasses cannot be read."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from tesela.admission.classes import KEPT_S, UNREAD_S, Classes
from tesela.admission.review import answer_review
from tesela.core.errors import DocumentError
from tesela.edge.embedded.cluster import EmbeddedCluster
from tesela.edge.embedded.faults import FlakyKube, unavailable
from tesela.edge.kube.port import DEVICE_CLASSES

Json = dict[str, Any]
V: Final = "resource.k8s.io/v1"
LISTED: Final = ("list", "deviceclasses")
MIG: Final = 'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "mig"'
PARTITIONS_ONLY: Final = "request core (DeviceClass partitions) takes partitions only"


def config(kind: str = "GpuConfig", *requests: str, driver: str = "gpu.nvidia.com", **fields: Any) -> Json:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, **fields}
    return {
        "opaque": {"driver": driver, "parameters": parameters},
        **({"requests": list(requests)} if requests else {}),
    }


def devices(*configs: Json, request: Json | None = None) -> Json:
    asked = request or {"name": "core", "exactly": {"deviceClassName": "partitions"}}
    return {"requests": [asked], "config": list(configs)}


def claim(*configs: Json, request: Json | None = None) -> Json:
    return {"apiVersion": V, "kind": "ResourceClaim", "spec": {"devices": devices(*configs, request=request)}}


def device_class(*configs: Json, selector: str = MIG) -> Json:
    spec = {"selectors": [{"cel": {"expression": selector}}], "config": list(configs)}
    return {"apiVersion": V, "kind": "DeviceClass", "metadata": {"name": "partitions"}, "spec": spec}


def render_review(obj: Json | None, **more: Any) -> bytes:
    kind = {"group": "resource.k8s.io", "version": "v1", "kind": (obj or claim())["kind"]}
    request = {"uid": "u-1", "kind": kind, "namespace": "ai", "name": "train", "object": obj, **more}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


class World:
    """DeviceClasses, a clock that stands, and one webhook."""

    def __init__(self) -> None:
        self.cluster = EmbeddedCluster()
        self.cluster.create(DEVICE_CLASSES, device_class())
        self.kube = FlakyKube(self.cluster)
        self.now_s = 0.0
        self.classes = Classes(self.kube, clock=lambda: self.now_s)

    def ask(self, obj: Json | None) -> Json:
        return json.loads(answer_review(render_review(obj), self.classes))["response"]


@pytest.fixture
def world():
    return World()


def message(response: Json) -> str:
    assert response["allowed"] is False
    return response["status"]["message"]


def test_a_good_claim_is_allowed_by_the_request_s_uid(world):
    assert world.ask(claim(config("MigDeviceConfig", "core"))) == {"uid": "u-1", "allowed": True}


def test_a_config_that_prepare_does_not_understand_is_refused_without_asking_for_classes(world):
    answer = world.ask(claim(config(), config(sharing={"strategy": "Fair"})))

    assert "spec.devices.config[1].opaque.parameters.sharing.strategy: must be 'TimeSlicing'" in message(answer)


def test_a_config_of_the_wrong_kind_for_the_class_is_refused(world):
    assert PARTITIONS_ONLY in message(world.ask(claim(config("GpuConfig", "core"))))


def test_a_template_s_path_begins_where_its_claims_do(world):
    template = {"apiVersion": V, "kind": "ResourceClaimTemplate", "spec": claim(config("GpuConfig", "core"))}

    assert message(world.ask(template)).startswith("spec.spec.devices.config[0].opaque.parameters.kind: is GpuConfig")


def test_an_alternative_is_named_as_a_config_names_it(world):
    request = {"name": "core", "firstAvailable": [{"name": "small", "deviceClassName": "partitions"}]}

    assert "request core/small" in message(world.ask(claim(config("GpuConfig", "core"), request=request)))


def test_a_class_is_judged_by_its_own_selectors(world):
    assert message(world.ask(device_class(config()))).startswith("spec.config[0].opaque.parameters.kind: is GpuConfig")


def test_a_config_that_governs_nothing_is_a_warning(world):
    answer = world.ask(claim(config("GpuConfig")))

    assert (answer["allowed"], len(answer["warnings"])) == (True, 1)


def test_many_problems_are_cut(world):
    text = message(world.ask(claim(*[config(colour="blue")] * 32)))

    assert (text.count("unknown field"), text.endswith("; and more")) == (8, True)


def test_configs_of_other_drivers_cost_no_look_at_classes(world):
    answer = world.ask(claim(config("Anything", driver="nic.example.com")))

    assert (answer["allowed"], world.kube.calls) == (True, [])


def test_a_deletion_is_allowed(world):
    assert world.ask(None)["allowed"] is True


def test_classes_are_kept_for_seconds(world):
    for _ in range(3):
        world.ask(claim(config("MigDeviceConfig", "core")))

    assert world.kube.calls.count(LISTED) == 1


def test_classes_are_read_again_after_that(world):
    world.ask(claim(config("MigDeviceConfig", "core")))
    world.now_s += KEPT_S + 1
    world.ask(claim(config("MigDeviceConfig", "core")))

    assert world.kube.calls.count(LISTED) == 2


def test_a_refusal_rests_on_the_class_as_it_is_now(world):
    world.ask(claim(config("MigDeviceConfig", "core")))
    kept = world.cluster.get(DEVICE_CLASSES, "partitions")
    kept["spec"]["selectors"] = []
    world.cluster.replace(DEVICE_CLASSES, kept)
    world.now_s += 1

    assert world.ask(claim(config("GpuConfig", "core")))["allowed"] is True


def test_while_classes_cannot_be_read_kinds_go_unchecked_and_the_user_is_told(world):
    world.kube.inject(unavailable(9, "list"))
    answer = world.ask(claim(config("GpuConfig", "core")))

    assert (answer["allowed"], "not compared" in answer["warnings"][0]) == (True, True)


def test_what_needs_no_class_is_refused_meanwhile(world):
    world.kube.inject(unavailable(9, "list"))

    assert "kind: must be GpuConfig" in message(world.ask(claim(config("Odd"))))


def test_reviews_do_not_queue_behind_an_api_server_that_does_not_answer(world):
    world.kube.inject(unavailable(9, "list"))
    for _ in range(3):
        world.ask(claim(config("GpuConfig", "core")))

    assert world.kube.calls.count(LISTED) == 1


def test_classes_are_asked_for_again_a_moment_later(world):
    world.kube.inject(unavailable(1, "list"))
    world.ask(claim(config("GpuConfig", "core")))
    world.now_s += UNREAD_S

    assert PARTITIONS_ONLY in message(world.ask(claim(config("GpuConfig", "core"))))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[" * 100_000,
        b"[]",
        b"{}",
        b'{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview"}',
        render_review(claim(), uid=7),
        render_review(claim(), kind={"group": "resource.k8s.io", "version": "v1beta1", "kind": "ResourceClaim"}),
        render_review(claim(), kind={"group": "", "version": "v1", "kind": "Pod"}),
        render_review({**claim(), "spec": []}),
        render_review({**claim(), "spec": {"devices": {"config": {}}}}),
        render_review(claim(*[config()] * 65)),
    ],
    ids=["empty", "deep", "list", "no version", "v1beta1", "uid", "old claim", "pod", "spec", "config", "too many"],
)
def test_what_is_no_review_is_said(world, body):
    with pytest.raises(DocumentError):
        answer_review(body, world.classes)
