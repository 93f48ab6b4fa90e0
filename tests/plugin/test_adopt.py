"""Which claims of NVIDIA's driver are adopted and which are left; nothing that lives is destroyed without proof."""

from __future__ import annotations

import dataclasses
from uuid import uuid4

import pytest
from moved_world import Moved
from tesela.core.adoption import Fate, TheirPartitions
from tesela.core.errors import NvmlError
from tesela.core.model import ClaimRef, Shape
from tesela.core.record import ClaimState
from tesela.core.shape import Policy, PolicyRule
from tesela.core.slices.offer import plan_foreign_fences
from tesela.edge.nvml import codes
from tesela.edge.store.checkpoint import CheckpointFile
from tesela.plugin.adopt import Adopter, look_around
from tesela.plugin.pool_state import read_pool_state


@pytest.fixture
def moved(world):
    return Moved(world)


def test_a_static_partition_is_adopted_and_never_destroyed(moved):
    ref, live = moved.partition("a", 0, "2g.10gb", 0)
    moved.world.foreign.add((live.gpu_uuid, live.gi_id))
    moved.adopt(ref, partitions=TheirPartitions.STATIC)

    moved.world.unprepare(ref)

    assert (moved.live(0), moved.world.record(ref)) == ([live.gi_id], None)


@pytest.mark.parametrize("on_demand", [True, False])
def test_their_slices_tell_how_a_partition_came_to_be(moved, on_demand):
    ref, live = moved.partition("a", 0, "1g.5gb", 4)
    moved.publish(moved.world.partition(0, "1g.5gb", 4), on_demand=on_demand)
    if not on_demand:
        moved.world.foreign.add((live.gpu_uuid, live.gi_id))

    moved.adopt(ref, partitions=TheirPartitions.AUTO)

    assert moved.world.record(ref).devices[0].current.ours is on_demand


def test_where_nothing_tells_a_partition_is_left_alive_and_the_report_says_so(moved):
    ref, live = moved.partition("a", 0, "1g.5gb", 4)
    moved.world.foreign.add((live.gpu_uuid, live.gi_id))

    report = moved.adopt(ref, partitions=TheirPartitions.AUTO)

    assert "stays when the claim ends" in report.claims[0].remarks[0]


def test_a_policy_of_static_partitions_counts_more_than_their_slices(build):
    world = build("a100-40gb:mig", policy=Policy(rules=(PolicyRule(mode=Shape.STATIC),)))
    moved = Moved(world)
    ref, live = moved.partition("a", 0, "1g.5gb", 4)
    world.foreign.add((live.gpu_uuid, live.gi_id))

    moved.adopt(ref)

    assert not world.record(ref).devices[0].current.ours


def test_an_mps_daemon_is_named_and_its_gpu_tainted_until_a_person_says_it_is_gone(moved):
    ref = moved.whole("a", 2, mpsControlDaemonID="d-1", mpsApplied=True)
    report = moved.adopt(ref)

    moved.world.unprepare(ref)

    fences = [(one.gpu_uuid, one.key) for one in moved.world.node.health.fences()]
    assert ("mps-control-daemon-d-1" in report.claims[0].remarks[0], fences) == (
        True,
        [(moved.world.uuid(2), "gpu.nvidia.com/mps")],
    )


def test_a_gpu_of_a_virtual_machine_is_left_and_its_unprepare_succeeds(moved):
    uid = str(uuid4())
    moved.theirs.give_vfio(uid, "gpu-vfio-0", "GPU-of-a-vm")

    report = moved.adopt()

    assert (report.claims[0].fate, moved.world.unprepare(ClaimRef(namespace="default", name="vm", uid=uid))) == (
        Fate.LEFT,
        None,
    )


def test_a_prepare_that_did_not_end_is_left_and_what_it_made_is_not_destroyed(moved):
    ref = moved.world.claim("half", moved.world.partition(0, "1g.5gb", 4))
    moved.world.foreign.add((moved.world.uuid(0), moved.make(0, "1g.5gb", 4).gi_id))
    moved.theirs.begin(ref.uid, moved.world.partition(0, "1g.5gb", 4))

    moved.adopt()
    moved.world.unprepare(ref)

    assert len(moved.live(0)) == 1


def test_and_the_kubelet_s_next_prepare_of_it_is_ours(moved):
    ref = moved.world.claim("half", moved.world.partition(0, "1g.5gb", 4))
    moved.theirs.begin(ref.uid, moved.world.partition(0, "1g.5gb", 4))
    moved.adopt()

    record = moved.world.serve(ref)

    assert (record.adopted, record.devices[0].current.ours) == (False, True)


def test_admin_access_gives_nothing_to_destroy(moved):
    ref, live = moved.partition("a", 0, "1g.5gb", 4)
    watcher = moved.world.claim("w", moved.world.partition(0, "1g.5gb", 4), adminAccess=True)
    device = moved.world.partition(0, "1g.5gb", 4)
    moved.theirs.give_partition(watcher.uid, device, live.gpu_uuid, mig_uuid=live.mig_uuid, gi_id=live.gi_id)
    moved.theirs.allocate(watcher.uid, adminAccess=True)
    moved.theirs.write_cdi(moved.world.cdi_dir, watcher.uid)
    moved.adopt(ref, watcher)

    moved.world.unprepare(watcher)

    assert (moved.live(0), moved.world.record(ref).devices[0].current.ours) == ([live.gi_id], True)


