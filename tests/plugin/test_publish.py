from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager

import pytest
from gpu_models import h100, known, roster, t4
from polling import until
from slice_world import NODE, state
from tesela.core.errors import ApiNotFound
from tesela.core.publication import is_complete
from tesela.edge.embedded.cluster import EmbeddedCluster
from tesela.edge.embedded.faults import FlakyKube, unavailable
from tesela.edge.kube.port import NODES, RESOURCE_SLICES
from tesela.edge.store.locks import FileLocks
from tesela.plugin.publish import REGISTERED, Publisher, PublishTimes, RepairPace, Round

TWO = roster(h100(0), t4(1))
MANY = roster(*(h100(index) for index in range(4)))
TAINTED = roster(known(h100(0), present=False), t4(1))
WRITES = {"create", "replace", "delete"}
QUICK = PublishTimes(
    resync_s=30, watch_s=0.3, settle_s=0, lock_wait_s=0.05, first_repair_s=0.05, first_retry_s=0.02, longest_wait_s=0.2
)


class Lock:
    def __init__(self, *, free=True):
        self.free = free
        self.held = False

    def acquire(self, timeout_s):
        self.held = self.free
        return self.held

    def release(self):
        self.held = False


class Bench:
    """A publisher over a cluster; `gpus` is what it publishes now, `now_s` its clock."""

    def __init__(self, gpus=TWO, *, lock=None, times=QUICK, **cluster):
        self.cluster = EmbeddedCluster(**cluster)
        self.cluster.create(NODES, {"metadata": {"name": NODE}})
        self.kube = FlakyKube(self.cluster)
        self.gpus = gpus
        self.now_s = 0.0
        self.lock = lock or Lock()
        self.publisher = Publisher(
            kube=self.kube,
            node_name=NODE,
            state=lambda: state(self.gpus),
            lock=self.lock,
            times=times,
            clock=lambda: self.now_s,
        )

    @property
    def slices(self):
        return sorted(self.cluster.list(RESOURCE_SLICES).items, key=lambda one: one["metadata"]["name"])

    @property
    def devices(self):
        return [device for one in self.slices for device in one["spec"].get("devices", ())]

    @property
    def writes(self):
        return [verb for verb, _ in self.kube.calls if verb in WRITES]

    def delete_one(self):
        self.cluster.delete(RESOURCE_SLICES, self.slices[-1]["metadata"]["name"])


@contextmanager
def running(bench):
    bench.publisher._clock = time.monotonic
    bench.publisher.start()
    try:
        yield bench
    finally:
        bench.publisher.stop()
        bench.cluster.close()


def test_the_first_round_publishes_the_pool():
    bench = Bench()

    outcome = bench.publisher.publish()

    assert (outcome, len(bench.devices), is_complete(bench.slices, NODE)) == (Round.WRITTEN, 27, True)


def test_the_second_round_writes_nothing():
    bench = Bench()
    bench.publisher.publish()
    before = len(bench.writes)

    outcome = bench.publisher.publish()

    assert (outcome, len(bench.writes) - before) == (Round.UNCHANGED, 0)


def test_a_restarted_process_adopts_what_it_finds():
    bench = Bench()
    bench.publisher.publish()
    again = Publisher(kube=bench.kube, node_name=NODE, state=lambda: state(TWO), lock=Lock())

    assert again.publish() is Round.UNCHANGED


@pytest.mark.parametrize("version", ["v1.34.3", "v1.35.0", "v1.36.1", "v1.37.2"])
def test_a_server_of_any_version_takes_the_pool(version):
    bench = Bench(MANY, server_version=version, gates=frozenset({"DRAPartitionableDevices", "DRADeviceTaints"}))

    bench.publisher.publish()

    assert (len(bench.devices), all("consumesCounters" in device for device in bench.devices)) == (104, True)


@pytest.mark.parametrize("version", ["v1.34.3", "v1.37.2"])
def test_without_counters_only_what_is_safe_is_published(version):
    bench = Bench(server_version=version, gates=frozenset())

    bench.publisher.publish()

    assert [device["name"] for device in bench.devices] == ["gpu-0", "gpu-1"]


