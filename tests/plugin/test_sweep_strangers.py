"""Whatever administrators, claims, crashes and lost files make of a node: a sweep touches nothing that is not ours."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from node_world import make_world
from sweeping import Sweeps
from tesela.core.errors import NvmlError
from tesela.core.model import Placement
from tesela.core.record import ClaimState
from tesela.edge.kube.port import RESOURCE_CLAIMS
from tesela.edge.simulator.faults import Fault

SLOTS = [("1g.5gb", 0), ("1g.5gb", 1), ("1g.5gb", 6), ("2g.10gb", 2), ("3g.20gb", 4)]
PROFILE_IDS = {"1g.5gb": 19, "2g.10gb": 14, "3g.20gb": 9}
SIZES = {"1g.5gb": 1, "2g.10gb": 2, "3g.20gb": 4}
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("claim", "claim", "admin makes", "admin makes bare", "admin destroys", "half done", "record goes"),
                *("file goes", "claim goes", "pod ends", "sweep", "sweep"),
            ]
        ),
        st.integers(0, len(SLOTS) - 1),
    ),
    max_size=12,
)


def act(world, refs, step, number):
    """One step; what the node or the hardware refuses has no effect."""
    profile, start = SLOTS[number]
    if step == "claim":
        refs.append(world.claim(f"c{len(refs)}", world.partition(0, profile, start)))
        world.prepare(refs[-1])
    elif step.startswith("admin"):
        administrate(world, step, profile, start)
    elif refs:
        harm(world, refs[number % len(refs)], step)


def administrate(world, step, profile, start):
    if step == "admin makes":
        world.make_foreign(0, profile, start)
    elif step == "admin makes bare":
        # In the place of a claim half given back it would be ours: it has no UUID to tell it apart (invariant 4).
        if any(record.state is not ClaimState.PREPARED for record in world.node.records.list().records):
            return
        placement = Placement(start=start, size=SIZES[profile])
        made = world.admin.create_gpu_instance(world.uuid(0), PROFILE_IDS[profile], placement)
        world.foreign.add((world.uuid(0), made.gi_id))
    elif world.instances(0):
        world.destroy_by_hand(0, world.instances(0)[start % len(world.instances(0))].gi_id)


def harm(world, ref, step):
    has_record = world.record_path(ref).exists()
    if step == "half done" and has_record:
        world.machine.inject(Fault(function="destroy_gpu_instance"))
        world.unprepare(ref)
    elif step == "record goes" and has_record and world.record(ref).state is ClaimState.PREPARED:
        # Of one half given back nothing would be left that proves whose its instance is: that one is reported.
        if not world.cdi_path(ref).exists():  # nor is there here: it is a stranger's from now on
            world.foreign |= list_instances(world, world.record(ref))
        world.record_path(ref).unlink()
        world.forget_containers(ref)
        world.promised.pop(ref.uid, None)
    elif step == "file goes" and has_record:
        world.cdi_path(ref).unlink(missing_ok=True)
    elif step == "claim goes" and ref.name in {
        one["metadata"]["name"] for one in world.kube.list(RESOURCE_CLAIMS).items
    }:
        world.kube.delete(RESOURCE_CLAIMS, ref.name, ref.namespace)
        world.forget_containers(ref)
        world.promised.pop(ref.uid, None)
    elif step == "pod ends":
        world.unprepare(ref)


def list_instances(world, record):
    """The GPU instances that the record's claim holds, by GPU UUID and id."""
    slots = {(one.profile_id, one.placement) for device in record.devices for one in device.partitions}
    return {(world.uuid(0), one.gi_id) for one in world.instances(0) if (one.profile_id, one.placement) in slots}


def list_foreign(world):
    return {
        (instance.gi_id, tuple(compute.mig_uuid for compute in instance.compute_instances))
        for instance in world.instances(0)
        if (world.uuid(0), instance.gi_id) in world.foreign
    }


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
@example([("claim", 0), ("half done", 0), ("admin destroys", 0), ("admin makes", 0)])
@example([("claim", 0), ("admin destroys", 0), ("admin makes", 0), ("claim goes", 0), ("sweep", 0), ("sweep", 0)])
@example([("claim", 0), ("file goes", 0), ("record goes", 0), ("sweep", 0)])
@example([("claim", 0), ("record goes", 0), ("file goes", 0), ("admin makes", 2), ("claim goes", 0), ("sweep", 0)])
def test_a_sweep_touches_nothing_of_others(steps):
    with tempfile.TemporaryDirectory() as folder:
        world = make_world(Path(folder), "a100-40gb:mig")
        sweeps, refs = Sweeps(world), []
        strange = world.state_dir / "dra-device-metadata" / "notes"
        strange.mkdir(parents=True)
        for step, number in [*steps, ("sweep", 0)]:
            if step != "sweep":
                with contextlib.suppress(NvmlError):
                    act(world, refs, step, number)
                continue
            before = list_foreign(world)
            sweeps.sweep(after_s=600)
            assert (list_foreign(world), strange.exists()) == (before, True)
        world.check()
