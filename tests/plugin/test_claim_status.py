"""The status of prepared claims: what it says of their devices, and when it is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from polling import until
from tesela.core.errors import ApiError
from tesela.core.health.model import ALL_HEALTHY, Effect, Evidence, Finding, HealthState, NodeHealth
from tesela.edge.embedded.faults import Fault, FlakyKube, unavailable
from tesela.edge.kube.port import RESOURCE_CLAIMS
from tesela.edge.telemetry.logs import JsonFormatter
from tesela.plugin.claim_status import ClaimStatusWriter, StatusPace

NOW_S = 1_700_000_000
THEN, LATER = "2023-11-14T22:13:20Z", "2023-11-14T22:14:20Z"
AT_ONCE = StatusPace(quiet_s=0.0, longest_quiet_s=0.0, pause_s=0.0, first_retry_s=0.01, longest_retry_s=0.02)


@dataclass
class Writing:
    """A writer over a world, with a hand on its clock, its health, and the API's faults."""

    world: object
    pace: StatusPace = AT_ONCE
    health: NodeHealth = ALL_HEALTHY
    unread: str = ""
    meanwhile: Callable[[], None] = lambda: None
    now_s: float = NOW_S
    kube: FlakyKube = field(init=False)

    def __post_init__(self):
        self.kube = FlakyKube(self.world.kube)
        self.writer = self.restart()

    def restart(self):
        self.writer = ClaimStatusWriter(
            self.kube,
            self.world.node.records,
            lambda: self.health,
            unread=lambda: self.unread,
            pace=self.pace,
            clock=self.read_clock,
        )
        return self.writer

    def read_clock(self):
        self.meanwhile()
        return self.now_s

    def write(self):
        return self.writer.write()

    def entries(self, ref):
        return self.world.kube.get(RESOURCE_CLAIMS, ref.name, ref.namespace)["status"].get("devices", [])

    def condition(self, ref, kind):
        (entry,) = self.entries(ref)
        found = next(one for one in entry["conditions"] if one["type"] == kind)
        return {key: value for key, value in found.items() if key != "type"}

    def count(self, verb):
        return sum(1 for call in self.kube.calls if call == (verb, "resourceclaims"))


@pytest.fixture
def writing(world):
    return Writing(world)


def finding(gpu_uuid, state=HealthState.UNHEALTHY, key="xid", placement=None, count=1, **fields):
    given = {"signal": f"{key}-1", "evidence": Evidence.RESET, "effect": Effect.NO_SCHEDULE, "reason": key}
    given |= {"message": f"{key} was seen", "since_s": NOW_S, "last_s": NOW_S, "count": count}
    given |= {"boot_id": "", "epoch": "", "generation": 1}
    return Finding(gpu_uuid=gpu_uuid, placement=placement, state=state, key=key, **{**given, **fields})


def serve_partition(world, name="claim", number=2):
    ref = world.claim(name, world.partition(number, "1g.10gb", 0))
    return ref, world.serve(ref)


def test_a_partition_shows_its_uuid_profile_and_ids(world, writing):
    ref, record = serve_partition(world)
    current = record.devices[0].current
    writing.write()
    (entry,) = writing.entries(ref)
    assert entry["data"] == {
        "uuid": current.mig_uuid,
        "parentUUID": world.uuid(2),
        "profile": "1g.10gb",
        "giID": current.gi_id,
        "ciID": current.ci_id,
        "placementStart": 0,
        "placementSize": 1,
    }


def test_a_whole_gpu_shows_its_uuid(world, writing):
    world.serve(ref := world.claim("claim", "gpu-1"))
    writing.write()
    (entry,) = writing.entries(ref)
    assert entry["data"] == {"uuid": world.uuid(1), "parentUUID": world.uuid(1), "profile": ""}


def test_the_entry_names_the_allocated_device(world, writing):
    ref, record = serve_partition(world)
    writing.write()
    (entry,) = writing.entries(ref)
    assert [entry[name] for name in ("driver", "pool", "device")] == [
        "gpu.nvidia.com",
        "node-1",
        record.devices[0].device,
    ]


