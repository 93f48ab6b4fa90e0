"""Events of events.k8s.io/v1, over every backend of the port."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from contract.kube_backends import BACKENDS, Api, open_api, refusal
from contract.kube_objects import build, unique
from tesela.core.errors import ApiConflict
from tesela.edge.kube.port import EVENTS, Json

NOW, LATER = "2026-11-30T10:00:00.000001Z", "2026-11-30T10:00:07.000002Z"


@pytest.fixture(params=BACKENDS)
def api(request, tmp_path) -> Iterator[Api]:
    with open_api(request.param, tmp_path) as opened:
        yield opened


def event(**fields) -> Json:
    given: Json = {
        "eventTime": NOW,
        "reportingController": "gpu.nvidia.com",
        "reportingInstance": "node-a",
        "action": "Watch",
        "reason": "GPUUnhealthy",
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-uid"},
        "note": "gpu-0 is unhealthy",
        "type": "Warning",
    }
    return build(EVENTS, unique("node-a"), **{**given, **fields})


def series(count: int = 2) -> Json:
    return {"count": count, "lastObservedTime": LATER}


def test_an_event_about_a_node_is_kept(api):
    written = event()
    kept = api.create(EVENTS, written)
    assert {key: kept[key] for key in written if key != "metadata"} == {
        key: written[key] for key in written if key != "metadata"
    }


def test_an_event_is_created_once(api):
    created = api.create(EVENTS, written := event())
    error = refusal(lambda: api.create(EVENTS, written))
    assert (type(error), created["note"]) == (ApiConflict, written["note"])


def test_a_series_is_added(api):
    created = api.create(EVENTS, event())
    assert api.kube.replace(EVENTS, {**created, "series": series()})["series"] == series()


def test_a_series_grows(api):
    created = api.create(EVENTS, event())
    first = api.kube.replace(EVENTS, {**created, "series": series()})
    assert api.kube.replace(EVENTS, {**first, "series": series(9)})["series"]["count"] == 9


def test_a_claim_may_be_related(api):
    related = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "name": "c", "namespace": "elsewhere"}
    assert api.create(EVENTS, event(related=related))["related"] == related


def test_a_note_of_1024_bytes_fits(api):
    assert api.create(EVENTS, event(note="x" * 1024))["note"] == "x" * 1024


REFUSED = {
    "a note of 1025 bytes": {"note": "x" * 1025},
    "1025 bytes in fewer characters": {"note": "é" * 513},
    "another type": {"type": "Error"},
    "no time": {"eventTime": None},
    "no reason": {"reason": ""},
    "no action": {"action": ""},
    "no controller": {"reportingController": ""},
    "no instance": {"reportingInstance": ""},
    "an instance of 129": {"reportingInstance": "x" * 129},
    "a series of one": {"series": {"count": 1, "lastObservedTime": LATER}},
}


@pytest.mark.parametrize("fields", REFUSED.values(), ids=REFUSED)
def test_an_event_is_refused(api, fields):
    error = refusal(lambda: api.create(EVENTS, event(**fields)))
    assert (error.status, error.reason) == (422, "Invalid")


def test_an_event_about_a_node_is_in_no_other_namespace(api):
    error = refusal(lambda: api.create(EVENTS, event(namespace="kube-public")))
    assert error.status in {404, 422}


@pytest.mark.parametrize("fields", [{"note": "other"}, {"reason": "Other"}, {"type": "Normal"}])
def test_what_an_event_says_never_changes(api, fields):
    created = api.create(EVENTS, event())
    assert refusal(lambda: api.kube.replace(EVENTS, {**created, **fields})).status == 422
