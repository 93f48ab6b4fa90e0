"""Server-side apply of a claim's status: what an apply leaves of others, over every backend of the port."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from contract.kube_backends import BACKENDS, Api, open_api, refusal
from contract.kube_objects import NAMESPACE, allocation, claim, resource_slice, unique
from tesela.core.errors import ApiNotFound
from tesela.edge.kube.port import RESOURCE_CLAIMS, RESOURCE_SLICES, Json

OURS, THEIRS = "gpu.nvidia.com", "net.example.com"
NOW, LATER = "2026-11-30T10:00:00Z", "2026-11-30T11:00:00Z"


@pytest.fixture(params=BACKENDS)
def api(request, tmp_path) -> Iterator[Api]:
    with open_api(request.param, tmp_path) as opened:
        yield opened


def condition(kind: str = "Ready", status: str = "True", **fields) -> Json:
    given = {"type": kind, "status": status, "reason": "Tested", "message": "", "lastTransitionTime": NOW}
    return given | fields


def entry(driver: str = OURS, device: str = "gpu-0", **fields) -> Json:
    return {"driver": driver, "pool": "node-a", "device": device, **fields}


def allocate(api: Api) -> Json:
    """A claim with two devices of ours and one of another driver."""
    created = api.create(RESOURCE_CLAIMS, claim(unique("claim")))
    given = allocation()
    (ours,) = given["devices"]["results"]
    given["devices"]["results"] = [ours, {**ours, "device": "gpu-1"}, {**ours, "driver": THEIRS}]
    return api.kube.replace_status(RESOURCE_CLAIMS, {**created, "status": {"allocation": given}})


def apply(api: Api, of: Json, *entries: Json, manager: str = OURS, **metadata) -> Json:
    named = {"name": of["metadata"]["name"], "namespace": of["metadata"]["namespace"], **metadata}
    status = {"devices": list(entries)} if entries else {}
    return api.kube.apply_status(RESOURCE_CLAIMS, {"metadata": named, "status": status}, field_manager=manager)


def devices(obj: Json) -> list[tuple[str, str]]:
    return sorted((one["driver"], one["device"]) for one in obj["status"].get("devices", []))


def find(obj: Json, driver: str = OURS, device: str = "gpu-0") -> Json:
    found = next(one for one in obj["status"]["devices"] if (one["driver"], one["device"]) == (driver, device))
    return {name: value for name, value in found.items() if value is not None}


def test_apply_answers_with_what_get_reads(api):
    allocated = allocate(api)
    applied = apply(api, allocated, entry(conditions=[condition()], data={"uuid": "MIG-1"}))
    assert api.kube.get(RESOURCE_CLAIMS, allocated["metadata"]["name"], NAMESPACE) == applied


def test_apply_writes_conditions_and_data(api):
    written = entry(conditions=[condition()], data={"uuid": "MIG-1", "giID": 3})
    assert find(apply(api, allocate(api), written)) == written


def test_apply_leaves_the_rest_of_the_object(api):
    allocated = allocate(api)
    applied = apply(api, allocated, entry())
    assert (applied["spec"], applied["status"]["allocation"]) == (allocated["spec"], allocated["status"]["allocation"])


def test_apply_of_the_same_writes_nothing(api):
    allocated = allocate(api)
    versions = {
        apply(api, allocated, entry(data={"uuid": "MIG-1"}))["metadata"]["resourceVersion"] for _ in range(2)
    }  # fmt: skip
    assert len(versions) == 1


def test_apply_replaces_data_as_one(api):
    allocated = allocate(api)
    apply(api, allocated, entry(data={"uuid": "MIG-1", "profile": "1g.10gb"}))
    assert find(apply(api, allocated, entry(data={"uuid": "MIG-2"})))["data"] == {"uuid": "MIG-2"}


def test_apply_changes_one_condition_and_drops_another(api):
    allocated = allocate(api)
    apply(api, allocated, entry(conditions=[condition(), condition("Healthy"), condition("Old")]))
    wanted = [condition(), condition("Healthy", "False", lastTransitionTime=LATER)]
    assert find(apply(api, allocated, entry(conditions=wanted)))["conditions"] == wanted


def test_another_drivers_entry_stays(api):
    allocated = allocate(api)
    apply(api, allocated, entry(THEIRS, data={"mac": "a"}), manager=THEIRS)
    apply(api, allocated, entry(data={"uuid": "MIG-1"}))
    assert find(apply(api, allocated, entry()), THEIRS) == entry(THEIRS, data={"mac": "a"})


def test_an_entry_that_is_not_applied_again_goes(api):
    allocated = allocate(api)
    apply(api, allocated, entry(), entry(device="gpu-1"))
    assert devices(apply(api, allocated, entry())) == [(OURS, "gpu-0")]


def test_applying_nothing_removes_ours_alone(api):
    allocated = allocate(api)
    apply(api, allocated, entry(THEIRS), manager=THEIRS)
    apply(api, allocated, entry(), entry(device="gpu-1"))
    assert devices(apply(api, allocated)) == [(THEIRS, "gpu-0")]


def test_what_two_apply_alike_stays_until_both_give_it_up(api):
    allocated = allocate(api)
    apply(api, allocated, entry(), manager="one")
    apply(api, allocated, entry(), manager="two")
    kept, gone = (devices(apply(api, allocated, manager=name)) for name in ("one", "two"))
    assert (kept, gone) == ([(OURS, "gpu-0")], [])


def test_anothers_condition_in_our_entry_stays(api):
    allocated = allocate(api)
    apply(api, allocated, entry(conditions=[condition("Attached")]), manager="binder")
    apply(api, allocated, entry(conditions=[condition()]))
    assert [one["type"] for one in find(apply(api, allocated, entry()))["conditions"]] == ["Attached"]


def test_a_value_that_another_wrote_is_taken_over(api):
    allocated = allocate(api)
    apply(api, allocated, entry(data={"uuid": "MIG-1"}), manager="one")
    apply(api, allocated, entry(data={"uuid": "MIG-2"}), manager="two")
    assert "data" not in find(apply(api, allocated, entry(), manager="two"))


def test_what_was_replaced_before_stays_when_it_is_not_applied_any_more(api):
    allocated = allocate(api)
    status = {**allocated["status"], "devices": [entry(data={"uuid": "MIG-1"})]}
    api.kube.replace_status(RESOURCE_CLAIMS, {**allocated, "status": status})
    apply(api, allocated, entry(data={"uuid": "MIG-1"}))
    assert find(apply(api, allocated))["data"] == {"uuid": "MIG-1"}


def test_what_a_replacement_changed_is_not_ours_any_more(api):
    applied = apply(api, allocate(api), entry(data={"uuid": "MIG-1"}))
    status = {**applied["status"], "devices": [entry(data={"uuid": "MIG-2"})]}
    api.kube.replace_status(RESOURCE_CLAIMS, {**applied, "status": status})
    assert find(apply(api, applied, entry()))["data"] == {"uuid": "MIG-2"}


def test_entries_come_back_after_a_deallocation(api):
    applied = apply(api, allocate(api), entry())
    freed = api.kube.replace_status(RESOURCE_CLAIMS, {**applied, "status": {}})
    api.kube.replace_status(RESOURCE_CLAIMS, {**freed, "status": {"allocation": allocation()}})
    assert devices(apply(api, applied, entry())) == [(OURS, "gpu-0")]


def test_the_manager_is_named_with_the_object(api):
    applied = apply(api, allocate(api), entry(), manager="some-manager")
    found = [(one["operation"], one["subresource"]) for one in applied["metadata"]["managedFields"]
             if one["manager"] == "some-manager"]  # fmt: skip
    assert found == [("Apply", "status")]


def test_apply_to_an_absent_object(api):
    absent = {"metadata": {"name": unique("absent"), "namespace": NAMESPACE}}
    assert type(refusal(lambda: apply(api, absent, entry()))) is ApiNotFound


def test_an_entry_without_conditions_shows_null(api):
    (shown,) = apply(api, allocate(api), entry())["status"]["devices"]
    assert shown == entry(conditions=None)


def test_apply_to_a_successor_of_the_same_name_is_refused(api):
    allocated = allocate(api)
    error = refusal(lambda: apply(api, allocated, entry(), uid="7b5b5a5e-0000-4000-8000-000000000000"))
    assert (error.status, "metadata.uid: Invalid value" in error.message) == (422, True)


def test_apply_with_the_right_uid(api):
    allocated = allocate(api)
    assert devices(apply(api, allocated, entry(), uid=allocated["metadata"]["uid"])) == [(OURS, "gpu-0")]


def test_apply_needs_a_manager(api):
    allocated = allocate(api)
    assert refusal(lambda: apply(api, allocated, entry(), manager="")).status in {400, 422}


def test_a_slice_has_no_status_to_apply(api):
    created = api.create(RESOURCE_SLICES, resource_slice())
    named = {"metadata": {"name": created["metadata"]["name"]}, "status": {}}
    error = refusal(lambda: api.kube.apply_status(RESOURCE_SLICES, named, field_manager=OURS))
    assert type(error) is ApiNotFound


REFUSED = {
    "a device that is not allocated": (entry(device="gpu-9"), "must be an allocated device in the claim"),
    "another's share": (entry(shareID="7b5b5a5e-0000-4000-8000-000000000000"), "must be an allocated device"),
    "9 conditions": (entry(conditions=[condition(f"C{i}") for i in range(9)]), "devices[0].conditions: Too many"),
    "a status": (entry(conditions=[condition(status="Maybe")]), "conditions[0].status: Unsupported value"),
    "a reason in words": (entry(conditions=[condition(reason="it is so")]), "conditions[0].reason: Invalid value"),
    "no reason": (entry(conditions=[condition(reason="")]), "conditions[0].reason: Required value"),
    "a type in words": (entry(conditions=[condition("is it")]), "conditions[0].type: Invalid value"),
    "10 KiB of data and one byte": (entry(data={"a": "x" * (10240 - 7)}), "devices[0].data: Too long"),
}


@pytest.mark.parametrize(("written", "problem"), REFUSED.values(), ids=REFUSED)
def test_an_entry_is_checked(api, written, problem):
    allocated = allocate(api)
    error = refusal(lambda: apply(api, allocated, written))
    assert (error.status, problem in error.message or error.message) == (422, True)


def test_10_kib_of_data_fit(api):
    written = entry(data={"a": "x" * (10240 - 8)})
    assert find(apply(api, allocate(api), written)) == written
