"""Events of this node: one per change, repeats as a count, at a bounded rate, never in anybody's way."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from polling import until
from tesela.core.errors import ApiError
from tesela.core.health.model import Effect, Evidence, Finding, HealthChange, HealthState
from tesela.core.model import ClaimRef
from tesela.core.roster import EMPTY_ROSTER
from tesela.edge.embedded.cluster import EmbeddedCluster
from tesela.edge.embedded.faults import Fault, FlakyKube, unavailable
from tesela.edge.kube.port import EVENTS, NODES
from tesela.plugin.announce import AnnouncePace, Announcer

NODE = "node-1"
NOW_S = 1_700_000_000.25
PACE = AnnouncePace()
REF = ClaimRef(namespace="team", name="claim", uid="claim-uid")


@dataclass
class Telling:
    """An announcer with a hand on its clocks and the API's faults; `send` is one turn of its thread."""

    pace: AnnouncePace = PACE
    wall_s: float = NOW_S
    now_s: float = 0.0
    cluster: EmbeddedCluster = field(default_factory=EmbeddedCluster)

    def __post_init__(self):
        if not self.cluster.list(NODES).items:
            self.cluster.create(NODES, {"metadata": {"name": NODE}})
        self.node = self.cluster.get(NODES, NODE)
        self.kube = FlakyKube(self.cluster)
        self.announcer = Announcer(
            self.kube, NODE, pace=self.pace, wall_clock=lambda: self.wall_s + self.now_s, clock=lambda: self.now_s
        )

    def send(self):
        return self.announcer.send()

    def say(self, *sentences):
        for sentence in sentences:
            self.announcer.announce_unreadable(sentence)

    def change(self, state="unhealthy", gpu_uuid="GPU-1"):
        found = Finding(
            signal="xid-79",
            gpu_uuid=gpu_uuid,
            placement=None,
            state=HealthState(state),
            key="xid",
            effect=Effect.NO_SCHEDULE,
            evidence=Evidence.RESET,
            reason="79",
            message="it fell off the bus",
            since_s=int(self.now_s),
            last_s=0,
            count=1,
            boot_id="",
            epoch="",
            generation=1,
        )
        changes = [
            HealthChange(
                gpu_uuid=gpu_uuid, placement=None, before=HealthState.HEALTHY, after=HealthState(state), added=(found,)
            )
        ]
        self.announcer.announce_health(changes, EMPTY_ROSTER, tuple)

    def events(self):
        return self.cluster.list(EVENTS, "default").items

    def notes(self):
        return [event["note"] for event in self.events()]

    def count(self, verb):
        return sum(1 for call in self.kube.calls if call == (verb, "events"))


@pytest.fixture
def telling():
    return Telling()


def test_a_change_of_health_is_an_event_about_the_node(telling):
    telling.change()
    telling.send()
    (event,) = telling.events()
    regarding = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": telling.node["metadata"]["uid"]}
    assert (event["reason"], event["type"], event["regarding"]) == ("GPUUnhealthy", "Warning", regarding)


def test_an_event_carries_the_time_of_the_change(telling):
    telling.change()
    telling.now_s += 60
    telling.send()
    assert telling.events()[0]["eventTime"] == "2023-11-14T22:13:20.250000Z"


def test_a_file_set_aside_is_related_to_its_claim(telling):
    telling.announcer.announce_set_aside("it was damaged", REF)
    telling.send()
    (event,) = telling.events()
    assert event["related"] == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "namespace": "team",
        "name": "claim",
        "uid": "claim-uid",
    }


def test_a_node_that_is_not_registered_is_named_all_the_same():
    telling = Telling()
    telling.cluster.delete(NODES, NODE)
    telling.change()
    telling.send()
    assert telling.events()[0]["regarding"]["uid"] == NODE


def test_nothing_is_asked_while_nothing_happens(telling):
    for _ in range(5):
        telling.send()
    assert telling.kube.calls == []


# --- repeats -------------------------------------------------------------------------------------------------------


def test_repeats_that_wait_together_are_one_event(telling):
    for _ in range(5):
        telling.change()
    telling.send()
    (event,) = telling.events()
    assert (event["series"]["count"], telling.count("create")) == (5, 1)


def test_a_later_repeat_is_a_count(telling):
    telling.change()
    telling.send()
    telling.now_s += 120
    telling.change()
    telling.send()
    (event,) = telling.events()
    assert event["series"] == {"count": 2, "lastObservedTime": "2023-11-14T22:15:20.250000Z"}


def test_repeats_are_counted_once_a_minute(telling):
    for _ in range(30):
        telling.change()
        telling.send()
        telling.now_s += 1
    assert (telling.count("create"), telling.count("replace")) == (1, 0)


def test_what_was_not_counted_yet_is_counted_then(telling):
    for _ in range(30):
        telling.change()
        telling.send()
        telling.now_s += 1
    telling.now_s += 60
    telling.send()
    assert telling.events()[0]["series"]["count"] == 30


def test_a_repeat_after_a_long_time_is_an_event_of_its_own(telling):
    telling.change()
    telling.send()
    telling.now_s += 3600
    telling.change()
    telling.send()
    assert len(telling.events()) == 2


