"""Damaged records, full disks, folders that cannot be written, an API that is away: one claim suffers, in words."""

from __future__ import annotations

import dataclasses
import re

import pytest
from tesela.core.errors import StateError, TryAgain
from tesela.core.record import ClaimState
from tesela.core.shape import Policy, PolicyRule, Shape
from tesela.edge.embedded.faults import FlakyKube, unavailable
from tesela.edge.kube.port import RESOURCE_CLAIMS
from tesela.edge.simulator.faults import Fault
from tesela.edge.store.sweep import SweepStore
from tesela.plugin.recover import Recovery
from tesela.plugin.sweep import Sweeper

STATIC = Policy(rules=(PolicyRule(mode=Shape.STATIC),))


def damage(world, ref):
    world.record_path(ref).write_text('{"version": 1, "rec')


def lose_files(world, ref):
    damage(world, ref)
    world.cdi_path(ref).unlink()


def set_aside(world):
    return [path.name for path in (world.state_dir / "aside").glob("*")]


# A record that cannot be read


@pytest.mark.parametrize("harm", [damage, lose_files])
def test_a_damaged_record_is_rebuilt_as_it_was(world, ref, harm):
    before = world.record(ref)
    harm(world, ref)

    assert world.serve(ref) == before


@pytest.mark.parametrize("harm", [damage, lose_files])
def test_the_damaged_file_is_kept_under_the_claims_uid(world, ref, harm):
    harm(world, ref)
    world.serve(ref)

    assert set_aside(world) == [f"{ref.uid}.1.json"]


@pytest.mark.parametrize("harm", [damage, lose_files])
def test_a_claim_with_a_damaged_record_ends_and_leaves_nothing(world, ref, harm):
    harm(world, ref)

    assert (world.unprepare(ref), world.leftovers()) == (None, [])


def test_a_damaged_record_is_rebuilt_from_its_cdi_file_at_start(world, ref):
    before = world.record(ref)
    damage(world, ref)

    world.start()

    assert world.record(ref) == before


def test_a_claim_of_which_nothing_is_left_fails_with_a_sentence(world, ref):
    lose_files(world, ref)
    world.kube.delete(RESOURCE_CLAIMS, ref.name, ref.namespace)

    sentence = world.unprepare(ref)

    assert ("neither its CDI file nor its allocation is left" in sentence, "default/a" in sentence) == (True, True)


def test_a_claim_whose_record_cannot_be_rebuilt_destroys_nothing(world, ref):
    lose_files(world, ref)
    world.kube.delete(RESOURCE_CLAIMS, ref.name, ref.namespace)

    world.unprepare(ref)

    assert len(world.instances(0)) == 1


def test_other_claims_go_on_beside_a_damaged_record(world, ref):
    lose_files(world, ref)
    other = world.claim("b", world.partition(0, "1g.5gb", 0))
    world.serve(other)

    assert (world.unprepare(other), len(world.instances(0))) == (None, 1)


def test_a_partition_of_a_damaged_record_is_not_called_somebody_elses(world, ref):
    """An operator who is told to destroy it would destroy a running workload's."""
    lose_files(world, ref)

    sentence = world.refuse(world.claim("b", world.partition(0, "3g.20gb", 4)))

    assert ("was not made by Tesela" in sentence, ref.uid in sentence) == (False, True)


def test_an_empty_record_of_a_claim_that_is_gone_is_what_a_power_cut_leaves(world, ref):
    """Records between two answers are renamed into place without being synced."""
    world.reboot()
    world.record_path(ref).write_text("")
    world.kube.delete(RESOURCE_CLAIMS, ref.name, ref.namespace)

    assert (world.unprepare(ref), world.leftovers()) == (None, [])


@pytest.mark.parametrize("device", ["gpu-1", "gpu-2"])
def test_a_device_of_a_damaged_record_is_not_given_again(world, device):
    """Nothing lives that would show a whole GPU as taken; the copy in the CDI file does."""
    holder = world.claim("holder", device)
    world.serve(holder)
    damage(world, holder)

    assert "still held by claim default/holder" in world.refuse(world.claim("late", device))


def test_a_device_that_another_claim_holds_by_now_is_not_rebuilt(world):
    """Nothing was left to tell that it was taken."""
    first, second = (world.claim(name, "gpu-1") for name in ("first", "second"))
    world.serve(first)
    lose_files(world, first)
    world.serve(second)
    world.promised.pop(first.uid)

    assert "still held by claim default/second" in world.refuse(first)