@pytest.mark.parametrize("version", ["v1.34.3", "v1.37.2"])
def test_no_device_is_offered_before_counters_were_seen_to_be_kept(version):
    bench = Bench(MANY, server_version=version, gates=frozenset())
    start = bench.cluster.list(RESOURCE_SLICES).resource_version

    bench.publisher.publish()

    events = bench.cluster.watch(RESOURCE_SLICES, resource_version=start, timeout_s=0)
    offered = {
        device["name"]
        for event in events
        if event.type != "BOOKMARK"
        for device in event.object["spec"].get("devices", ())
    }
    assert offered == {"gpu-0", "gpu-1", "gpu-2", "gpu-3"}


def test_what_is_left_out_is_said():
    bench = Bench(gates=frozenset())

    bench.publisher.publish()

    assert "DRAPartitionableDevices" in bench.publisher.remarks[0]


def test_without_taints_what_needs_one_is_left_out():
    bench = Bench(TAINTED, gates=frozenset({"DRAPartitionableDevices"}))

    bench.publisher.publish()

    assert [device["name"] for device in bench.devices] == ["gpu-1"]


def test_dropped_fields_do_not_make_it_write_again():
    bench = Bench(TAINTED, gates=frozenset())
    bench.publisher.publish()

    assert bench.publisher.publish() is Round.UNCHANGED


def test_a_registration_tries_the_gates_anew():
    bench = Bench(gates=frozenset())
    bench.publisher.publish()
    bench.cluster._features = EmbeddedCluster()._features

    bench.publisher.wake(REGISTERED)
    bench.publisher.publish()

    assert len(bench.devices) == 27


def test_a_change_of_state_is_published_even_during_a_quarrel():
    bench = Bench()
    bench.publisher.publish()
    for _ in range(2):
        bench.delete_one()
        bench.publisher.publish()

    bench.gpus = TAINTED

    assert bench.publisher.publish() is Round.WRITTEN


def test_a_deleted_slice_comes_back_at_once():
    bench = Bench()
    bench.publisher.publish()
    bench.delete_one()

    assert (bench.publisher.publish(), is_complete(bench.slices, NODE)) == (Round.WRITTEN, True)


def test_one_that_is_deleted_again_comes_back_later():
    bench = Bench()
    bench.publisher.publish()
    outcomes = []
    for _ in range(2):
        bench.delete_one()
        outcomes.append(bench.publisher.publish())

    bench.now_s += QUICK.first_repair_s
    outcomes.append(bench.publisher.publish())

    assert outcomes == [Round.WRITTEN, Round.POSTPONED, Round.WRITTEN]


def test_after_a_registration_they_come_back_at_once_however_often_it_happens():
    bench = Bench()
    bench.publisher.publish()
    outcomes = []
    for _ in range(3):
        bench.delete_one()
        bench.publisher.wake(REGISTERED)
        outcomes.append(bench.publisher.publish())

    assert outcomes == [Round.WRITTEN] * 3


def test_repairs_slow_down_to_the_longest_wait_and_recover():
    pace = RepairPace(PublishTimes(first_repair_s=0.5, longest_wait_s=30))
    waits, now_s = [], 0.0
    for _ in range(9):
        waits.append(pace.left_s(now_s))
        now_s += waits[-1]
        pace.note(now_s)
    now_s += 100
    pace.note(now_s)

    assert (waits, pace.left_s(now_s)) == ([0, 0.5, 1, 2, 4, 8, 16, 30, 30], 0.5)


def test_slices_of_a_node_registered_anew_belong_to_the_new_node():
    bench = Bench()
    bench.publisher.publish()
    bench.cluster.delete(NODES, NODE)
    uid = bench.cluster.create(NODES, {"metadata": {"name": NODE}})["metadata"]["uid"]

    bench.publisher.publish()

    owners = {owner["uid"] for one in bench.slices for owner in one["metadata"]["ownerReferences"]}
    assert owners == {uid}


