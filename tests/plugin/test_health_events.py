"""The thread that waits for NVML's events: what it makes of them, and of waits that fail again and again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from gpu_models import a100, gpu_uuid, known, roster
from health_fakes import FakeKeeper, FakeLookout, FakeNvml, FakeRecords, event, refuse, xid
from polling import until
from tesela.core.errors import NvmlTimeout
from tesela.core.health.observations import GpuLost, StormSeen, XidSeen
from tesela.core.model import Placement
from tesela.edge.nvml import codes
from tesela.edge.nvml.port import GpuInstanceInfo
from tesela.plugin.health.attribution import Attribution
from tesela.plugin.health.events import Events, EventTimes

TIMES = EventTimes(wait_s=0.02, first_pause_s=0.01, longest_pause_s=0.05)
ONE, TWO = gpu_uuid(0), gpu_uuid(1)


class Watched:
    """The thread over fakes; `asked` counts how often it asked for a reading."""

    def __init__(self, times=TIMES, **nvml):
        self.nvml, self.keeper, self.asked = FakeNvml(**nvml), FakeKeeper(), 0
        self.lookout = FakeLookout(a100(0), a100(1))
        self.events = Events(
            nvml=self.nvml,
            lookout=self.lookout,
            attribution=Attribution(nvml=self.nvml, records=FakeRecords(), roster=lambda: self.lookout.roster),
            keeper=self.keeper,
            on_event=self._ask,
            times=times,
        )

    def _ask(self):
        self.asked += 1

    def start(self):
        self.events.start()
        assert until(lambda: self.nvml.waits)

    def registered(self):
        """The GPUs of the set that was opened last."""
        return set(self.nvml.opened[-1].registrations)


@pytest.fixture
def watch():
    made = []

    def make(**settings):
        made.append(Watched(**settings))
        return made[-1]

    yield make
    for one in made:
        assert one.events.stop(10)


# What is registered


def test_all_gpus_that_are_present_are_in_one_set(watch):
    watched = watch()
    watched.lookout.roster = roster(a100(0), known(a100(1), present=False), a100(2))

    watched.start()

    assert watched.registered() == {ONE, gpu_uuid(2)}


def test_only_what_a_gpu_supports_is_registered(watch):
    watched = watch(types=codes.EVENT_XID | codes.EVENT_PSTATE)

    watched.start()

    assert watched.nvml.opened[0].registrations == {ONE: codes.EVENT_XID, TWO: codes.EVENT_XID}


def test_a_set_that_is_opened_asks_for_a_reading_of_what_happened_before(watch):
    watched = watch()

    watched.start()

    assert watched.asked == 1


def test_a_change_of_the_gpus_opens_another_set(watch):
    watched = watch()
    watched.start()

    watched.lookout.roster = roster(a100(0), a100(1), a100(2))

    assert until(lambda: watched.registered() == {ONE, TWO, gpu_uuid(2)})


def test_a_reset_opens_another_set(watch):
    watched = watch()
    watched.start()

    watched.lookout.roster = roster(replace(known(a100(0)), generation=2), a100(1))

    assert until(lambda: [one.closed for one in watched.nvml.opened] == [True, False])


def test_a_gpu_that_nvml_refuses_to_register_keeps_no_other_from_it(watch):
    watched = watch()
    watched.nvml.unregistrable.add(ONE)

    watched.start()

    assert watched.registered() == {TWO}


def test_a_gpu_that_was_left_out_is_tried_again(watch):
    watched = watch()
    watched.nvml.unregistrable.add(ONE)
    watched.start()

    watched.nvml.unregistrable.clear()

    assert until(lambda: watched.registered() == {ONE, TWO})


# What events become


def test_an_xid_is_told(watch):
    watched = watch()
    watched.start()

    watched.nvml.tell(xid(TWO, 48))

    assert until(lambda: watched.keeper.seen == [XidSeen(gpu_uuid=TWO, xid=48)])


def test_an_xid_of_a_partition_is_told_with_its_placement(watch):
    watched = watch()
    place = Placement(start=4, size=4)
    watched.nvml.instances[ONE, 2] = GpuInstanceInfo(gi_id=2, profile_id=9, placement=place)
    watched.start()

    watched.nvml.tell(xid(ONE, 94, gi_id=2))

    assert until(lambda: watched.keeper.seen == [XidSeen(gpu_uuid=ONE, xid=94, placement=place)])


def test_an_xid_of_a_partition_that_nobody_knows_is_one_of_the_gpu(watch):
    watched = watch()
    watched.start()

    watched.nvml.tell(xid(ONE, 94, gi_id=2))

    assert until(lambda: watched.keeper.seen == [XidSeen(gpu_uuid=ONE, xid=94)])


def test_equal_xids_that_come_together_are_counted(watch):
    watched = watch()
    watched.start()

    watched.nvml.tell(*[xid(ONE, 31)] * 300, *[xid(ONE, 43)] * 50)

    assert until(lambda: sum(one.count for one in watched.keeper.seen) == 350)
    # The first event begins the batch, so at most one more may fall between two of them.
    assert len(watched.keeper.seen) <= 4


def test_a_storm_longer_than_a_batch_loses_nothing(watch):
    watched = watch()
    watched.start()

    watched.nvml.tell(*[xid(ONE, 31)] * 1000)

    assert until(lambda: sum(one.count for one in watched.keeper.seen) == 1000)


def test_a_storm_of_corrected_errors_is_told(watch):
    watched = watch()
    watched.start()

    watched.nvml.tell(event(ONE, codes.EVENT_SINGLE_BIT_ECC_STORM))

    assert until(lambda: watched.keeper.seen == [StormSeen(gpu_uuid=ONE)])


@pytest.mark.parametrize(
    "event_type", [codes.EVENT_DOUBLE_BIT_ECC, codes.EVENT_GPU_UNAVAILABLE, codes.EVENT_RECOVERY_ACTION]
)
def test_any_other_event_asks_for_a_reading(watch, event_type):
    watched = watch()
    watched.start()

    watched.nvml.tell(event(ONE, event_type))

    assert until(lambda: watched.asked == 2)
    assert watched.keeper.seen == []


# Failures


def test_a_lost_gpu_is_told_and_left_out(watch):
    watched = watch()
    watched.start()

    watched.nvml.lost.add(ONE)

    assert until(lambda: watched.registered() == {TWO})
    assert watched.keeper.of(GpuLost)[0] == GpuLost(gpu_uuid=ONE)


def test_a_gpu_that_is_back_is_registered_again(watch):
    watched = watch()
    watched.nvml.lost.add(ONE)
    watched.start()

    watched.nvml.lost.clear()

    assert until(lambda: watched.registered() == {ONE, TWO})


def test_a_gpu_that_hangs_is_no_reason_to_open_another_set(watch):
    """Between two sets the events of all the others are told to nobody."""
    watched = watch()
    watched.nvml.hang.add(ONE)
    watched.start()

    assert not until(lambda: len(watched.nvml.opened) > 1, timeout_s=10 * TIMES.longest_pause_s)


def test_one_that_hung_and_answers_is_registered_again(watch):
    watched = watch()
    watched.nvml.hang.add(ONE)
    watched.start()

    watched.nvml.hang.clear()

    assert until(lambda: watched.registered() == {ONE, TWO})


def test_the_others_are_listened_to_at_once_when_a_gpu_falls_off_the_bus(watch):
    watched = watch(times=replace(TIMES, first_pause_s=60.0, longest_pause_s=60.0))
    watched.start()

    watched.nvml.lost.add(ONE)

    assert until(lambda: watched.registered() == {TWO})


def test_a_gpu_that_is_left_out_makes_no_pause_longer(watch):
    watched = watch(times=replace(TIMES, first_pause_s=0.05, longest_pause_s=60.0))
    watched.nvml.lost.add(ONE)
    watched.start()

    for _ in range(9):  # doubled each time, the last one would be 12.8 s
        waits = watched.nvml.waits
        assert until(lambda waits=waits: watched.nvml.waits > waits + 2)
        with watched.nvml.changed:
            watched.nvml.wait_errors.append(refuse(codes.UNKNOWN))

    assert until(lambda: len(watched.nvml.opened) == 10)


def test_waits_that_fail_for_ever_are_made_ever_more_rarely(watch):
    watched = watch(times=replace(TIMES, longest_pause_s=60.0))
    watched.nvml.wait_errors.extend([refuse(codes.GPU_IS_LOST)] * 1000)

    watched.start()

    # 10 ms, doubled each time: the sixth wait comes after 0.31 s, the tenth after 5 s.
    assert until(lambda: watched.nvml.waits >= 5)
    assert not until(lambda: watched.nvml.waits >= 10, timeout_s=0.5)


def test_waits_that_fail_for_ever_are_said_once(watch, caplog):
    watched = watch()
    watched.nvml.wait_errors.extend([refuse(codes.GPU_IS_LOST)] * 20)

    watched.start()

    assert until(lambda: not watched.nvml.wait_errors)
    ours = [record for record in caplog.records if record.name == "tesela.plugin.health.events"]
    said = Counter(record.getMessage() for record in ours if record.levelname == "WARNING")
    assert list(said.values()) == [1]


def test_a_wait_that_hangs_does_not_end_the_thread(watch):
    watched = watch()
    watched.nvml.wait_errors.append(NvmlTimeout("nvmlEventSetWait_v2 did not return within 5 s"))
    watched.start()

    watched.nvml.tell(xid(ONE, 48))

    assert until(lambda: watched.keeper.of(XidSeen))


def test_a_wait_that_fails_in_the_middle_of_a_batch_loses_no_event(watch):
    watched = watch()
    watched.start()
    with watched.nvml.changed:  # the wait under way delivers the event, the next one fails
        watched.nvml.tell(xid(ONE, 48))
        watched.nvml.wait_errors.append(refuse(codes.UNKNOWN))

    assert until(lambda: watched.keeper.of(XidSeen))


# Pause


def test_a_pause_closes_the_set(watch):
    watched = watch()
    watched.start()

    assert watched.events.pause(10)

    assert [one.closed for one in watched.nvml.opened] == [True]


def test_no_set_is_opened_while_it_is_paused(watch):
    watched = watch()
    watched.start()
    assert watched.events.pause(10)

    assert not until(lambda: watched.nvml.tries > 1, timeout_s=0.1)


def test_a_set_is_opened_when_it_is_resumed(watch):
    watched = watch()
    watched.start()
    assert watched.events.pause(10)

    watched.events.resume()

    assert until(lambda: watched.events.is_open)
