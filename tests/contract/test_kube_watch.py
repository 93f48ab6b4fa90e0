"""What every backend promises about deletion, selection, watches, namespaces and pods: `test_kube.py` goes on here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from contract.kube_backends import BACKENDS, FORGETFUL, Api, open_api, refusal
from contract.kube_objects import (
    NAMESPACE,
    changed,
    claim,
    container,
    names,
    pod,
    request,
    resource_slice,
    unique,
    with_spec,
)
from tesela.core.errors import ApiConflict, ApiError, ApiGone, ApiNotFound
from tesela.edge.kube.port import (
    NAMESPACES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Json,
    WatchEvent,
)

WATCH_S = 10.0


@pytest.fixture(params=BACKENDS)
def api(request, tmp_path) -> Iterator[Api]:
    with open_api(request.param, tmp_path) as opened:
        yield opened


def events_of(api: Api, obj: Json, count: int, **selected) -> list[WatchEvent]:
    """The first `count` events about `obj`, from its creation on."""
    version = str(int(obj["metadata"]["resourceVersion"]) - 1)
    stream = api.kube.watch(RESOURCE_SLICES, resource_version=version, timeout_s=WATCH_S, **selected)
    seen = []
    for event in stream:
        if event.object["metadata"].get("name") == obj["metadata"]["name"]:
            seen.append(event)
        if len(seen) == count:
            stream.close()
            break
    return seen


# --- deleting --------------------------------------------------------------------------------------------------------


def test_delete_removes(api):
    name = api.create(RESOURCE_SLICES, resource_slice())["metadata"]["name"]
    api.kube.delete(RESOURCE_SLICES, name)
    assert type(refusal(lambda: api.kube.get(RESOURCE_SLICES, name))) is ApiNotFound


def test_delete_of_an_absent_object(api):
    assert type(refusal(lambda: api.kube.delete(RESOURCE_SLICES, unique("absent")))) is ApiNotFound


def test_delete_with_another_uid_is_a_conflict(api):
    name = api.create(RESOURCE_SLICES, resource_slice())["metadata"]["name"]
    assert type(refusal(lambda: api.kube.delete(RESOURCE_SLICES, name, uid="other"))) is ApiConflict


def test_delete_with_a_stale_version_is_a_conflict(api):
    created = api.create(RESOURCE_SLICES, resource_slice())
    name, version = created["metadata"]["name"], created["metadata"]["resourceVersion"]
    api.kube.replace(RESOURCE_SLICES, changed(created, labels={"a": "b"}))
    assert type(refusal(lambda: api.kube.delete(RESOURCE_SLICES, name, resource_version=version))) is ApiConflict


def test_delete_under_matching_preconditions(api):
    metadata = api.create(RESOURCE_SLICES, resource_slice())["metadata"]
    given = {"uid": metadata["uid"], "resource_version": metadata["resourceVersion"]}
    api.kube.delete(RESOURCE_SLICES, metadata["name"], **given)
    assert type(refusal(lambda: api.kube.get(RESOURCE_SLICES, metadata["name"]))) is ApiNotFound


def with_finalizer(api: Api) -> Json:
    created = api.create(RESOURCE_SLICES, resource_slice(metadata={"finalizers": ["example.com/hold"]}))
    api.kube.delete(RESOURCE_SLICES, created["metadata"]["name"])
    return api.kube.get(RESOURCE_SLICES, created["metadata"]["name"])


def test_a_finalizer_holds_a_deleted_object(api):
    metadata = with_finalizer(api)["metadata"]
    assert ("deletionTimestamp" in metadata, metadata["generation"]) == (True, 2)


def test_the_last_finalizer_lets_it_go(api):
    held = with_finalizer(api)
    api.kube.replace(RESOURCE_SLICES, changed(held, finalizers=[]))
    assert type(refusal(lambda: api.kube.get(RESOURCE_SLICES, held["metadata"]["name"]))) is ApiNotFound


def test_a_deleted_object_takes_no_new_finalizer(api):
    held = with_finalizer(api)
    more = changed(held, finalizers=["example.com/hold", "example.com/more"])
    assert refusal(lambda: api.kube.replace(RESOURCE_SLICES, more)).status == 422


def test_a_pod_without_node_goes_at_once(api):
    name = api.create(PODS, pod(schedulerName="nobody"))["metadata"]["name"]
    api.kube.delete(PODS, name, NAMESPACE)
    assert type(refusal(lambda: api.kube.get(PODS, name, NAMESPACE))) is ApiNotFound


def test_a_bound_pod_waits_for_its_kubelet(api):
    name = api.create(PODS, pod(nodeName="node-a"))["metadata"]["name"]
    api.kube.delete(PODS, name, NAMESPACE)
    assert api.kube.get(PODS, name, NAMESPACE)["metadata"]["deletionGracePeriodSeconds"] == 30


def test_a_bound_pod_goes_by_force(api):
    name = api.create(PODS, pod(nodeName="node-a"))["metadata"]["name"]
    api.kube.delete(PODS, name, NAMESPACE, grace_period_s=0)
    assert type(refusal(lambda: api.kube.get(PODS, name, NAMESPACE))) is ApiNotFound


# --- selecting and watching ------------------------------------------------------------------------------------------


def test_slices_are_selected_by_node_driver_and_pool(api):
    node_name = unique("node")
    pool = {"name": node_name, "generation": 1, "resourceSliceCount": 1}
    created = api.create(RESOURCE_SLICES, resource_slice(nodeName=node_name, pool=pool))
    selector = f"spec.nodeName={node_name},spec.driver=gpu.nvidia.com,spec.pool.name={node_name}"
    assert names(api.kube.list(RESOURCE_SLICES, field_selector=selector)) == {created["metadata"]["name"]}


def test_a_selector_may_exclude(api):
    created = api.create(RESOURCE_SLICES, resource_slice())
    found = api.kube.list(RESOURCE_SLICES, field_selector="spec.nodeName!=node-a")
    assert created["metadata"]["name"] not in names(found)


def test_pods_are_selected_by_node_and_phase(api):
    node_name = unique("node")
    created = api.create(PODS, pod(nodeName=node_name))
    found = api.kube.list(PODS, field_selector=f"spec.nodeName={node_name},status.phase=Pending")
    assert names(found) == {created["metadata"]["name"]}


@pytest.mark.parametrize(
    ("resource", "selector"),
    [
        (RESOURCE_SLICES, "spec.bogus=1"),
        (RESOURCE_SLICES, "metadata.namespace=default"),
        (RESOURCE_CLAIMS, "spec.bogus=1"),
        (PODS, "spec.bogus=1"),
        (PODS, "nonsense"),
    ],
)
def test_an_unsupported_selector_is_a_bad_request(api, resource, selector):
    error = refusal(lambda: api.kube.list(resource, field_selector=selector))
    assert (type(error), error.status) == (ApiError, 400)


def test_a_watch_tells_every_change_in_order(api):
    created = api.create(RESOURCE_SLICES, resource_slice())
    api.kube.replace(RESOURCE_SLICES, changed(created, labels={"a": "b"}))
    api.kube.delete(RESOURCE_SLICES, created["metadata"]["name"])
    assert [event.type for event in events_of(api, created, 3)] == ["ADDED", "MODIFIED", "DELETED"]


def test_a_watch_shows_whole_objects(api):
    created = api.create(RESOURCE_SLICES, resource_slice())
    assert events_of(api, created, 1)[0].object == created


def test_a_deleted_event_has_a_version_of_its_own(api):
    created = api.create(RESOURCE_SLICES, resource_slice())
    api.kube.delete(RESOURCE_SLICES, created["metadata"]["name"])
    last = events_of(api, created, 2)[-1].object["metadata"]["resourceVersion"]
    assert int(last) > int(created["metadata"]["resourceVersion"])


def test_a_watch_starts_after_its_version(api):
    created = api.create(RESOURCE_SLICES, resource_slice())
    api.kube.delete(RESOURCE_SLICES, created["metadata"]["name"])
    version = created["metadata"]["resourceVersion"]
    stream = api.kube.watch(RESOURCE_SLICES, resource_version=version, timeout_s=WATCH_S)
    first = next(event for event in stream if event.object["metadata"].get("name") == created["metadata"]["name"])
    assert first.type == "DELETED"


def test_an_object_that_leaves_a_selection_is_deleted_for_its_watcher(api):
    created = api.create(PODS, pod(nodeName="node-a"))
    api.kube.replace_status(PODS, {**created, "status": {**created["status"], "phase": "Failed"}})
    selector = f"metadata.name={created['metadata']['name']},status.phase=Pending"
    version = created["metadata"]["resourceVersion"]
    stream = api.kube.watch(PODS, NAMESPACE, selector, resource_version=version, timeout_s=WATCH_S)
    assert next(event.type for event in stream if event.type != "BOOKMARK") == "DELETED"


def test_a_watch_ends_at_its_timeout_with_a_bookmark(api):
    version = api.kube.list(RESOURCE_SLICES).resource_version
    # nobody else's changes: a real server may be shared
    selector = f"metadata.name={unique('absent')}"
    events = list(api.kube.watch(RESOURCE_SLICES, None, selector, resource_version=version, timeout_s=1))
    assert {event.type for event in events} <= {"BOOKMARK"}


@pytest.mark.parametrize("backend", FORGETFUL)
def test_a_watch_from_a_forgotten_version_is_gone(tmp_path, backend):
    with open_api(backend, tmp_path) as api:
        created = api.create(RESOURCE_SLICES, resource_slice())
        api.kube.delete(RESOURCE_SLICES, created["metadata"]["name"])
        api.forget_history()
        with pytest.raises(ApiGone):
            list(api.kube.watch(RESOURCE_SLICES, resource_version="1", timeout_s=1))


# --- namespaces and pods ---------------------------------------------------------------------------------------------


def test_admin_access_needs_a_labelled_namespace(api):
    error = refusal(lambda: api.create(RESOURCE_CLAIMS, claim(requests=[request(adminAccess=True)])))
    assert (error.status, "admin access to devices requires" in error.message) == (422, True)


def test_admin_access_in_a_labelled_namespace(api):
    name = unique("admin")
    labels = {"resource.kubernetes.io/admin-access": "true"}
    api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    obj = claim(requests=[request(adminAccess=True)], metadata={"namespace": name})
    assert api.create(RESOURCE_CLAIMS, obj)["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] is True


def test_a_pods_node_is_not_a_field_to_update(api):
    created = api.create(PODS, pod(schedulerName="nobody"))
    assert refusal(lambda: api.kube.replace(PODS, with_spec(created, nodeName="node-a"))).status == 422


def test_a_pod_may_only_name_its_own_claims(api):
    obj = pod(containers=[container(claims=[{"name": "gpu"}])])
    error = refusal(lambda: api.create(PODS, obj))
    assert (error.status, "spec.containers[0].resources.claims[0]: " in error.message) == (422, True)


@pytest.mark.parametrize("source", [{}, {"resourceClaimName": "a", "resourceClaimTemplateName": "b"}])
def test_a_pods_claim_has_one_source(api, source):
    error = refusal(lambda: api.create(PODS, pod(resourceClaims=[{"name": "gpu", **source}])))
    assert (error.status, "spec.resourceClaims[0]: " in error.message) == (422, True)