def test_a_node_that_is_not_registered_is_named():
    bench = Bench()
    bench.cluster.delete(NODES, NODE)

    with pytest.raises(ApiNotFound, match="node-1 is not registered yet"):
        bench.publisher.publish()


def test_only_the_holder_of_the_lock_writes():
    bench = Bench(lock=Lock(free=False))

    assert (bench.publisher.publish(), bench.writes, bench.publisher.published.is_set()) == (
        Round.NOT_HOLDER,
        [],
        False,
    )


def test_the_second_process_is_ready_when_the_first_has_published():
    bench = Bench()
    bench.publisher.publish()
    second = Publisher(kube=bench.kube, node_name=NODE, state=lambda: state(TWO), lock=Lock(free=False))

    second.publish()

    assert second.published.is_set()


def test_the_next_process_takes_over_with_the_lock(tmp_path):
    locks = [FileLocks(tmp_path).publisher_lock() for _ in range(2)]
    first = Bench(lock=locks[0])
    with running(first):
        assert first.publisher.published.wait(10)
        second = Publisher(kube=first.kube, node_name=NODE, state=lambda: state(MANY), lock=locks[1], times=QUICK)
        second.start()
        assert second.published.wait(10)
        first.publisher.stop()

        assert until(lambda: len(first.devices) == 104)
        second.stop()


def test_whoever_listens_hears_once_that_the_lock_is_ours():
    bench, heard = Bench(lock=Lock(free=False)), []
    bench.publisher.listen(lambda: heard.append(bench.lock.held))

    bench.publisher.publish()
    bench.lock.free = True
    bench.publisher.publish()
    bench.publisher.publish()

    assert heard == [True]


def test_it_publishes_by_itself():
    with running(Bench()) as bench:
        assert bench.publisher.published.wait(10)

        assert len(bench.devices) == 27


def test_a_wiped_pool_is_back_by_itself():
    with running(Bench()) as bench:
        assert bench.publisher.published.wait(10)
        for one in bench.slices:
            bench.cluster.delete(RESOURCE_SLICES, one["metadata"]["name"])

        assert until(lambda: is_complete(bench.slices, NODE))


def test_a_wake_publishes_what_changed():
    with running(Bench()) as bench:
        assert bench.publisher.published.wait(10)
        bench.gpus = TAINTED
        bench.publisher.wake("GPU gone")

        assert until(lambda: any("taints" in device for device in bench.devices))


def test_an_api_server_that_is_away_is_waited_for():
    bench = Bench()
    bench.kube.inject(unavailable(calls=5))
    bench.kube.inject(unavailable(calls=3, verb="create", after=True))

    with running(bench):
        assert bench.publisher.published.wait(10)

        assert is_complete(bench.slices, NODE)


def test_a_compacted_watch_starts_over():
    with running(Bench()) as bench:
        assert bench.publisher.published.wait(10)
        bench.cluster.forget_history()
        bench.delete_one()

        assert until(lambda: is_complete(bench.slices, NODE))


def test_stopping_leaves_the_slices_and_gives_the_lock_back():
    bench = Bench()
    with running(bench):
        assert bench.publisher.published.wait(10)

    assert (is_complete(bench.slices, NODE), bench.lock.held) == (True, False)


def test_while_it_begins_nothing_is_wrong():
    bench, seen = Bench(), []

    def ask(frame, event, _argument):
        if (event, frame.f_code) == ("call", threading.Thread.start.__code__):
            seen.append(bench.publisher.find_fault())

    sys.setprofile(ask)  # asked between the two threads that it starts, too, as a probe may be
    try:
        with running(bench):
            sys.setprofile(None)
    finally:
        sys.setprofile(None)

    assert seen == [None] * 2


def test_an_unexpected_error_does_not_end_the_publisher(caplog):
    bench = Bench(gpus=None)
    with running(bench):
        assert until(lambda: "trying again" in caplog.text)
        bench.gpus = TWO

        assert bench.publisher.published.wait(10)