def test_a_repeat_of_an_event_that_is_gone_is_a_new_event(telling):
    telling.change()
    telling.send()
    telling.cluster.delete(EVENTS, telling.events()[0]["metadata"]["name"], "default")
    telling.now_s += 120
    telling.change()
    telling.send()
    assert len(telling.events()) == 1


# --- rate and bounds -----------------------------------------------------------------------------------------------


def test_a_burst_is_spread(telling):
    telling.say(*(f"file {number}" for number in range(25)))
    telling.send()
    at_once = len(telling.events())
    telling.now_s += 10
    telling.send()
    assert (at_once, len(telling.events())) == (10, 11)


def test_the_rest_of_a_burst_waits_for_its_turn(telling):
    telling.say(*(f"file {number}" for number in range(25)))
    assert 0 < telling.send() <= 10


def test_more_than_fits_is_dropped_from_its_beginning():
    telling = Telling(pace=AnnouncePace(burst=1000))
    telling.say(*(f"file {number}" for number in range(300)))
    telling.send()
    assert set(telling.notes()) == {f"file {number}" for number in range(44, 300)}


@pytest.mark.parametrize("jump_s", [-86400, 86400])
def test_a_clock_that_jumps_changes_no_pace(telling, jump_s):
    telling.change()
    telling.send()
    telling.wall_s += jump_s
    telling.now_s += 61
    telling.change()
    telling.change(gpu_uuid="GPU-2")
    telling.send()
    assert (len(telling.events()), telling.count("replace")) == (2, 1)


# --- the API server ------------------------------------------------------------------------------------------------


def test_events_wait_for_the_api_server(telling):
    telling.kube.inject(unavailable(3))
    telling.change()
    for _ in range(6):
        telling.now_s += telling.send()
    assert len(telling.events()) == 1


def test_an_answer_that_was_lost_makes_no_second_event(telling):
    telling.kube.inject(unavailable(1, "create", after=True))
    telling.change()
    for _ in range(3):
        telling.now_s += telling.send()
    assert len(telling.events()) == 1


def test_an_api_server_that_is_away_is_not_asked_at_every_change(telling):
    telling.kube.inject(unavailable(99))
    for number in range(20):
        telling.change(gpu_uuid=f"GPU-{number}")
        telling.send()
    assert len(telling.kube.calls) == 1


def test_what_waited_for_more_than_an_hour_is_dropped(telling):
    telling.kube.inject(unavailable(1))
    telling.change()
    telling.send()
    telling.now_s += 3700
    telling.send()
    assert telling.events() == ()


def test_two_processes_that_see_one_fault_make_one_event(telling):
    other = Telling(cluster=telling.cluster)
    for process in (telling, other):
        process.change()
        process.send()
    assert len(telling.events()) == 1


def test_a_refused_event_keeps_no_other_from_its_way(telling):
    telling.kube.inject(Fault(calls=1, verb="create", error=ApiError(403, "Forbidden", "no")))
    telling.say("one", "two")
    telling.send()
    assert telling.notes() == ["two"]


def test_the_thread_sends_what_is_announced():
    telling = Telling()
    telling.announcer.start()
    telling.change()
    told = until(telling.events)
    assert (told, telling.announcer.stop(10)) == (True, True)


def test_what_goes_on_for_longer_than_a_series_is_told_by_another_event(telling):
    telling.say("still")
    telling.send()
    telling.now_s += PACE.series_s + 1
    telling.say("still")
    telling.send()
    telling.now_s += PACE.recount_s + 1
    telling.say("still")
    telling.send()
    assert [event.get("series", {}).get("count") for event in telling.events()] == [None, 2]


def test_what_goes_on_over_a_restart_is_counted_again(telling):
    telling.say("still")
    telling.send()
    restarted = Telling(now_s=600.0, cluster=telling.cluster)
    for _ in range(3):
        restarted.say("still")
        restarted.send()
        restarted.now_s += PACE.recount_s + 1
    assert [event.get("series", {}).get("count") for event in telling.events()] == [None, 2]


def test_a_second_outage_is_told_of_as_the_first(telling, caplog):
    for sentence in ("one", "two"):
        telling.kube.inject(unavailable(1))
        telling.say(sentence)
        telling.send()
        telling.now_s += PACE.first_retry_s
        telling.send()
    assert sum("wait for the API server" in record.getMessage() for record in caplog.records) == 2


def test_a_change_is_in_the_log_while_the_api_server_is_away(telling, caplog):
    telling.kube.inject(unavailable(99))
    telling.change()
    telling.send()
    assert [record.levelname for record in caplog.records if "GPU-1 is unhealthy" in record.getMessage()] == ["WARNING"]


def test_the_longest_name_of_a_node_leaves_room_for_that_of_an_event(telling):
    name = ".".join(["n" * 62] * 4)[:253]
    telling.announcer = Announcer(telling.kube, name, clock=lambda: telling.now_s)
    for _ in range(2):
        telling.say("still")
        telling.send()
        telling.now_s += PACE.series_s + 1
    assert [len(event["metadata"]["name"]) <= 253 for event in telling.events()] == [True, True]
