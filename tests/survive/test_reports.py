"""What others reported of drivers like this one, each done here as it was done there; docs/reports.md has the table."""

from __future__ import annotations

import json

import pytest
from tesela.core.model import Refusal
from tesela.core.record import ClaimState
from tesela.edge.simulator.faults import Fault


def list_uuids(world, number):
    return [compute.mig_uuid for instance in world.instances(number) for compute in instance.compute_instances]


# A1: kubernetes#141471


def test_a_device_of_a_pod_deleted_by_force_waits_for_the_old_claim(world):
    device = world.partition(0, "1g.5gb", 6)
    old, new = world.claim("old", device), world.claim("new", device)
    world.serve(old)
    sentence = world.refuse(new)
    world.unprepare(old)

    assert ("default/old" in sentence, world.serve(new).state) == (True, ClaimState.PREPARED)


# A2: dra-example-driver#249


def test_claims_of_before_a_kill_are_given_back_by_the_next_process(world):
    refs = [world.claim("a", world.partition(0, "1g.5gb", 6)), world.claim("b", world.partition(2, "2g.20gb", 0))]
    for ref in refs:
        world.serve(ref)
    world.start()

    assert ([world.unprepare(ref) for ref in refs], world.leftovers()) == ([None, None], [])


# A3: ROCm/k8s-gpu-dra-driver#75


def test_a_claim_of_before_a_boot_gets_a_cdi_file_of_today(world):
    ref = world.claim("a", world.partition(0, "1g.5gb", 6))
    world.serve(ref)
    before = list_uuids(world, 0)
    world.reboot()
    world.serve(ref)

    after = list_uuids(world, 0)
    assert (after != before, after[0] in world.cdi_path(ref).read_text()) == (True, True)


# A4: dra-driver-nvidia-gpu#1452


def test_an_instance_whose_compute_instance_failed_is_destroyed(world):
    world.machine.inject(Fault(function="create_compute_instance"))
    ref = world.claim("a", world.partition(0, "1g.5gb", 6))
    world.refuse(ref)

    assert world.instances(0) == ()


def test_a_claim_whose_compute_instance_failed_once_is_served(world):
    world.machine.inject(Fault(function="create_compute_instance"))
    ref = world.claim("a", world.partition(0, "1g.5gb", 6))
    world.refuse(ref)

    assert world.serve(ref)


# A6: dra-driver-nvidia-gpu#1100, ROCm/k8s-gpu-dra-driver#78


@pytest.mark.parametrize("part", [0.1, 0.35, 0.5, 0.75, 0.97])
def test_one_changed_byte_in_a_record_harms_nobody(world, part):
    ref, other = world.claim("a", world.partition(0, "1g.5gb", 6)), world.claim("b", world.partition(0, "1g.5gb", 0))
    world.serve(ref)
    world.serve(other)
    data = bytearray(world.record_path(ref).read_bytes())
    data[int(part * len(data))] ^= 1
    world.record_path(ref).write_bytes(data)
    world.start()

    assert ([world.unprepare(ref), world.unprepare(other)], world.leftovers()) == ([None, None], [])


# A9: dra-driver-nvidia-gpu#719


@pytest.mark.parametrize("first", ["partition", "whole"])
def test_a_gpu_is_never_given_whole_and_in_part(world, first):
    part, whole = world.claim("part", world.partition(2, "1g.10gb", 0)), world.claim("whole", "gpu-2")
    held, wanted = (part, whole) if first == "partition" else (whole, part)
    world.serve(held)

    assert f"default/{held.name}" in world.refuse(wanted)


# A10: dra-driver-nvidia-gpu#1480


@pytest.mark.parametrize("model", ["a100-40gb", "a100-80gb", "a30-24gb", "h100-80gb", "h200-141gb", "rtx-pro-6000"])
def test_every_profile_of_every_model_can_be_prepared(build, model):
    world = build(f"{model}:mig")
    known = world.node.lookout.roster.gpus[0]
    refused = []
    for profile in known.gpu.profiles:
        ref = world.claim(f"{profile.profile_id}", world.partition(0, profile.name, profile.placements[0].start))
        answer = world.prepare(ref)
        refused += [answer.message] if isinstance(answer, Refusal) else []
        world.unprepare(ref)

    assert (refused, world.leftovers()) == ([], [])


# A11: instaslice-operator#478


@pytest.mark.parametrize(("model", "plain"), [("a30-24gb", "1g.6gb"), ("h200-141gb", "1g.18gb")])
def test_a_profile_with_a_suffix_is_a_device_of_its_own(build, model, plain):
    world = build(f"{model}:mig")
    made = [
        world.serve(world.claim(name, world.partition(0, profile, start))).devices[0].current.profile
        for name, profile, start in [("a", plain, 0), ("b", f"{plain}+me", 2)]
    ]

    assert made == [plain, f"{plain}+me"]


# A13: HAMi#1903


def test_each_claim_has_its_whole_cdi_file_when_it_is_answered(world):
    for name, profile, start in [("a", "1g.5gb", 6), ("b", "2g.10gb", 4), ("c", "3g.20gb", 0)]:
        ref = world.claim(name, world.partition(0, profile, start))
        uuid = world.serve(ref).devices[0].current.mig_uuid
        (device,) = json.loads(world.cdi_path(ref).read_text())["devices"]

        assert (uuid in json.dumps(device), bool(device["containerEdits"]["deviceNodes"])) == (True, True)


# B4: dra-driver-nvidia-gpu#473; B5: dra-driver-nvidia-gpu#1144


@pytest.fixture
def without_nodes(world):
    """The host's device nodes are away, as before they are made or while its driver is exchanged."""
    nodes, aside = world.root / "host/dev", world.root / "host/dev-aside"
    nodes.rename(aside)
    nodes.mkdir()

    def come_back():
        nodes.rmdir()
        aside.rename(nodes)

    return come_back


@pytest.fixture
def waiting(world, without_nodes):
    """A claim that was asked for while the device nodes were away."""
    ref = world.claim("a", world.partition(0, "1g.5gb", 6))
    return ref, world.refuse(ref), without_nodes


def test_without_device_nodes_no_empty_device_is_written(world, waiting):
    ref, sentence, _ = waiting

    assert ("/dev/nvidia" in sentence, world.cdi_path(ref).exists(), world.leftovers()) == (True, False, [])


def test_a_claim_is_served_once_the_device_nodes_are_there(world, waiting):
    ref, _, come_back = waiting
    come_back()

    assert world.serve(ref).state is ClaimState.PREPARED


def test_a_driver_that_starts_without_device_nodes_serves_when_they_come(world, without_nodes):
    world.start()
    without_nodes()

    assert world.serve(world.claim("a", world.partition(0, "1g.5gb", 6)))


# B12: kubernetes#139034


def test_what_a_scheduler_gave_twice_is_prepared_once(world):
    """The allocator miscounted: the driver's own records are the last guard."""
    pairs = [("3g.20gb", 4, "1g.5gb", 6), ("7g.40gb", 0, "1g.5gb", 0), ("2g.10gb", 0, "2g.10gb", 0)]
    for number, (first, start, second, other) in enumerate(pairs):
        held = world.claim(f"held-{number}", world.partition(0, first, start))
        late = world.claim(f"late-{number}", world.partition(0, second, other))
        world.serve(held)

        assert f"default/held-{number}" in world.refuse(late)
        world.unprepare(held)