def test_a_partition_that_another_claim_has_by_now_is_not_this_ones_after_a_rebuild(world, ref):
    """The reset took the first one's, and nothing was left to tell that its place was taken."""
    second = world.claim("second", world.partition(0, "1g.5gb", 6))
    lose_files(world, ref)
    world.reset(0)
    world.look()
    world.forget_containers(ref)
    world.serve(second)

    world.unprepare(ref)

    assert len(world.instances(0)) == 1


def test_while_the_api_is_away_the_damaged_claim_waits(world, ref):
    lose_files(world, ref)
    world.start(kube=FlakyKube(world.kube, unavailable(1, "get")))

    assert "its allocation cannot be read" in world.unprepare(ref)


def test_a_static_partition_is_never_ours_after_a_rebuild(build):
    world = build("a100-40gb:mig", policy=STATIC)
    world.make_foreign(0, "2g.10gb", 2)
    ref = world.claim("a", world.partition(0, "2g.10gb", 2))
    world.serve(ref)
    lose_files(world, ref)

    world.unprepare(ref)

    assert len(world.instances(0)) == 1


def test_an_admin_claim_owns_nothing_after_a_rebuild(world, ref):
    watcher = world.claim("watcher", world.partition(0, "1g.5gb", 6), adminAccess=True)
    world.serve(watcher)
    lose_files(world, watcher)

    world.unprepare(watcher)

    assert len(world.instances(0)) == 1


