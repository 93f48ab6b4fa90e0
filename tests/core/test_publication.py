from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from gpu_models import h100, known, roster, t4
from slice_world import NODE, state
from tesela.core.publication import CreateSlice, DeleteSlice, NodeRef, ReplaceSlice, is_complete, plan_publication
from tesela.core.slices.pool import render_pool
from tesela.core.slices.state import ApiAbilities
from tesela.edge.embedded.cluster import EmbeddedCluster
from tesela.edge.kube.port import NODES, RESOURCE_SLICES

FOUR = roster(*(h100(index) for index in range(4)))


def pool(gpus=FOUR):
    return render_pool(state(gpus), ApiAbilities())


class World:
    """A node in a cluster that applies what is planned, later every time by a minute."""

    def __init__(self):
        self.minute = 0
        self.kube = EmbeddedCluster(now=lambda: datetime(2026, 1, 1, 0, self.minute, tzinfo=UTC))
        node = self.kube.create(NODES, {"metadata": {"name": NODE}})
        self.node = NodeRef(name=NODE, uid=node["metadata"]["uid"])

    @property
    def slices(self):
        return sorted(self.kube.list(RESOURCE_SLICES).items, key=lambda one: one["metadata"]["name"])

    def plan(self, desired):
        return plan_publication(self.slices, desired, self.node)

    def apply(self, desired):
        actions = self.plan(desired)
        self.minute += 1
        for action in actions:
            match action:
                case DeleteSlice(name=name):
                    self.kube.delete(RESOURCE_SLICES, name)
                case ReplaceSlice(obj=obj):
                    self.kube.replace(RESOURCE_SLICES, obj)
                case CreateSlice(obj=obj):
                    self.kube.create(RESOURCE_SLICES, obj)
        return [type(action) for action in actions]

    @property
    def generations(self):
        return {one["spec"]["pool"]["generation"] for one in self.slices}


@pytest.fixture
def world():
    return World()


def tainted(*numbers):
    return roster(*(known(h100(index), present=index not in numbers) for index in range(4)))


def test_the_first_publication_creates_generation_1(world):
    kinds = world.apply(pool())

    assert (kinds, world.generations) == ([CreateSlice] * 3, {1})


def test_object_names_sort_as_the_slices_are_meant_to_be_tried(world):
    world.apply(pool())

    fronts = [one["metadata"]["name"].rpartition("-")[0] for one in world.slices]

    assert fronts == [f"0000{index}-gpu.nvidia.com-{NODE}" for index in range(3)]


def test_the_node_owns_its_slices(world):
    world.apply(pool())

    (owner,) = world.slices[0]["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": world.node.uid, "controller": True}


def test_nothing_is_written_when_nothing_changed(world):
    world.apply(pool())

    assert world.plan(pool()) == ()


def test_one_changed_slice_keeps_the_generation(world):
    world.apply(pool())

    kinds = world.apply(pool(tainted(0)))

    assert (kinds, world.generations) == ([ReplaceSlice], {1})


def test_two_changed_slices_raise_it_in_all(world):
    world.apply(pool())

    kinds = world.apply(pool(tainted(0, 3)))

    assert (kinds, world.generations) == ([ReplaceSlice] * 3, {2})


def test_a_new_slice_raises_it_and_keeps_the_objects(world):
    world.apply(pool(roster(h100(0), h100(1))))
    before = [one["metadata"]["uid"] for one in world.slices]

    kinds = world.apply(pool())

    after = [one["metadata"]["uid"] for one in world.slices]
    assert (kinds, world.generations, after[:2]) == ([ReplaceSlice, ReplaceSlice, CreateSlice], {2}, before)


def test_a_slice_too_many_is_deleted_first(world):
    world.apply(pool())

    kinds = world.apply(pool(roster(h100(0), h100(1))))

    assert (kinds, is_complete(world.slices, NODE)) == ([DeleteSlice, ReplaceSlice, ReplaceSlice], True)


