"""The API server is away for as long as it likes: what is prepared stays and ends, the rest waits and is made good.

Two minutes are no more than two seconds here: every wait of the driver is bounded by itself, which the last test reads
off the publisher's times.
"""

from __future__ import annotations

import dataclasses
import threading

import pytest
from polling import until
from tesela.core.errors import ApiUnavailable
from tesela.plugin.publish import Publisher, PublishTimes

AWAY_S = 120.0
GONE = "gpu.nvidia.com/gone"


class Away:
    """Any Kubernetes backend that answers nothing while `away` is set."""

    def __init__(self, inner):
        self._inner = inner
        self.away = threading.Event()

    def __getattr__(self, name):
        value = getattr(self._inner, name)
        if not callable(value):
            return value

        def call(*args, **kwargs):
            if self.away.is_set():
                raise ApiUnavailable(0, "", "no answer from the API server: it is away")
            return value(*args, **kwargs)

        return call


@pytest.fixture
def api(program):
    return Away(program.world.kube)


@pytest.fixture
def ref(program, api):
    """A claim that was prepared, and then the API server went."""
    program.start(api)
    ref = program.world.claim("a", program.world.partition(0, "1g.5gb", 0))
    program.world.serve(ref)
    program.world.node = dataclasses.replace(program.world.node, api_retry_s=0.1)
    api.away.set()
    return ref


def test_a_claim_that_is_prepared_is_answered(program, ref):
    assert program.world.serve(ref)


def test_a_claim_ends(program, ref):
    assert (program.world.unprepare(ref), program.world.leftovers()) == (None, [])


def test_a_new_claim_waits_in_words_and_leaves_nothing(program, ref):
    program.world.unprepare(ref)
    new = program.world.claim("b", program.world.partition(1, "1g.5gb", 0))

    assert ("it is away" in program.world.refuse(new), program.world.leftovers()) == (True, [])


def test_a_new_claim_is_served_when_it_is_back(program, ref, api):
    new = program.world.claim("b", program.world.partition(1, "1g.5gb", 0))
    program.world.refuse(new)
    api.away.clear()

    assert program.world.serve(new)


def test_a_gpu_that_went_meanwhile_is_published_when_it_is_back(program, ref, api):
    device = program.world.partition(1, "7g.40gb", 0)
    program.world.machine.lose("1", absent=True)
    program.plugin.observers.monitor.look_at_machine()
    api.away.clear()

    assert until(lambda: GONE in program.list_taints()[device], 30)
    program.world.machine.reset(program.world.uuid(1))


def test_a_driver_that_starts_meanwhile_ends_claims(program, ref, api):
    program.close()
    program.start(api, published=False)

    assert (program.world.unprepare(ref), program.world.leftovers()) == (None, [])


def test_a_driver_that_starts_meanwhile_publishes_when_it_is_back(program, ref, api):
    program.close()
    plugin = program.start(api, published=False)
    api.away.clear()

    assert plugin.publisher.published.wait(30)


def test_an_absence_of_two_minutes_is_over_at_most_a_minute_after_it():
    """The waits between tries, added up until the two minutes are over."""
    publisher = Publisher(kube=None, node_name="node-1", state=lambda: None, lock=None)
    longest_s = [publisher._retry_wait_s(failures) for failures in range(1, int(AWAY_S))]

    assert max(longest_s) <= PublishTimes().longest_wait_s <= 60
