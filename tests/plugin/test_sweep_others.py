"""What a sweep must not take for its own: GPUs that are left to others, claims of which nobody said that they went."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sweeping import Sweeps
from tesela.core.errors import ApiNotFound
from tesela.core.model import Shape
from tesela.core.record import ClaimState
from tesela.core.shape import Policy, PolicyRule
from tesela.core.sweep import Outcome
from tesela.edge.kube.port import RESOURCE_CLAIMS
from tesela.edge.nvml import codes
from tesela.edge.store.sweep import SweepStore
from tesela.plugin.recover import InHand, Recovery, remove_orphan
from tesela.plugin.sweep import Sweeper, SweepTimes
from tesela.plugin.sweep_look import GoneClaims, look

TEN_MINUTES_S = 600.0


def test_what_stands_on_a_gpu_that_is_left_to_others_is_theirs(build):
    """An operator told the driver to ignore it, since somebody else divides it."""
    world = build("a100-40gb:mig,a100-40gb", policy=Policy(rules=(PolicyRule(mode=Shape.IGNORE),)))
    world.make_foreign(0, "3g.20gb", 0)
    world.admin.set_mig_mode(world.uuid(1), codes.MIG_ENABLED)

    assert Sweeps(world).sweep().found == ()


class OtherServer:
    """Something in the API server's place that answers every GET with one 404."""

    def __init__(self, inner, error):
        self._inner, self._error = inner, error

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def get(self, *_arguments):
        raise self._error


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("", "the API server answered 404 without a reason"),
        ("NotFound", "the server could not find the requested resource"),
    ],
    ids=["not the API server's", "of a server without the resource"],
)
def test_a_404_that_is_not_about_the_claim_concludes_nothing(world, reason, message):
    ref = world.claim("a", world.partition(0, "1g.5gb", 6))
    world.serve(ref)
    world.node = replace(world.node, kube=OtherServer(world.kube, ApiNotFound(404, reason, message)))
    sweeps = Sweeps(world)
    sweeps.sweep()

    report = sweeps.sweep(after_s=TEN_MINUTES_S)

    assert (report.found, len(report.unknown), world.record(ref).state) == ((), 1, ClaimState.PREPARED)


def test_a_claim_with_the_longest_name_is_known_to_be_gone(world):
    ref = world.claim("n" * 253, world.partition(0, "1g.5gb", 6))
    world.serve(ref)
    world.kube.delete(RESOURCE_CLAIMS, ref.name, ref.namespace)
    world.promised.pop(ref.uid)
    world.forget_containers(ref)
    sweeps = Sweeps(world)
    sweeps.sweep()

    sweeps.sweep(after_s=TEN_MINUTES_S)

    assert world.leftovers() == []


@pytest.fixture
def held(world):
    ref = world.claim("a", world.partition(0, "1g.5gb", 6))
    world.serve(ref)
    return ref


def test_a_sweep_asks_no_longer_than_its_time(world, held):
    sight = look(world.node, GoneClaims(), asking_s=0.0)

    assert (sight.claims, [one for one in sight.unknown if "no time" in one]) == ({}, list(sight.unknown))


def test_a_sweep_begins_no_repair_after_its_time(world, held):
    world.cdi_path(held).unlink()
    sweeper = Sweeper(world.node, Recovery(world.node), SweepStore(world.state_dir), times=SweepTimes(repairs_s=0.0))

    (found,) = sweeper.sweep().found

    assert (found.outcome, found.detail.partition(":")[0]) == (Outcome.FAILED, "left for the next sweep")
    world.start()


def test_files_that_went_with_their_claim_meanwhile_are_no_orphan(world, held):
    """It was prepared after the records were read, and given back before they were read again."""
    world.unprepare(held)

    with pytest.raises(InHand):
        remove_orphan(world.node, held.uid)
