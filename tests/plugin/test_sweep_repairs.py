"""What a sweep finds on a node it brings into agreement, claim by claim; what is not ours it reports and leaves."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from sweeping import Sweeps
from tesela.core.errors import ApiUnavailable
from tesela.core.model import Placement
from tesela.core.record import ClaimState
from tesela.core.sweep import MismatchKind, Outcome
from tesela.edge.kube.port import RESOURCE_CLAIMS
from tesela.edge.nvml import codes
from tesela.edge.simulator.faults import Fault
from tesela.edge.simulator.gpu import Process
from tesela.edge.store.locks import hold
from tesela.plugin.recover import Recovery
from tesela.plugin.sweep import Sweeper

BUSY = Process(pid=4711, name="trainer")
TEN_MINUTES_S = 600.0


@pytest.fixture
def sweeps(world, ref):
    return Sweeps(world)


def forget_claim(world, ref):
    """The claim leaves the API, and no kubelet unprepares it."""
    world.kube.delete(RESOURCE_CLAIMS, ref.name, ref.namespace)
    world.promised.pop(ref.uid)
    world.forget_containers(ref)


def test_a_node_where_everything_fits_is_left_as_it_is(world, sweeps):
    world.serve(world.claim("b", "gpu-1"))

    assert (sweeps.sweep().found, sweeps.changes) == ((), [])


def test_an_instance_without_compute_instance_is_seen_and_left(world, sweeps):
    """A walk over MIG devices would not see it."""
    uuid, three = world.uuid(0), 9
    made = world.admin.create_gpu_instance(uuid, three, Placement(start=0, size=4))
    world.foreign.add((uuid, made.gi_id))

    found = sweeps.find(MismatchKind.BARE_INSTANCE)

    assert (found.outcome, f"GPU instance {made.gi_id} without" in found.mismatch.message) == (Outcome.REPORTED, True)


def test_an_administrators_partition_is_reported_and_left(world, sweeps):
    world.make_foreign(0, "3g.20gb", 0)

    assert sweeps.find(MismatchKind.FOREIGN_PARTITION).outcome is Outcome.REPORTED


def test_a_claim_left_half_given_back_is_ended(world, ref, sweeps):
    world.machine.inject(Fault(function="destroy_gpu_instance", gpu="0"))
    world.unprepare(ref)

    found = sweeps.find(MismatchKind.HALF_DONE_CLAIM)

    assert (found.outcome, world.leftovers()) == (Outcome.REPAIRED, [])


def test_a_repair_wakes_the_publisher(world, ref, sweeps):
    world.cdi_path(ref).unlink()

    sweeps.sweep()

    assert sweeps.changes == ["a sweep repaired something"]


def test_a_partition_that_is_still_in_use_names_its_process_in_the_report(world, ref, sweeps):
    gi_id = world.instances(0)[0].gi_id
    world.machine.add_process("0", replace(BUSY, gi_id=gi_id, ci_id=0))
    world.unprepare(ref)

    found = sweeps.find(MismatchKind.HALF_DONE_CLAIM)

    assert (found.outcome, "is in use by trainer (pid 4711)" in found.detail) == (Outcome.FAILED, True)


def test_a_claim_in_somebodys_hands_is_no_mismatch(world, ref, sweeps):
    world.machine.inject(Fault(function="destroy_gpu_instance", gpu="0"))
    world.unprepare(ref)

    with hold(world.node.locks.claim_lock(ref.uid), 0, "the claim"):
        found = sweeps.sweep().found

    assert found == ()


def test_a_missing_cdi_file_is_written_again(world, ref, sweeps):
    world.cdi_path(ref).unlink()

    assert (sweeps.find(MismatchKind.MISSING_FILES).outcome, world.cdi_path(ref).exists()) == (Outcome.REPAIRED, True)


def test_files_of_a_claim_without_record_and_partition_are_removed(world, ref, sweeps):
    document = world.cdi_path(ref).read_bytes()
    world.unprepare(ref)
    world.cdi_path(ref).write_bytes(document)

    found = sweeps.find(MismatchKind.FILES_WITHOUT_RECORD)

    assert (found.outcome, world.cdi_path(ref).exists()) == (Outcome.REPAIRED, False)


def test_a_record_that_went_by_hand_is_restored_while_its_partition_lives(world, ref, sweeps):
    """Its partition has no record at that sweep, so that is reported too, and is no mismatch at the next one."""
    world.record_path(ref).unlink()

    sweeps.sweep()

    assert (sweeps.sweep().found, world.record(ref).state) == ((), ClaimState.PREPARED)


def test_files_that_are_not_ours_stay(world, ref, sweeps):
    folder = world.state_dir / "dra-device-metadata" / "notes-of-an-operator"
    folder.mkdir()

    assert (sweeps.find(MismatchKind.STRANGE_FILE).outcome, folder.exists()) == (Outcome.REPORTED, True)


def test_a_damaged_record_is_rebuilt(world, ref, sweeps):
    world.record_path(ref).write_text("noise")

    report = sweeps.sweep()

    assert (report.found[-1].outcome, world.record(ref).state) == (Outcome.REPAIRED, ClaimState.PREPARED)


def test_a_damaged_record_that_nothing_is_left_of_is_reported(world, ref, sweeps):
    path = world.record_path(ref)
    world.unprepare(ref)
    path.write_text("noise")

    found = sweeps.find(MismatchKind.UNREADABLE_RECORD)
    path.unlink()

    assert (found.outcome, str(path) in found.detail) == (Outcome.FAILED, True)


def test_a_pending_mode_is_reported(world, sweeps):
    world.admin.set_mig_mode(world.uuid(1), codes.MIG_ENABLED)

    assert sweeps.find(MismatchKind.PENDING_MIG_MODE).mismatch.gpu_uuid == world.uuid(1)


def test_a_record_whose_claim_is_gone_is_given_back_at_the_sweep_ten_minutes_later(world, ref, sweeps):
    forget_claim(world, ref)
    sweeps.sweep()
    before = world.record(ref)

    found = sweeps.find(MismatchKind.RECORD_WITHOUT_CLAIM, after_s=TEN_MINUTES_S)

    assert (before.state, found.outcome, world.leftovers()) == (ClaimState.PREPARED, Outcome.REPAIRED, [])


def test_its_lock_s_file_goes_too(world, ref, sweeps):
    forget_claim(world, ref)
    sweeps.sweep()
    sweeps.sweep(after_s=TEN_MINUTES_S)

    assert not world.node.locks.claim_lock(ref.uid).path.exists()


def test_a_record_whose_claim_is_gone_for_less_is_reported(world, ref, sweeps):
    forget_claim(world, ref)
    sweeps.sweep()

    found = sweeps.find(MismatchKind.RECORD_WITHOUT_CLAIM, after_s=TEN_MINUTES_S - 1)

    assert (found.outcome, world.record(ref).state) == (Outcome.REPORTED, ClaimState.PREPARED)


def test_a_claim_made_again_under_its_name_is_another(world, ref, sweeps):
    forget_claim(world, ref)
    world.claim(ref.name, world.partition(0, "1g.5gb", 6))
    sweeps.sweep()

    sweeps.sweep(after_s=TEN_MINUTES_S)

    assert world.leftovers() == []


@pytest.mark.parametrize("inside", [True, False], ids=["in its partition", "nowhere that NVML tells"])
def test_a_record_whose_claim_is_gone_stays_while_a_process_uses_it(world, ref, sweeps, inside):
    gi_id = world.instances(0)[0].gi_id
    world.machine.add_process("0", replace(BUSY, gi_id=gi_id, ci_id=0) if inside else BUSY)
    forget_claim(world, ref)
    sweeps.sweep()

    found = sweeps.find(MismatchKind.RECORD_WITHOUT_CLAIM, after_s=TEN_MINUTES_S)
    stays = world.record(ref).state

    assert (found.outcome, "trainer (pid 4711)" in found.mismatch.message, stays) == (
        Outcome.REPORTED,
        True,
        ClaimState.PREPARED,
    )


def test_a_process_in_the_neighbours_partition_keeps_nothing(world, ref, sweeps):
    neighbour = world.claim("b", world.partition(0, "1g.5gb", 0))
    world.serve(neighbour)
    gi_id = world.record(neighbour).devices[0].current.gi_id
    world.machine.add_process("0", replace(BUSY, gi_id=gi_id, ci_id=0))
    forget_claim(world, ref)
    sweeps.sweep()

    sweeps.sweep(after_s=TEN_MINUTES_S)

    assert (world.record(ref), world.record(neighbour).state) == (None, ClaimState.PREPARED)


@pytest.mark.parametrize("kind", ["compute", "open"])
def test_a_whole_gpu_that_somebody_uses_stays(world, sweeps, kind):
    ref = world.claim("b", "gpu-1")
    world.serve(ref)
    world.machine.add_process("1", replace(BUSY, kind=kind))
    forget_claim(world, ref)
    sweeps.sweep()

    sweeps.sweep(after_s=TEN_MINUTES_S)

    assert world.record(ref).state is ClaimState.PREPARED


@pytest.mark.parametrize("whole", [True, False])
def test_a_claim_that_is_gone_does_not_hold_a_gpu_that_is_gone(world, ref, sweeps, whole):
    """Else nobody could forget the GPU."""
    if whole:
        ref = world.claim("b", "gpu-1")
        world.serve(ref)
    forget_claim(world, ref)
    sweeps.sweep()
    world.machine.lose("1" if whole else "0")
    world.node.lookout.refresh()

    sweeps.sweep(after_s=TEN_MINUTES_S)

    assert not world.node.records.path(ref.uid).exists()


def test_processes_that_cannot_be_asked_for_keep_the_claim(world, ref, sweeps):
    forget_claim(world, ref)
    sweeps.sweep()
    world.machine.inject(Fault(function="get_compute_running_processes", times=9))

    found = sweeps.find(MismatchKind.RECORD_WITHOUT_CLAIM, after_s=TEN_MINUTES_S)

    assert ("cannot be told" in found.mismatch.message, world.record(ref).state) == (True, ClaimState.PREPARED)


class AwayKube:
    """An API server that is away while `away` is set."""

    def __init__(self, inner):
        self._inner = inner
        self.away = True
        self.asked = 0

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def get(self, *arguments):
        self.asked += 1
        if self.away:
            raise ApiUnavailable(0, "", "no answer")
        return self._inner.get(*arguments)


@pytest.fixture
def away(world, ref):
    """Sweeps of a driver whose API server is away, and that server."""
    kube = AwayKube(world.kube)
    world.node = replace(world.node, kube=kube)
    return Sweeps(world), kube


def test_an_api_that_is_away_concludes_nothing(world, ref, away):
    sweeps, _ = away
    forget_claim(world, ref)
    sweeps.sweep()

    report = sweeps.sweep(after_s=TEN_MINUTES_S)

    assert (report.found, len(report.unknown), world.record(ref).state) == ((), 1, ClaimState.PREPARED)


def test_an_api_that_is_away_is_asked_once_a_sweep(world, ref, away):
    sweeps, kube = away
    kube.away = False
    for name, start in (("b", 0), ("c", 1)):
        world.serve(world.claim(name, world.partition(0, "1g.5gb", start)))
    kube.away, kube.asked = True, 0

    sweeps.sweep()

    assert kube.asked == 1


def test_two_answers_ten_minutes_apart_count_though_the_api_was_away_between_them(world, ref, away):
    sweeps, kube = away
    forget_claim(world, ref)
    kube.away = False
    sweeps.sweep()
    kube.away = True
    sweeps.sweep(after_s=TEN_MINUTES_S / 2)
    kube.away = False

    sweeps.sweep(after_s=TEN_MINUTES_S / 2)

    assert world.leftovers() == []


def test_a_claim_that_comes_back_is_not_counted_from_before(world, ref, away):
    """A cluster restored from a backup shows claims again."""
    sweeps, kube = away
    kube.away = False
    obj = world.kube.get(RESOURCE_CLAIMS, ref.name, ref.namespace)
    answers = iter([None, obj, None])
    kube.get = lambda *_arguments: next(answers) or world.kube.get(RESOURCE_CLAIMS, ref.name, "elsewhere")
    for _ in range(2):
        sweeps.sweep(after_s=TEN_MINUTES_S)

    found = sweeps.find(MismatchKind.RECORD_WITHOUT_CLAIM, after_s=TEN_MINUTES_S)

    assert found.outcome is Outcome.REPORTED


def test_of_a_gpu_that_does_not_answer_nothing_is_concluded(world, ref, sweeps):
    world.machine.inject(Fault(function="get_mig_mode", gpu="0", times=9))

    report = sweeps.sweep()

    assert (report.found, world.uuid(0) in report.unknown[0]) == ((), True)


def test_the_report_is_written_and_read_again(world, ref, sweeps):
    world.make_foreign(0, "3g.20gb", 0)

    report = sweeps.sweep()

    assert (sweeps.store.read_report(), sweeps.sweeper.report) == (report, report)


def test_a_report_that_cannot_be_written_ends_nothing(world, ref, sweeps, caplog):
    sweeps.store.path.mkdir()

    sweeps.sweep()

    assert "the report of the sweep is not written" in caplog.text


def test_a_mismatch_is_told_once(world, ref, sweeps, caplog):
    world.make_foreign(0, "3g.20gb", 0)

    for _ in range(3):
        sweeps.sweep()

    assert caplog.text.count("no record of ours speaks of it") == 1


def test_a_sweep_that_is_to_end_repairs_nothing_more(world, ref, sweeps):
    world.cdi_path(ref).unlink()
    sweeps.sweeper.stop(10)

    found = sweeps.find(MismatchKind.MISSING_FILES)
    left = not world.cdi_path(ref).exists()
    world.start()

    assert (found.outcome, "left for later" in found.detail, left) == (Outcome.FAILED, True, True)


def test_the_first_sweep_comes_by_itself_and_a_stop_ends_it(world, ref):
    world.cdi_path(ref).unlink()
    repaired = threading.Event()
    sweeps = Sweeps(world)
    sweeper = Sweeper(world.node, Recovery(world.node), sweeps.store, on_change=lambda _reason: repaired.set())

    sweeper.start()

    assert (repaired.wait(10), sweeper.stop(10)) == (True, True)
