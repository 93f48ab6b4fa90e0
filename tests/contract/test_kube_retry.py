"""Retries of API calls, and the faults that stand in front of a backend in tests."""

from __future__ import annotations

import time
from threading import Event

import pytest
from contract.kube_backends import refusal
from contract.kube_objects import NAMESPACE, claim, unique
from tesela.core.errors import ApiConflict, ApiUnavailable
from tesela.edge.embedded.cluster import EmbeddedCluster
from tesela.edge.embedded.faults import Fault, FlakyKube, unavailable
from tesela.edge.embedded.server import ApiServer
from tesela.edge.kube.client import KubeClient
from tesela.edge.kube.config import load_config
from tesela.edge.kube.port import RESOURCE_CLAIMS, RESOURCE_SLICES
from tesela.edge.kube.retry import with_retries


@pytest.fixture
def cluster():
    made = EmbeddedCluster()
    yield made
    made.close()


class NoStop(Event):
    """Nobody sets it; `waits_s` are the waits between tries."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits_s.append(timeout)
        return super().wait(timeout)


# --- retries ---------------------------------------------------------------------------------------------------------


def create_through(flaky: FlakyKube, deadline_s: float, stop: Event | None = None) -> object:
    obj = claim(unique("claim"))
    return with_retries(lambda: flaky.create(RESOURCE_CLAIMS, obj), stop or Event(), deadline_s)


def test_what_is_unavailable_is_tried_again(cluster):
    flaky = FlakyKube(cluster, unavailable(2))
    create_through(flaky, 30)
    assert len(flaky.calls) == 3


def test_a_deadline_of_zero_means_one_try(cluster):
    flaky = FlakyKube(cluster, unavailable(2))
    error = refusal(lambda: create_through(flaky, 0))
    assert (type(error), len(flaky.calls)) == (ApiUnavailable, 1)


def test_the_deadline_ends_the_tries(cluster):
    flaky, stop = FlakyKube(cluster, unavailable(1000)), NoStop()
    refusal(lambda: create_through(flaky, 0.5, stop))
    assert sum(stop.waits_s) < 0.5


def test_a_wait_that_the_server_asks_for_beyond_the_deadline_is_not_begun(cluster):
    error = ApiUnavailable(429, "TooManyRequests", "later", 60)
    flaky, stop = FlakyKube(cluster, Fault(error=error)), NoStop()
    refusal(lambda: create_through(flaky, 5, stop))
    assert (len(flaky.calls), stop.waits_s) == (1, [])


def test_the_servers_wait_is_kept(cluster):
    error = ApiUnavailable(429, "TooManyRequests", "later", 1)
    flaky = FlakyKube(cluster, Fault(error=error))
    began = time.monotonic()
    create_through(flaky, 30)
    assert time.monotonic() - began >= 1


def test_a_set_stop_means_one_try(cluster):
    stop = Event()
    stop.set()
    flaky = FlakyKube(cluster, unavailable(1000))
    refusal(lambda: create_through(flaky, 30, stop))
    assert len(flaky.calls) == 1


def test_a_conflict_is_not_tried_again(cluster):
    flaky = FlakyKube(cluster, Fault(error=ApiConflict(409, "Conflict", "changed")))
    refusal(lambda: create_through(flaky, 30))
    assert len(flaky.calls) == 1


def test_a_create_whose_answer_was_lost_ends_in_a_conflict(cluster):
    flaky = FlakyKube(cluster, unavailable(after=True))
    assert type(refusal(lambda: create_through(flaky, 30))) is ApiConflict


# --- faults ----------------------------------------------------------------------------------------------------------


def test_a_fault_hits_only_its_verb_and_kind(cluster):
    flaky = FlakyKube(cluster, unavailable(verb="list", plural="resourceslices"))
    flaky.list(RESOURCE_CLAIMS, NAMESPACE)
    assert type(refusal(lambda: flaky.list(RESOURCE_SLICES))) is ApiUnavailable


def test_a_fault_is_used_up(cluster):
    flaky = FlakyKube(cluster, unavailable())
    refusal(lambda: flaky.list(RESOURCE_SLICES))
    assert flaky.list(RESOURCE_SLICES).items == ()


def test_a_latency_delays_and_answers(cluster):
    flaky = FlakyKube(cluster, Fault(latency_s=0.05))
    began = time.monotonic()
    flaky.list(RESOURCE_SLICES)
    assert time.monotonic() - began >= 0.05


def test_a_served_fault_reaches_the_client(cluster, tmp_path):
    server = ApiServer(FlakyKube(cluster, Fault(error=ApiUnavailable(503, "", "overloaded", 3))))
    client = KubeClient(load_config(str(server.write_kubeconfig(tmp_path / "k2"))))
    error = refusal(lambda: client.list(RESOURCE_SLICES))
    client.close()
    server.close()
    assert isinstance(error, ApiUnavailable)
    assert (error.status, error.retry_after_s) == (503, 3.0)