def test_a_deleted_slice_is_created_again_in_its_place(world):
    world.apply(pool())
    world.kube.delete(RESOURCE_SLICES, world.slices[0]["metadata"]["name"])

    kinds = world.apply(pool())

    assert (kinds, is_complete(world.slices, NODE)) == ([CreateSlice, ReplaceSlice, ReplaceSlice], True)


def test_reordering_devices_is_a_change(world):
    world.apply(pool(roster(t4(0), t4(1))))

    moved = roster(replace(known(t4(0)), gpu=replace(t4(0), index=2)), t4(1))

    assert world.apply(pool(moved)) == [ReplaceSlice]


def test_the_time_of_an_unchanged_taint_is_kept(world):
    world.apply(pool(tainted(0)))

    world.apply(pool(tainted(0, 1)))

    times = {
        device["attributes"]["index"]["int"]: device["taints"][0]["timeAdded"]
        for one in world.slices
        for device in one["spec"].get("devices", ())
        if "taints" in device
    }
    assert times == {0: "2026-01-01T00:01:00Z", 1: "2026-01-01T00:02:00Z"}


def test_two_objects_of_one_index_become_one(world):
    world.apply(pool())
    twin = {**world.slices[1], "metadata": {"generateName": f"00001-gpu.nvidia.com-{NODE}-"}}
    world.kube.create(RESOURCE_SLICES, twin)

    world.apply(pool())

    assert (len(world.slices), is_complete(world.slices, NODE)) == (3, True)


def test_a_slice_of_another_pool_or_name_is_deleted(world):
    world.apply(pool())
    spec = {"driver": "gpu.nvidia.com", "nodeName": NODE, "pool": {"name": "other", "generation": 7}}
    spec["pool"]["resourceSliceCount"] = 1
    for name in ("00009-other", "by-hand"):
        world.kube.create(RESOURCE_SLICES, {"metadata": {"name": name}, "spec": spec})

    kinds = world.apply(pool())

    assert (kinds, world.generations) == ([DeleteSlice, DeleteSlice], {1})


def test_an_interrupted_publication_is_completed_in_place(world):
    world.apply(pool())
    for action in world.plan(pool(tainted(0, 3)))[:2]:
        world.kube.replace(RESOURCE_SLICES, action.obj)
    uids = [one["metadata"]["uid"] for one in world.slices]

    world.apply(pool(tainted(0, 3)))

    assert ([one["metadata"]["uid"] for one in world.slices], is_complete(world.slices, NODE)) == (uids, True)


def test_labels_that_others_put_on_a_slice_are_kept(world):
    world.apply(pool())
    first = world.slices[1]
    world.kube.replace(RESOURCE_SLICES, {**first, "metadata": {**first["metadata"], "labels": {"team": "a"}}})

    world.apply(pool(tainted(0)))

    assert world.slices[1]["metadata"]["labels"] == {"team": "a"}


def test_quantities_are_compared_by_value(world):
    world.apply(pool(roster(t4(0))))
    (one,) = world.slices
    one["spec"]["devices"][0]["capacity"]["memory"]["value"] = "15360Mi"
    world.kube.replace(RESOURCE_SLICES, one)

    assert world.plan(pool(roster(t4(0)))) == ()


def test_a_capacity_changed_by_hand_is_set_back(world):
    world.apply(pool(roster(t4(0))))
    (one,) = world.slices
    one["spec"]["devices"][0]["capacity"]["memory"]["value"] = "16Gi"
    world.kube.replace(RESOURCE_SLICES, one)

    assert world.apply(pool(roster(t4(0)))) == [ReplaceSlice]


@pytest.mark.parametrize("counts", [[], [2], [2, 2, 2], [1, 2]])
def test_a_pool_with_another_number_of_slices_is_not_complete(counts):
    slices = [
        {
            "metadata": {"name": f"{index:05x}-x"},
            "spec": {"pool": {"name": NODE, "generation": 1, "resourceSliceCount": n}},
        }
        for index, n in enumerate(counts)
    ]

    assert not is_complete(slices, NODE)