def test_each_device_has_an_entry(world, writing):
    world.serve(ref := world.claim("claim", "gpu-2", "gpu-3"))
    writing.write()
    assert {entry["device"] for entry in writing.entries(ref)} == {"gpu-2", "gpu-3"}


@pytest.mark.parametrize(("kind", "reason"), [("Ready", "Prepared"), ("Healthy", "Healthy")])
def test_a_prepared_claim_is_ready_and_healthy(world, writing, kind, reason):
    ref, _ = serve_partition(world)
    writing.write()
    assert writing.condition(ref, kind) == {
        "status": "True",
        "reason": reason,
        "message": "",
        "lastTransitionTime": THEN,
    }


@pytest.mark.parametrize(
    ("state", "key", "status", "reason"),
    [
        (HealthState.UNHEALTHY, "ecc", "False", "Unhealthy"),
        (HealthState.GONE, "gone", "False", "Gone"),
        (HealthState.DEGRADED, "remap", "True", "Degraded"),
        (HealthState.UNHEALTHY, "wedged", "Unknown", "Wedged"),
        (HealthState.HEALTHY, "xid", "True", "Healthy"),
    ],
)
def test_a_fault_of_the_gpu_shows_on_its_partition(world, writing, state, key, status, reason):
    ref, _ = serve_partition(world)
    writing.write()
    writing.health = NodeHealth(findings=(finding(world.uuid(2), state, key),))
    writing.write()
    shown = writing.condition(ref, "Healthy")
    assert (shown["status"], shown["reason"]) == (status, reason)


def test_a_fault_beside_a_hang_is_a_fault(world, writing):
    ref, _ = serve_partition(world)
    uuid = world.uuid(2)
    writing.health = NodeHealth(findings=(finding(uuid), finding(uuid, key="wedged")))
    writing.write()
    assert writing.condition(ref, "Healthy")["status"] == "False"


def test_a_fault_of_another_gpu_does_not_show(world, writing):
    ref, _ = serve_partition(world)
    writing.health = NodeHealth(findings=(finding(world.uuid(3)),))
    writing.write()
    assert writing.condition(ref, "Healthy")["status"] == "True"


def test_while_nvml_is_released_nobody_knows(world, writing):
    ref, _ = serve_partition(world)
    writing.unread = "NVML is released by ann"
    writing.write()
    shown = writing.condition(ref, "Healthy")
    assert (shown["status"], shown["reason"], shown["message"]) == ("Unknown", "Released", "NVML is released by ann")


def test_a_fault_is_one_while_nvml_is_released(world, writing):
    ref, _ = serve_partition(world)
    writing.unread = "NVML is released by ann"
    writing.health = NodeHealth(findings=(finding(world.uuid(2)),))
    writing.write()
    assert writing.condition(ref, "Healthy")["status"] == "False"


def test_only_a_condition_that_changes_gets_a_new_time(world, writing):
    ref, _ = serve_partition(world)
    writing.write()
    writing.now_s += 60
    writing.health = NodeHealth(findings=(finding(world.uuid(2)),))
    writing.write()
    times = [writing.condition(ref, kind)["lastTransitionTime"] for kind in ("Ready", "Healthy")]
    assert times == [THEN, LATER]


def test_a_partition_lost_to_a_reset_is_not_ready(world, writing):
    ref, _ = serve_partition(world)
    writing.write()
    world.reset(2)
    world.look()
    writing.write()
    shown = writing.condition(ref, "Ready")
    assert (shown["status"], shown["reason"]) == ("False", "PartitionLost")


def test_a_partition_made_again_shows_its_new_uuid(world, writing):
    ref, before = serve_partition(world)
    writing.write()
    world.reset(2)
    world.look()
    after = world.serve(ref)
    writing.write()
    (entry,) = writing.entries(ref)
    uuids = [record.devices[0].current.mig_uuid for record in (before, after)]
    assert (entry["data"]["uuid"], uuids[0] == uuids[1]) == (uuids[1], False)


