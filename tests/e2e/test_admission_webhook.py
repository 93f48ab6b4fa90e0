"""The optional webhook, as shipped, on the real API server: what it refuses, and that it stands in nobody's way."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from e2e.harness.cluster import Cluster
from e2e.harness.config_policy import hear_kubectl
from e2e.harness.pods import (
    Namespace,
    render_claim,
    render_claim_spec,
    render_first_available,
    render_opaque,
    render_request,
    render_template,
)
from e2e.harness.processes import wait_until
from e2e.harness.webhook import Webhook
from tesela.core.errors import ApiError

pytestmark = pytest.mark.timeout(420)  # the image, where it is not built yet
PARTITION = render_request("core", device_class="mig.nvidia.com")
WRONG = render_opaque("GpuConfig", requests=["core"])
RIGHT = render_opaque("MigDeviceConfig", requests=["core"])
REFUSED = "request core (DeviceClass mig.nvidia.com) takes partitions only"


def is_asked(cluster: Cluster) -> bool:
    return REFUSED in hear_kubectl(
        cluster, "default", render_claim("nobody-keeps-this", render_claim_spec([PARTITION], config=[WRONG]))
    )


@pytest.fixture(scope="module")
def webhook(cluster: Cluster) -> Iterator[Webhook]:
    webhook = Webhook(cluster)
    try:
        webhook.up()
        wait_until("the API server asks the webhook", lambda: is_asked(cluster), timeout_s=30)
        yield webhook
    finally:
        webhook.down()


def test_a_config_of_the_wrong_kind_for_the_class_is_refused_with_its_path(
    webhook: Webhook, namespace: Namespace
) -> None:
    with pytest.raises(ApiError) as caught:
        namespace.apply(render_claim("wrong", render_claim_spec([PARTITION], config=[WRONG])))

    assert "spec.devices.config[0].opaque.parameters.kind: is GpuConfig, and request core" in caught.value.message


def test_a_template_with_an_alternative_that_its_config_does_not_fit_is_refused(
    webhook: Webhook, namespace: Namespace
) -> None:
    request = render_first_available("core", "3g.40gb", "1g.10gb")
    template = render_template("wrong", render_claim_spec([request], config=[WRONG]))

    assert "request core/p3g40gb" in hear_kubectl(webhook.cluster, namespace.name, template)


def test_a_class_whose_config_fits_none_of_its_devices_is_refused(webhook: Webhook) -> None:
    selector = 'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "mig"'
    spec = {"selectors": [{"cel": {"expression": selector}}], "config": [render_opaque("GpuConfig")]}
    obj = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "wrong"}, "spec": spec}

    assert "the class selects partitions only" in hear_kubectl(webhook.cluster, "default", obj)


def test_what_governs_nothing_is_a_warning_that_kubectl_shows(webhook: Webhook, namespace: Namespace) -> None:
    claim = render_claim("idle", render_claim_spec([PARTITION], config=[render_opaque("GpuConfig")]))

    assert "Warning: spec.devices.config[0].opaque.parameters.kind: governs nothing" in hear_kubectl(
        webhook.cluster, namespace.name, claim
    )


def test_a_right_config_passes_in_silence(webhook: Webhook, namespace: Namespace) -> None:
    claim = render_claim("right", render_claim_spec([PARTITION], config=[RIGHT]))

    assert hear_kubectl(webhook.cluster, namespace.name, claim).split() == ["resourceclaim.resource.k8s.io/right"]


def test_a_renewed_certificate_is_taken_up_without_a_restart(webhook: Webhook) -> None:
    before = [pod["metadata"]["uid"] for pod in webhook.list_pods()]
    webhook.issue()
    webhook.trust()
    wait_until("the API server hears the new certificate", lambda: not is_asked(webhook.cluster), timeout_s=60)

    wait_until("the pods serve it", lambda: is_asked(webhook.cluster), timeout_s=180)

    pods = webhook.list_pods()
    restarts = [status["restartCount"] for pod in pods for status in pod["status"]["containerStatuses"]]
    assert ([pod["metadata"]["uid"] for pod in pods], restarts) == (before, [0, 0])


def test_without_a_webhook_that_answers_objects_pass(webhook: Webhook, namespace: Namespace) -> None:
    webhook.scale(0)

    namespace.apply(render_claim("passes", render_claim_spec([PARTITION], config=[WRONG])))
    counters = webhook.cluster.kubectl("get", "--raw", "/metrics")
    webhook.scale(2)
    wait_until("the API server asks the webhook again", lambda: is_asked(webhook.cluster), timeout_s=30)

    assert 'apiserver_admission_webhook_fail_open_count{name="configs.admission.gpu.nvidia.com"' in counters


def test_an_update_of_the_webhook_lets_nothing_wrong_pass(webhook: Webhook) -> None:
    webhook.cluster.kubectl("-n", "tesela", "rollout", "restart", "deployment", "tesela-admission")
    answers = []

    def is_updated() -> bool:
        answers.append(is_asked(webhook.cluster))
        said = webhook.cluster.kubectl("-n", "tesela", "get", "deployment", "tesela-admission", "-o", "json")
        deployment = json.loads(said)
        status, generation = deployment["status"], deployment["metadata"]["generation"]
        counts = [status.get(name, 0) for name in ("updatedReplicas", "replicas", "readyReplicas")]
        # of before the restart, until the controller has seen it
        return status.get("observedGeneration") == generation and [*counts, len(webhook.list_pods())] == [2] * 4

    wait_until("the webhook is updated", is_updated, timeout_s=120)

    assert (all(answers), len(answers) > 5) == (True, True)
