from __future__ import annotations

from dataclasses import replace

import pytest
from gpu_models import PROFILES, a100, h100, known, roster, t4
from slice_limits import find_faults, find_pool_faults
from slice_world import state
from tesela.core.slices.pool import SliceContent, render_pool
from tesela.core.slices.state import ApiAbilities, is_split_version, render_label_value


def specs(pool):
    return [
        {
            **({"sharedCounters": list(content.counter_sets)} if content.counter_sets else {}),
            **({"devices": list(content.devices)} if content.devices else {}),
        }
        for content in pool.slices
    ]


def sizes(pool):
    return [(len(content.counter_sets), len(content.devices)) for content in pool.slices]


NODES = {
    "16 H100": roster(*(h100(index) for index in range(16))),
    "16 A100": roster(*(a100(index) for index in range(16))),
    "16 gone H100": roster(*(known(h100(index), present=False) for index in range(16))),
    "9 RTX PRO": roster(*(h100(index, profiles=PROFILES["rtx-pro-6000"]) for index in range(9))),
    "200 T4": roster(*(t4(index) for index in range(200))),
    "mixed": roster(a100(0), t4(1), h100(2), a100(3, mig_enabled=False)),
    "no GPU": roster(),
}


@pytest.mark.parametrize("split", [True, False], ids=["split", "combined"])
@pytest.mark.parametrize("node", NODES)
def test_every_slice_keeps_the_limits_of_the_api(node, split):
    pool = render_pool(state(NODES[node]), ApiAbilities(split=split))

    assert [fault for spec in specs(pool) for fault in find_faults(spec, split=split)] == []


@pytest.mark.parametrize("split", [True, False], ids=["split", "combined"])
@pytest.mark.parametrize("node", NODES)
def test_every_pool_is_valid_for_the_scheduler(node, split):
    assert find_pool_faults(specs(render_pool(state(NODES[node]), ApiAbilities(split=split)))) == []


def test_16_h100_split():
    pool = render_pool(state(NODES["16 H100"]), ApiAbilities())

    assert sizes(pool) == [(8, 0), (8, 0), *[(0, 52)] * 8]


def test_16_h100_combined():
    pool = render_pool(state(NODES["16 H100"]), ApiAbilities(split=False))

    assert sizes(pool) == [(2, 52)] * 8


@pytest.mark.parametrize("split", [True, False], ids=["split", "combined"])
def test_the_devices_of_a_gpu_stay_in_one_slice(split):
    pool = render_pool(state(NODES["mixed"]), ApiAbilities(split=split))

    parents = [{d["attributes"]["parentUUID"]["string"] for d in content.devices} for content in pool.slices]

    assert sum(len(found) for found in parents) == 4


@pytest.mark.parametrize("split", [True, False], ids=["split", "combined"])
def test_both_forms_list_the_same_devices_in_the_same_order(split):
    names = [
        [
            device["name"]
            for content in render_pool(state(NODES["mixed"]), ApiAbilities(split=form)).slices
            for device in content.devices
        ]
        for form in (True, split)
    ]

    assert names[0] == names[1]


def test_a_node_without_gpus_publishes_one_empty_slice():
    assert render_pool(state(roster()), ApiAbilities()).slices == (SliceContent(),)


def test_equal_nodes_publish_equal_lists():
    shuffled = replace(NODES["mixed"], gpus=tuple(reversed(NODES["mixed"].gpus)))

    assert render_pool(state(shuffled), ApiAbilities()) == render_pool(state(NODES["mixed"]), ApiAbilities())


def test_a_pool_says_what_it_leaves_out():
    pool = render_pool(state(NODES["mixed"]), ApiAbilities(counters=False))

    assert [remark.split()[0] for remark in pool.remarks if "DRAPartitionableDevices" in remark] == ["gpu-0", "gpu-2"]


@pytest.mark.parametrize(
    ("version", "split"),
    [("v1.34.9", False), ("v1.35.0", True), ("v1.37.2", True), ("v1.36.0-gke.1+abc", True), ("v2.0.0", True)],
)
def test_counter_sets_stand_alone_since_1_35(version, split):
    assert is_split_version(version) is split


@pytest.mark.parametrize(
    ("text", "value"), [("1g.5gb+me-at-0", "1g.5gb-me-at-0"), ("-x-", "x"), ("", ""), ("a" * 70, "a" * 63)]
)
def test_label_value(text, value):
    assert render_label_value(text) == value