# --- when it is written --------------------------------------------------------------------------------------------


def test_nothing_is_asked_or_written_while_nothing_changes(world, writing):
    serve_partition(world)
    writing.write()
    before = len(writing.kube.calls)
    for _ in range(5):
        writing.write()
    assert len(writing.kube.calls) == before


def test_a_finding_that_recurs_is_no_reason_to_write(world, writing):
    serve_partition(world)
    for count in range(1, 6):
        writing.health = NodeHealth(findings=(finding(world.uuid(2), count=count),))
        writing.write()
    assert writing.count("apply_status") == 1


def test_a_restarted_driver_writes_nothing_that_is_there(world, writing):
    ref, _ = serve_partition(world)
    writing.write()
    writing.now_s += 60
    writing.restart()
    writing.write()
    assert (writing.count("apply_status"), writing.condition(ref, "Ready")["lastTransitionTime"]) == (1, THEN)


def test_what_somebody_removed_is_written_again_at_the_next_verification(world):
    writing = Writing(world, pace=StatusPace(pause_s=0.0, verify_s=0.0))
    ref, _ = serve_partition(world)
    writing.write()
    claim = world.kube.get(RESOURCE_CLAIMS, ref.name, ref.namespace)
    world.kube.replace_status(RESOURCE_CLAIMS, {**claim, "status": {"allocation": claim["status"]["allocation"]}})
    writing.write()
    assert len(writing.entries(ref)) == 1


def test_entries_of_other_drivers_stay(world, writing):
    ours = {"request": "r0", "driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-1"}
    ref = world.allocate("claim", [ours, {**ours, "request": "r1", "driver": "net.example.com"}])
    theirs = {"driver": "net.example.com", "pool": "node-1", "device": "gpu-1", "data": {"mac": "a"}}
    named = {"metadata": {"name": ref.name, "namespace": ref.namespace}, "status": {"devices": [theirs]}}
    world.kube.apply_status(RESOURCE_CLAIMS, named, field_manager="net.example.com")
    world.serve(ref)
    writing.write()
    assert {entry["driver"]: entry["data"].get("mac") for entry in writing.entries(ref)} == {
        "net.example.com": "a",
        "gpu.nvidia.com": None,
    }


def test_a_claim_given_back_is_left_to_kubernetes(world, writing):
    ref, _ = serve_partition(world)
    writing.write()
    before = writing.entries(ref)
    world.unprepare(ref)
    writing.write()
    assert (writing.entries(ref), writing.count("apply_status")) == (before, 1)


def test_a_claim_that_is_gone_is_left(world, writing):
    ref, _ = serve_partition(world)
    world.kube.delete(RESOURCE_CLAIMS, ref.name, ref.namespace)
    done = [writing.write() for _ in range(3)]
    assert (done, writing.count("get")) == ([True] * 3, 1)


def test_a_claim_that_was_deallocated_is_left(world, writing):
    ref, _ = serve_partition(world)
    claim = world.kube.get(RESOURCE_CLAIMS, ref.name, ref.namespace)
    world.kube.replace_status(RESOURCE_CLAIMS, {**claim, "status": {}})
    writing.write()
    assert writing.count("apply_status") == 0


def test_a_successor_of_the_same_name_is_left(world, writing):
    ref, record = serve_partition(world)
    world.kube.delete(RESOURCE_CLAIMS, ref.name, ref.namespace)
    world.claim(ref.name, record.devices[0].device)
    writing.write()
    assert writing.count("apply_status") == 0


def test_a_write_that_is_refused_is_tried_three_times(world, writing):
    serve_partition(world)
    writing.kube.inject(Fault(calls=99, verb="apply_status", error=ApiError(403, "Forbidden", "no")))
    done = [writing.write() for _ in range(5)]
    assert (done, writing.count("apply_status")) == ([False, False, True, True, True], 3)


