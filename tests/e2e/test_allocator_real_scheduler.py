"""Our allocator decides the hand-written worlds as the real kube-scheduler does on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from e2e.allocator_compare.compare import compare
from e2e.allocator_compare.hand_written import load_worlds
from e2e.allocator_compare.judge import judge
from e2e.allocator_compare.real_scheduler import RealScheduler, place
from e2e.harness.cluster import Cluster
from e2e.harness.pods import Namespace

UNFIT = {
    "access: a toleration of everything opens all": "scheduled, but evicted before anybody can read the allocation: "
    "the controller that evicts for NoExecute taints counts only tolerations that name this effect",
}
"""Worlds that cannot be shown on a real cluster, and why."""
NAMESPACE = "worlds"
WORLDS = [
    place(world, f"w{number:02}-", NAMESPACE)
    for number, world in enumerate(load_worlds())
    if world["name"] not in UNFIT
]


@pytest.fixture(scope="module")
def scheduler(cluster: Cluster) -> Iterator[RealScheduler]:
    namespace = Namespace(cluster, NAMESPACE)
    namespace.create({"resource.kubernetes.io/admin-access": "true"})
    scheduler = RealScheduler(cluster.kube, NAMESPACE)
    try:
        scheduler.decide(WORLDS)
        yield scheduler
    finally:
        namespace.clear()
        scheduler.close()
        namespace.remove()


def test_worlds_that_are_left_out_exist() -> None:
    assert UNFIT.keys() <= {world["name"] for world in load_worlds()}


def test_at_least_50_worlds_are_decided_by_the_real_scheduler() -> None:
    assert len(WORLDS) >= 50


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world["name"])
def test_a_world_is_decided_alike_by_the_real_scheduler(world: dict[str, Any], scheduler: RealScheduler) -> None:
    assert compare([world], [judge(world)], [scheduler.wait_verdict(world)]).differences == []
