from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from gpu_models import A100_40_PROFILES, PROFILES, a100, h100, t4
from hypothesis import given
from hypothesis import strategies as st
from tesela.core.geometry import exclude, list_survivors, overlap, plan_partitions
from tesela.core.model import Placement

placements = st.builds(Placement, start=st.integers(0, 12), size=st.integers(1, 12))


def starts(gpu, profile):
    return [p.placement.start for p in plan_partitions(gpu) if p.profile.name == profile]


def test_an_a100_has_25_partitions():
    assert len(plan_partitions(a100())) == 25


def test_a_gpu_without_mig_has_none():
    assert plan_partitions(t4()) == ()


def test_the_smallest_profile_comes_first_and_plain_before_me():
    order = list(dict.fromkeys(p.profile.name for p in plan_partitions(a100())))

    assert order == ["1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"]


def test_on_rtx_pro_variants_follow_their_plain_profile():
    gpu = replace(a100(), profiles=PROFILES["rtx-pro-6000"])

    order = list(dict.fromkeys(p.profile.name for p in plan_partitions(gpu)))

    assert order == [
        *("1g.24gb", "1g.24gb-me", "1g.24gb+gfx", "1g.24gb+me", "1g.24gb+me.all"),
        *("2g.48gb", "2g.48gb-me", "2g.48gb+gfx", "2g.48gb+me.all"),
        *("4g.96gb", "4g.96gb+gfx"),
    ]


@pytest.mark.parametrize(
    ("profile", "order"),
    [
        ("1g.5gb", [6, 5, 4, 3, 2, 1, 0]),
        ("1g.5gb+me", [6, 5, 4, 3, 2, 1, 0]),
        ("1g.10gb", [6, 4, 2, 0]),
        ("2g.10gb", [4, 2, 0]),
        ("3g.20gb", [4, 0]),
        ("4g.20gb", [0]),
    ],
)
def test_starts_begin_where_the_big_profiles_stay_possible(profile, order):
    assert starts(a100(), profile) == order


@pytest.mark.parametrize(("profile", "left"), [("1g.5gb", 11), ("2g.10gb", 9), ("3g.20gb", 8)])
def test_placements_left_after_one_first_fit_allocation_on_an_empty_a100(profile, left):
    plain = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
    among = [p for p in plan_partitions(a100()) if p.profile.name in plain]
    first = next(p for p in plan_partitions(a100()) if p.profile.name == profile)

    survivors = list_survivors(among, (first,))

    assert (len(among), len(survivors)) == (14, left)


def test_the_order_does_not_depend_on_the_order_of_discovery():
    shuffled = replace(a100(), profiles=tuple(reversed(A100_40_PROFILES)))

    assert plan_partitions(shuffled) == plan_partitions(a100())


@pytest.mark.parametrize("model", PROFILES)
def test_within_a_profile_no_later_start_leaves_more_possible(model):
    partitions = plan_partitions(replace(a100(), profiles=PROFILES[model]))

    for one, other in pairwise(partitions):
        if one.profile == other.profile:
            assert len(list_survivors(partitions, (one,))) >= len(list_survivors(partitions, (other,)))


@given(placements, placements)
def test_two_placements_overlap_exactly_when_they_share_a_slice(one, other):
    assert overlap(one, other) == bool(set(one.slices) & set(other.slices))


def test_a_second_instance_of_a_single_instance_profile_is_excluded():
    one, other = (p for p in plan_partitions(h100()) if p.profile.name == "1g.10gb+me" and p.placement.start in {0, 6})

    assert exclude(one, other)