def test_a_partition_of_two_claims_belongs_to_neither(moved):
    device = moved.world.partition(0, "1g.5gb", 4)
    live = moved.make(0, "1g.5gb", 4)
    uids = [str(uuid4()), str(uuid4())]
    for uid in uids:
        moved.theirs.give_partition(uid, device, live.gpu_uuid, mig_uuid=live.mig_uuid, gi_id=live.gi_id)
    moved.adopt()

    moved.world.unprepare(ClaimRef(namespace="default", name="a", uid=uids[0]))
    lives = moved.live(0)
    moved.world.unprepare(ClaimRef(namespace="default", name="b", uid=uids[1]))

    assert lives == moved.live(0) == [live.gi_id]
    moved.world.foreign.add((live.gpu_uuid, live.gi_id))


def test_a_partition_that_a_claim_of_ours_holds_is_not_the_checkpoint_s_to_destroy(moved):
    """A file that came back, under a driver that has gone on since."""
    ours, live = moved.partition("a", 0, "1g.5gb", 4)
    moved.adopt(ours)
    moved.theirs.claims.clear()
    stale = moved.world.claim("stale", moved.world.partition(0, "1g.5gb", 4))
    moved.theirs.give_partition(
        stale.uid, moved.world.partition(0, "1g.5gb", 4), live.gpu_uuid, mig_uuid=live.mig_uuid, gi_id=live.gi_id
    )
    moved.adopt(stale)

    moved.world.unprepare(stale)

    assert moved.live(0) == [live.gi_id]


def test_slices_of_ours_do_not_tell_how_their_partition_came_to_be(moved):
    ref, live = moved.partition("a", 0, "1g.5gb", 4)
    moved.world.foreign.add((live.gpu_uuid, live.gi_id))
    moved.publish(moved.world.partition(0, "1g.5gb", 4), attributes={"placementStart": {"int": 4}})

    moved.adopt(ref, partitions=TheirPartitions.AUTO)

    assert not moved.world.record(ref).devices[0].partitions[0].ours


def test_a_gpu_that_this_node_does_not_have_leaves_the_claim(moved):
    uid = str(uuid4())
    moved.theirs.give_gpu(uid, "gpu-7", "GPU-gone")

    report = moved.adopt()

    assert "GPU-gone of gpu-7 is not on this node" in report.claims[0].remarks[0]


def test_a_partition_that_does_not_live_any_more_is_on_record_for_its_id_and_unprepare_succeeds(moved):
    ref, live = moved.partition("a", 0, "1g.5gb", 4)
    moved.world.admin.destroy_compute_instance(live.gpu_uuid, live.gi_id, live.ci_id)
    moved.world.admin.destroy_gpu_instance(live.gpu_uuid, live.gi_id)
    moved.adopt(ref)

    record = moved.world.record(ref)
    refused = moved.world.unprepare(ref)

    assert (record.state, [one.gi_id for one in record.grants], refused) == (ClaimState.PREPARING, [live.gi_id], None)


def test_another_partition_in_its_place_is_not_destroyed(moved):
    ref, live = moved.partition("a", 0, "1g.5gb", 4)
    moved.world.admin.destroy_compute_instance(live.gpu_uuid, live.gi_id, live.ci_id)
    moved.world.admin.destroy_gpu_instance(live.gpu_uuid, live.gi_id)
    moved.world.foreign.add((live.gpu_uuid, moved.make(0, "1g.5gb", 4).gi_id))
    moved.adopt(ref)

    moved.world.unprepare(ref)

    assert len(moved.live(0)) == 1


def test_a_gpu_that_does_not_answer_is_compared_when_its_claim_ends(moved):
    ref, _live = moved.partition("a", 0, "1g.5gb", 4)
    moved.theirs.write(moved.world.state_dir)

    def silent(_gpu_uuid):
        return ()

    around = look_around(moved.world.node, list_names=lambda: (ref,), partitions=TheirPartitions.ON_DEMAND)
    around = dataclasses.replace(around, list_live=silent)
    Adopter(moved.world.node, CheckpointFile(moved.world.state_dir), around).adopt()
    moved.world.recover()

    moved.world.unprepare(ref)

    assert moved.live(0) == []


def test_an_nvml_that_fails_keeps_no_claim_from_being_adopted(moved):
    ref, _ = moved.partition("a", 0, "1g.5gb", 4)
    moved.theirs.write(moved.world.state_dir)

    class Failing:
        def __getattr__(self, name):
            return getattr(moved.world.node.partitions, name)

        def list_live(self, *_args):
            raise NvmlError(codes.UNKNOWN, "nvmlDeviceGetGpuInstances")

    node = dataclasses.replace(moved.world.node, partitions=Failing())
    around = look_around(node, list_names=lambda: (ref,), partitions=TheirPartitions.ON_DEMAND)
    Adopter(node, CheckpointFile(moved.world.state_dir), around).adopt()

    assert moved.world.record(ref).devices[0].current.ours


def test_a_partition_that_stays_is_fenced_while_its_claim_lives(moved):
    ref, live = moved.partition("a", 0, "1g.5gb", 4)
    moved.world.foreign.add((live.gpu_uuid, live.gi_id))
    moved.adopt(ref, partitions=TheirPartitions.STATIC)
    state = read_pool_state(moved.world.node)

    fences = plan_foreign_fences(state.roster.gpus[0], state)

    assert [one.placement for one in fences] == [live.placement]


def test_one_that_goes_with_its_claim_is_not(moved):
    ref, _ = moved.partition("a", 0, "1g.5gb", 4)
    moved.adopt(ref)
    state = read_pool_state(moved.world.node)

    assert plan_foreign_fences(state.roster.gpus[0], state) == ()