def test_one_claim_that_is_refused_keeps_no_other_from_its_status(world, writing):
    serve_partition(world, "first")
    other, _ = serve_partition(world, "second", number=3)
    writing.kube.inject(Fault(calls=1, verb="apply_status", error=ApiError(422, "Invalid", "no")))
    writing.write()
    writing.write()
    assert len(writing.entries(other)) == 1


def test_a_line_of_a_claims_status_names_the_claim(world, writing, caplog):
    ref, _ = serve_partition(world)
    caplog.handler.setFormatter(JsonFormatter())
    writing.kube.inject(Fault(calls=1, verb="apply_status", error=ApiError(403, "Forbidden", "no")))
    writing.write()
    lines = [json.loads(line) for line in caplog.text.splitlines()]
    assert [(line["claimUID"], line["verb"]) for line in lines if "does not tell" in line["message"]] == [
        (ref.uid, "status")
    ]


def test_what_is_refused_is_said_once_and_again_after_it_went_well(world, writing, caplog):
    serve_partition(world)
    for key in ("xid", "ecc"):
        writing.kube.inject(Fault(calls=2, verb="apply_status", error=ApiError(403, "Forbidden", "no")))
        writing.health = NodeHealth(findings=(finding(world.uuid(2), key=key),))
        for _ in range(3):
            writing.write()
    assert sum("does not tell" in record.getMessage() for record in caplog.records) == 2


class Dropping(FlakyKube):
    """A server with the gate DRAResourceClaimDeviceStatus closed: it takes the write and keeps none of it."""

    def apply_status(self, resource, obj, *, field_manager):
        self.calls.append(("apply_status", resource.plural))
        return self.get(resource, obj["metadata"]["name"], obj["metadata"]["namespace"])


def test_a_server_that_keeps_no_status_is_not_written_to_for_each_claim(world):
    writing = Writing(world)
    writing.kube = Dropping(world.kube)
    writing.restart()
    serve_partition(world)
    serve_partition(world, "second", number=3)
    done = [writing.write() for _ in range(3)]
    assert (done, writing.count("apply_status")) == ([True] * 3, 1)


# --- the thread ----------------------------------------------------------------------------------------------------


@pytest.fixture
def running(world):
    started = []

    def start(**pace):
        writing = Writing(world, pace=StatusPace(**{"quiet_s": 0.0, "first_retry_s": 0.01, **pace}))
        world.node.records.listen(writing.writer.wake)
        writing.writer.start()
        started.append(writing.writer)
        return writing

    yield start
    assert all(writer.stop(10) for writer in started)


def test_a_prepare_wakes_the_writer(world, running):
    writing = running()
    ref, _ = serve_partition(world)
    assert until(lambda: writing.entries(ref))


def test_an_api_server_that_comes_back_is_told(world, running):
    writing = running(longest_retry_s=0.02)
    writing.kube.inject(unavailable(5))
    ref, _ = serve_partition(world)
    assert until(lambda: writing.entries(ref))


def test_a_burst_is_waited_out(world, running):
    writing = running(quiet_s=60.0, longest_quiet_s=60.0)
    serve_partition(world)
    writing.writer.wake()
    assert writing.kube.calls == []


def test_a_burst_without_end_is_waited_out_for_a_while_only(world, running):
    writing = running(quiet_s=60.0, longest_quiet_s=0.05)
    ref, _ = serve_partition(world)
    assert until(lambda: writing.entries(ref))


def test_a_prepare_that_comes_meanwhile_goes_first(world):
    writing = Writing(world)
    refs = [serve_partition(world, f"claim-{number}", number)[0] for number in (2, 3)]
    writing.meanwhile = writing.writer.wake
    writing.write()
    assert sum(len(writing.entries(ref)) for ref in refs) == 1


def test_a_server_that_is_away_again_is_told_of_again(running, world, caplog):
    writing = running()
    for name, number in (("first", 2), ("second", 3)):
        writing.kube.inject(unavailable(2))
        ref, _ = serve_partition(world, name, number=number)
        assert until(lambda ref=ref: writing.entries(ref), 20)
    assert sum("API server is away" in record.getMessage() for record in caplog.records) == 2