def test_a_time_slice_is_taken_back_after_a_rebuild(world):
    calls = world.install_smi()
    sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
    config = {"source": "FromClaim", "opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}
    ref = world.claim("a", "gpu-1", configs=(config,))
    world.serve(ref)
    lose_files(world, ref)

    world.unprepare(ref)

    assert calls.read_text().splitlines()[-1].endswith("--set-timeslice 0")


def test_a_record_of_another_release_is_not_guessed_at(world, ref):
    world.record_path(ref).write_text('{"version": 9, "record": {}}')
    world.cdi_path(ref).unlink()
    world.kube.delete(RESOURCE_CLAIMS, ref.name, ref.namespace)

    assert "version 9" in world.unprepare(ref)


@pytest.fixture
def foreign(world, ref):
    """A record of another release. Its CDI file and its claim would tell what to rebuild a damaged one from."""
    ours = world.record_path(ref).read_bytes()
    foreign = b'{"version": 9, "record": {}}'
    world.record_path(ref).write_bytes(foreign)
    yield foreign
    world.record_path(ref).write_bytes(ours)


@pytest.mark.parametrize("call", ["prepare", "unprepare"])
def test_a_record_of_another_release_is_not_rebuilt_over(world, ref, foreign, call):
    said = str(getattr(world, call)(ref))

    assert (re.findall("run the release of tesela", said), world.record_path(ref).read_bytes()) == (
        ["run the release of tesela"],
        foreign,
    )


def test_a_start_and_a_sweep_leave_a_record_of_another_release_alone(world, ref, foreign):
    world.start()
    Sweeper(world.node, Recovery(world.node), SweepStore(world.state_dir)).sweep()

    assert (world.record_path(ref).read_bytes(), set_aside(world)) == (foreign, [])


# A record that is gone


def remove_record(world, ref):
    world.record_path(ref).unlink()


def test_a_record_removed_by_hand_is_restored_at_start(world, ref):
    before = world.record(ref)
    remove_record(world, ref)

    world.start()

    assert (world.record(ref), world.cdi_path(ref).exists()) == (before, True)


def test_a_record_removed_by_hand_is_restored_by_the_next_prepare(world, ref):
    before = world.record(ref)
    remove_record(world, ref)

    assert world.serve(ref) == before


@pytest.mark.parametrize("restart", [False, True])
def test_a_claim_whose_record_was_removed_by_hand_ends_and_leaves_nothing(world, ref, restart):
    remove_record(world, ref)
    if restart:
        world.start()

    assert (world.unprepare(ref), world.leftovers()) == (None, [])


def test_the_files_of_a_removed_record_go_once_its_partition_is_gone(world, ref):
    remove_record(world, ref)
    world.promised.clear()
    world.reset(0)

    world.start()

    assert world.leftovers() == []


def test_the_files_of_a_removed_record_stay_while_its_gpu_does_not_answer(world, ref):
    remove_record(world, ref)
    world.machine.inject(Fault(function="get_compute_instances", times=None))
    world.start()
    kept = world.cdi_path(ref).exists()
    world.machine.release()

    assert (kept, world.unprepare(ref), world.leftovers()) == (True, None, [])


def test_a_static_partition_of_a_removed_record_is_not_taken_for_ours(build):
    world = build("a100-40gb:mig", policy=STATIC)
    world.make_foreign(0, "2g.10gb", 2)
    ref = world.claim("a", world.partition(0, "2g.10gb", 2))
    world.serve(ref)
    remove_record(world, ref)
    world.promised.clear()

    world.start()

    assert (len(world.instances(0)), world.record(ref)) == (1, None)


# Disks and folders


class Failing:
    """A port of which one method fails as the store fails."""

    def __init__(self, inner, method, error, *, after=0):
        self._inner, self._method, self._error, self._after = inner, method, error, after

    def __getattr__(self, name):
        if name != self._method:
            return getattr(self._inner, name)
        if self._after:
            self._after -= 1
            return getattr(self._inner, name)
        return self._fail

    def _fail(self, *args, **kwargs):
        raise self._error


FULL = TryAgain("cannot write claims/x.json: No space left on device: free space on that file system")
READ_ONLY = StateError("cannot write claims/x.json: Read-only file system: see the mounts of its DaemonSet")


def fail(world, port, method, error, **fields):
    world.wrap = lambda ports: dataclasses.replace(
        ports, **{port: Failing(getattr(ports, port), method, error, **fields)}
    )
    world.start()


def heal(world):
    world.wrap = lambda ports: ports
    world.start()


@pytest.mark.parametrize("error", [FULL, READ_ONLY])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_record_that_cannot_be_written_refuses_and_leaves_nothing(world, error, after):
    """Before the first effect, with the new ids, and at the end."""
    ref = world.claim("a", world.partition(0, "1g.5gb", 6))
    fail(world, "records", "write", error, after=after)

    assert (str(error) in world.refuse(ref), world.leftovers()) == (True, [])


@pytest.mark.parametrize("port", ["cdi", "metadata"])
def test_files_that_cannot_be_written_refuse_and_leave_nothing(world, port):
    ref = world.claim("a", world.partition(0, "1g.5gb", 6))
    fail(world, port, "write", FULL)

    assert (str(FULL) in world.refuse(ref), world.leftovers()) == (True, [])


@pytest.mark.parametrize(("port", "method"), [("records", "remove"), ("cdi", "remove")])
def test_an_unprepare_that_the_disk_stops_is_finished_later(world, ref, port, method):
    fail(world, port, method, READ_ONLY)
    assert str(READ_ONLY) in world.unprepare(ref)
    heal(world)

    assert (world.unprepare(ref), world.leftovers()) == (None, [])


@pytest.mark.parametrize("error", [FULL, READ_ONLY])
def test_an_unprepare_whose_record_cannot_be_written_goes_on(world, ref, error):
    fail(world, "records", "write", error)

    assert (world.unprepare(ref), world.leftovers()) == (None, [])


def test_a_plugin_folder_that_is_no_folder_refuses_in_words(world):
    ref = world.claim("a", "gpu-1")
    (world.state_dir / "claims").write_text("")

    sentence = world.refuse(ref)

    assert f"cannot write {world.state_dir}/claims/{ref.uid}.json" in sentence
    (world.state_dir / "claims").unlink()


# The API


def test_an_api_that_is_away_refuses_for_now(world):
    ref = world.claim("a", "gpu-1")
    world.start(kube=FlakyKube(world.kube, unavailable(1, "get")))
    assert ("no answer from the API server" in world.refuse(ref), world.leftovers()) == (True, [])

    assert world.serve(ref).state is ClaimState.PREPARED


def test_a_hiccup_of_the_api_is_waited_out_within_the_call(world):
    ref = world.claim("a", "gpu-1")
    world.start(kube=FlakyKube(world.kube, unavailable(2, "get")), api_retry_s=5.0)

    assert world.serve(ref).state is ClaimState.PREPARED


def test_the_sentence_names_the_claim_even_where_its_name_is_a_letter(world):
    ref = world.claim("a", "gpu-1")
    world.start(kube=FlakyKube(world.kube, unavailable(1, "get")))

    assert world.refuse(ref).startswith("claim default/a: ")
