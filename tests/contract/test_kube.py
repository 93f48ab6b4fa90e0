"""What every backend of the Kubernetes port promises, held against memory, the client, and a real API server."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
from contract.kube_backends import BACKENDS, Api, open_api, refusal
from contract.kube_objects import (
    NAMESPACE,
    allocation,
    changed,
    claim,
    device,
    device_class,
    names,
    pod,
    request,
    reservation,
    resource_slice,
    template,
    unique,
    with_spec,
)
from tesela.core.errors import ApiConflict, ApiNotFound
from tesela.edge.kube.port import (
    DEVICE_CLASSES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Json,
)


@pytest.fixture(params=BACKENDS)
def api(request, tmp_path) -> Iterator[Api]:
    with open_api(request.param, tmp_path) as opened:
        yield opened


# --- reading and creating -----------------------------------------------------------------------------------------


def test_server_version_names_a_minor_release(api):
    assert api.kube.get_server_version().startswith("v1.")


def test_create_answers_with_what_get_reads(api):
    created = api.create(RESOURCE_SLICES, resource_slice())
    assert api.kube.get(RESOURCE_SLICES, created["metadata"]["name"]) == created


def test_create_fills_in_the_servers_metadata(api):
    metadata = api.create(RESOURCE_SLICES, resource_slice())["metadata"]
    assert {"uid", "resourceVersion", "creationTimestamp", "generation"} <= set(metadata)


def test_create_numbers_slices_and_classes_but_not_claims(api):
    one = api.create(RESOURCE_SLICES, resource_slice())["metadata"].get("generation")
    two = api.create(DEVICE_CLASSES, device_class(unique("class")))["metadata"].get("generation")
    three = api.create(RESOURCE_CLAIMS, claim())["metadata"].get("generation")
    assert (one, two, three) == (1, 1, None)


def test_generate_name_appends_five_characters(api):
    prefix = unique("made") + "-"
    obj = changed(resource_slice(), generateName=prefix)
    del obj["metadata"]["name"]
    name = api.create(RESOURCE_SLICES, obj)["metadata"]["name"]
    assert (name.startswith(prefix), len(name)) == (True, len(prefix) + 5)


def test_generate_name_is_cut_to_63_characters(api):
    obj = changed(resource_slice(), generateName="a" * 80)
    del obj["metadata"]["name"]
    assert len(api.create(RESOURCE_SLICES, obj)["metadata"]["name"]) == 63


def test_create_twice_is_a_conflict(api):
    created = api.create(RESOURCE_SLICES, resource_slice())
    error = refusal(lambda: api.create(RESOURCE_SLICES, resource_slice(created["metadata"]["name"])))
    assert (type(error), error.reason) == (ApiConflict, "AlreadyExists")


def test_create_needs_a_living_namespace(api):
    error = refusal(lambda: api.create(RESOURCE_CLAIMS, claim(metadata={"namespace": unique("absent")})))
    assert type(error) is ApiNotFound


def test_create_without_a_namespace_is_refused(api):
    obj = claim()
    del obj["metadata"]["namespace"]
    assert refusal(lambda: api.create(RESOURCE_CLAIMS, obj)).status == 400


def test_create_refuses_a_resource_version(api):
    obj = resource_slice(metadata={"resourceVersion": "5"})
    assert "resourceVersion should not be set" in str(refusal(lambda: api.create(RESOURCE_SLICES, obj)))


def test_create_refuses_another_kind(api):
    obj = {**claim(), "kind": "ResourceSlice"}
    assert refusal(lambda: api.create(RESOURCE_CLAIMS, obj)).status == 400


def test_get_of_an_absent_object(api):
    assert type(refusal(lambda: api.kube.get(RESOURCE_SLICES, unique("absent")))) is ApiNotFound


def test_list_holds_whole_objects(api):
    created = api.create(RESOURCE_SLICES, resource_slice())
    name = created["metadata"]["name"]
    found = api.kube.list(RESOURCE_SLICES, field_selector=f"metadata.name={name}")
    assert found.items == (created,)


def test_list_follows_pages(api):
    created = {api.create(RESOURCE_CLAIMS, claim())["metadata"]["name"] for _ in range(7)}
    assert created <= names(api.kube.list(RESOURCE_CLAIMS, NAMESPACE))


def test_list_of_one_namespace_leaves_out_others(api):
    created = api.create(RESOURCE_CLAIMS, claim())
    assert created["metadata"]["name"] not in names(api.kube.list(RESOURCE_CLAIMS, "kube-system"))


def test_list_of_all_namespaces(api):
    created = api.create(RESOURCE_CLAIMS, claim())
    assert created["metadata"]["name"] in names(api.kube.list(RESOURCE_CLAIMS))


# --- what is kept ----------------------------------------------------------------------------------------------------


def test_unknown_fields_vanish(api):
    created = api.create(RESOURCE_SLICES, resource_slice(bogus=1, devices=[device(bogus=2)]))
    assert (created["spec"].get("bogus"), created["spec"]["devices"][0].get("bogus")) == (None, None)


def test_empty_lists_vanish(api):
    assert "devices" not in api.create(RESOURCE_SLICES, resource_slice(devices=[]))["spec"]


def test_an_empty_string_attribute_is_kept(api):
    created = api.create(RESOURCE_SLICES, resource_slice(devices=[device(attributes={"profile": {"string": ""}})]))
    assert created["spec"]["devices"][0]["attributes"] == {"profile": {"string": ""}}


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("40960Mi", "40Gi"),
        ("1000", "1k"),
        ("42949672960", "42949672960"),
        ("1500m", "1500m"),
        ("0.5", "500m"),
        ("512Ki", "512Ki"),
        ("0.5Ki", "512"),
        ("1e3", "1e3"),
        ("1.5Gi", "1536Mi"),
        ("0Gi", "0"),
        (7, "7"),
    ],
)
def test_quantities_are_kept_in_one_spelling(api, written, kept):
    created = api.create(RESOURCE_SLICES, resource_slice(devices=[device(capacity={"memory": {"value": written}})]))
    assert created["spec"]["devices"][0]["capacity"]["memory"]["value"] == kept


def test_a_taint_gets_the_time_it_was_added(api):
    taints = [{"key": "tesela/test", "effect": "NoSchedule"}]
    created = api.create(RESOURCE_SLICES, resource_slice(devices=[device(taints=taints)]))
    assert created["spec"]["devices"][0]["taints"][0]["timeAdded"].endswith("Z")


def test_a_claims_request_gets_mode_and_count(api):
    created = api.create(RESOURCE_CLAIMS, claim())
    exactly = created["spec"]["devices"]["requests"][0]["exactly"]
    assert (exactly["allocationMode"], exactly["count"]) == ("ExactCount", 1)


def test_a_claim_starts_without_status(api):
    created = api.create(RESOURCE_CLAIMS, {**claim(), "status": {"reservedFor": [reservation()]}})
    assert created["status"] == {}


def test_alpha_fields_are_dropped(api):
    consumes = [{"counterSet": "set", "compatibilityGroups": ["a"], "counters": {"x": {"value": "1"}}}]
    written = resource_slice(partitionTypeAttribute="x", devices=[device(consumesCounters=consumes)])
    created = api.create(RESOURCE_SLICES, written)
    kept = created["spec"]["devices"][0]["consumesCounters"][0]
    assert ("partitionTypeAttribute" in created["spec"], "compatibilityGroups" in kept) == (False, False)


# --- replacing -------------------------------------------------------------------------------------------------------


def test_replace_raises_generation_and_version(api):
    created = api.create(RESOURCE_SLICES, resource_slice())
    pool = {**created["spec"]["pool"], "generation": 2}
    replaced = api.kube.replace(RESOURCE_SLICES, with_spec(created, pool=pool))
    before, after = created["metadata"], replaced["metadata"]
    grew = int(after["resourceVersion"]) > int(before["resourceVersion"])
    assert (after["generation"], grew) == (2, True)


def test_replace_of_metadata_keeps_the_generation(api):
    created = api.create(RESOURCE_SLICES, resource_slice())
    replaced = api.kube.replace(RESOURCE_SLICES, changed(created, labels={"a": "b"}))
    assert replaced["metadata"]["generation"] == 1


def test_replace_without_a_change_writes_nothing(api):
    created = api.create(RESOURCE_SLICES, resource_slice())
    replaced = api.kube.replace(RESOURCE_SLICES, created)
    assert replaced["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]


def test_replace_of_a_stale_object_is_a_conflict(api):
    created = api.create(RESOURCE_SLICES, resource_slice())
    api.kube.replace(RESOURCE_SLICES, changed(created, labels={"a": "b"}))
    error = refusal(lambda: api.kube.replace(RESOURCE_SLICES, changed(created, labels={"a": "c"})))
    assert type(error) is ApiConflict


def test_replace_of_another_uid_is_a_conflict(api):
    created = api.create(RESOURCE_SLICES, resource_slice())
    error = refusal(lambda: api.kube.replace(RESOURCE_SLICES, changed(created, uid="other")))
    assert type(error) is ApiConflict


def test_replace_of_an_absent_object(api):
    created = api.create(RESOURCE_SLICES, resource_slice())
    error = refusal(lambda: api.kube.replace(RESOURCE_SLICES, changed(created, name=unique("absent"))))
    assert type(error) is ApiNotFound


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"driver": "other.example.com"}, "spec.driver: "),
        ({"nodeName": "node-b"}, "spec.nodeName: "),
        ({"pool": {"name": "node-b", "generation": 1, "resourceSliceCount": 1}}, "spec.pool.name: "),
    ],
)
def test_immutable_fields_of_a_slice(api, spec, field):
    created = api.create(RESOURCE_SLICES, resource_slice())
    error = refusal(lambda: api.kube.replace(RESOURCE_SLICES, with_spec(created, **spec)))
    assert (error.status, field in error.message, "field is immutable" in error.message) == (422, True, True)


def test_a_claims_spec_is_immutable(api):
    created = api.create(RESOURCE_CLAIMS, claim())
    changed_spec = with_spec(created, devices={"requests": [request("other")]})
    assert refusal(lambda: api.kube.replace(RESOURCE_CLAIMS, changed_spec)).status == 422


def test_a_templates_spec_is_immutable(api):
    created = api.create(RESOURCE_CLAIM_TEMPLATES, template())
    changed_spec = {**created, "spec": {"spec": {"devices": {"requests": [request("other")]}}}}
    assert refusal(lambda: api.kube.replace(RESOURCE_CLAIM_TEMPLATES, changed_spec)).status == 422


def test_a_class_may_change(api):
    created = api.create(DEVICE_CLASSES, device_class(unique("class")))
    assert api.kube.replace(DEVICE_CLASSES, {**created, "spec": {}})["metadata"]["generation"] == 2


def test_a_taints_time_survives_other_changes(api):
    taints = [{"key": "tesela/test", "effect": "NoSchedule", "timeAdded": "2026-01-02T03:04:05Z"}]
    created = api.create(RESOURCE_SLICES, resource_slice(devices=[device(taints=taints)]))
    pool = {**created["spec"]["pool"], "generation": 2}
    replaced = api.kube.replace(RESOURCE_SLICES, with_spec(created, pool=pool))
    assert replaced["spec"]["devices"][0]["taints"][0]["timeAdded"] == "2026-01-02T03:04:05Z"


def test_a_taints_time_is_the_writers_to_renew(api):
    taints = [{"key": "tesela/test", "effect": "NoSchedule", "timeAdded": "2026-01-02T03:04:05Z"}]
    created = api.create(RESOURCE_SLICES, resource_slice(devices=[device(taints=taints)]))
    harder = copy.deepcopy(created["spec"]["devices"])
    harder[0]["taints"][0]["effect"] = "NoExecute"
    replaced = api.kube.replace(RESOURCE_SLICES, with_spec(created, devices=harder))
    assert replaced["spec"]["devices"][0]["taints"][0]["timeAdded"] == "2026-01-02T03:04:05Z"


def test_a_taint_written_without_its_time_starts_anew(api):
    taints = [{"key": "tesela/test", "effect": "NoSchedule", "timeAdded": "2026-01-02T03:04:05Z"}]
    created = api.create(RESOURCE_SLICES, resource_slice(devices=[device(taints=taints)]))
    bare = copy.deepcopy(created["spec"]["devices"])
    del bare[0]["taints"][0]["timeAdded"]
    replaced = api.kube.replace(RESOURCE_SLICES, with_spec(created, devices=bare))
    assert replaced["spec"]["devices"][0]["taints"][0]["timeAdded"] > "2026-01-02T03:04:05Z"


def test_times_are_kept_to_the_second(api):
    taints = [{"key": "tesela/test", "effect": "NoSchedule", "timeAdded": "2026-01-02T03:04:05.678901Z"}]
    created = api.create(RESOURCE_SLICES, resource_slice(devices=[device(taints=taints)]))
    assert created["spec"]["devices"][0]["taints"][0]["timeAdded"] == "2026-01-02T03:04:05Z"


# --- status ---------------------------------------------------------------------------------------------------------


def allocate(api: Api, **status) -> Json:
    created = api.create(RESOURCE_CLAIMS, claim())
    return api.kube.replace_status(RESOURCE_CLAIMS, {**created, "status": {"allocation": allocation(), **status}})


def test_replace_status_changes_only_the_status(api):
    created = api.create(RESOURCE_CLAIMS, claim())
    written = {**changed(created, labels={"a": "b"}, finalizers=["example.com/f"]), "spec": {}}
    written["status"] = {"allocation": allocation()}
    replaced = api.kube.replace_status(RESOURCE_CLAIMS, written)
    metadata = replaced["metadata"]
    assert (replaced["spec"], metadata.get("labels"), metadata.get("finalizers")) == (created["spec"], None, None)


def test_replace_keeps_the_status(api):
    allocated = allocate(api)
    assert api.kube.replace(RESOURCE_CLAIMS, {**allocated, "status": {}})["status"] == allocated["status"]


def test_replace_status_of_a_stale_object_is_a_conflict(api):
    created = api.create(RESOURCE_CLAIMS, claim())
    api.kube.replace_status(RESOURCE_CLAIMS, {**created, "status": {"allocation": allocation()}})
    error = refusal(lambda: api.kube.replace_status(RESOURCE_CLAIMS, {**created, "status": {}}))
    assert type(error) is ApiConflict


def test_a_slice_has_no_status(api):
    created = api.create(RESOURCE_SLICES, resource_slice())
    assert type(refusal(lambda: api.kube.replace_status(RESOURCE_SLICES, created))) is ApiNotFound


def test_an_allocation_never_changes(api):
    allocated = allocate(api)
    other = {**allocated, "status": {"allocation": allocation("gpu-1")}}
    error = refusal(lambda: api.kube.replace_status(RESOURCE_CLAIMS, other))
    assert (error.status, "status.allocation: " in error.message) == (422, True)


def test_an_allocation_goes_when_nothing_reserves_it(api):
    allocated = allocate(api)
    assert api.kube.replace_status(RESOURCE_CLAIMS, {**allocated, "status": {}})["status"] == {}


def test_an_allocation_stays_while_reserved(api):
    allocated = allocate(api, reservedFor=[reservation()])
    status = {"reservedFor": [reservation()]}
    error = refusal(lambda: api.kube.replace_status(RESOURCE_CLAIMS, {**allocated, "status": status}))
    assert (error.status, "status.reservedFor: Forbidden" in error.message) == (422, True)


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        ({"reservedFor": [reservation(), reservation()]}, "status.reservedFor[1]: Duplicate value"),
        ({"reservedFor": [reservation(str(i)) for i in range(257)]}, "status.reservedFor: Too many: 257"),
        ({"devices": [{"driver": "gpu.nvidia.com", "pool": "node-a", "device": "gpu-9"}]}, "status.devices[0]: "),
    ],
)
def test_a_claims_status_is_checked(api, status, problem):
    allocated = allocate(api)
    written = {**allocated, "status": {**allocated["status"], **status}}
    error = refusal(lambda: api.kube.replace_status(RESOURCE_CLAIMS, written))
    assert (error.status, problem in error.message) == (422, True)


def test_a_pods_status_keeps_its_spec(api):
    created = api.create(PODS, pod(schedulerName="nobody"))
    written = {**created, "spec": {}, "status": {**created["status"], "phase": "Running"}}
    replaced = api.kube.replace_status(PODS, written)
    assert (replaced["spec"], replaced["status"]["phase"]) == (created["spec"], "Running")
