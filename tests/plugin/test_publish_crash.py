"""The driver dies before and after each write of a publication: the next one ends with the right pool, nothing double.

Nor does the API ever hold, in between, a pool that looks complete to the scheduler and mixes the old with the new.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from gpu_models import h100, roster, t4
from node_tap import Crash
from slice_world import NODE, state
from tesela.core.model import Shape
from tesela.core.publication import is_complete
from tesela.core.shape import Policy, PolicyRule
from tesela.edge.embedded.cluster import EmbeddedCluster
from tesela.edge.kube.port import NODES, RESOURCE_SLICES
from tesela.edge.store.locks import FileLocks
from tesela.plugin.publish import Publisher, Round

NONE = roster()
TWO = roster(t4(0), h100(1))
SIXTEEN = roster(*(h100(index) for index in range(16)))
UPGRADED = replace(SIXTEEN, driver_version="590.10.01")
VERSIONS = ["v1.34.3", "v1.37.2"]
CHANGES = {
    "first": (None, SIXTEEN),
    "after an empty pool": (NONE, SIXTEEN),
    "every slice": (SIXTEEN, UPGRADED),
    "fewer": (SIXTEEN, TWO),
    "more": (TWO, SIXTEEN),
}
POLICY = Policy(rules=(PolicyRule(mode=Shape.ON_DEMAND, allowed_profiles=("2g.20gb", "3g.40gb")),))
"""Six devices a GPU: enough for several slices, and quick."""
WRITES = {"create", "replace", "delete"}


class Mortal:
    """Dies before or after the write with this number."""

    def __init__(self, inner, number, phase):
        self._inner, self._number, self._phase = inner, number, phase
        self._writes = itertools.count()

    def __getattr__(self, name):
        value = getattr(self._inner, name)
        return value if name not in WRITES else lambda *args, **kwargs: self._write(value, *args, **kwargs)

    def _write(self, call, *args, **kwargs):
        dies = next(self._writes) == self._number
        if dies and self._phase == "before":
            raise Crash
        result = call(*args, **kwargs)
        if dies:
            raise Crash
        return result


def make_cluster(version):
    cluster = EmbeddedCluster(server_version=version, gates=frozenset({"DRAPartitionableDevices", "DRADeviceTaints"}))
    cluster.create(NODES, {"metadata": {"name": NODE}})
    return cluster


def publish(kube, gpus, folder):
    """One round of a new process; the lock of one that died is free."""
    lock = FileLocks(folder).publisher_lock()
    try:
        return Publisher(kube=kube, node_name=NODE, state=lambda: state(gpus, policy=POLICY), lock=lock).publish()
    finally:
        lock.release()


def contents(cluster):
    """What the slices hold, in their order: each exactly once, so that nothing double passes for equal."""
    slices = sorted(cluster.list(RESOURCE_SLICES).items, key=lambda one: one["metadata"]["name"])
    return [(one["spec"].get("sharedCounters"), one["spec"].get("devices")) for one in slices]


def what_would_be(version, gpus, folder):
    cluster = make_cluster(version)
    if gpus is not None:
        publish(cluster, gpus, folder)
    return contents(cluster)


def looks_right(cluster, old, new):
    """Incomplete, so that nobody allocates from it; or the old pool; or the new one, as far as devices are offered.

    Where counters stand beside devices they are tried without them first.
    """
    found = contents(cluster)
    complete = is_complete(cluster.list(RESOURCE_SLICES).items, NODE)
    return not complete or found == old or all(one in new or not one[1] for one in found)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("phase", ["before", "after"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_death_at_any_write(tmp_path, version, phase, change):
    before, after = CHANGES[change]
    old, new = (what_would_be(version, gpus, tmp_path) for gpus in (before, after))
    for number in itertools.count():
        cluster = make_cluster(version)
        if before is not None:
            publish(cluster, before, tmp_path)
        try:
            publish(Mortal(cluster, number, phase), after, tmp_path)
        except Crash:
            assert looks_right(cluster, old, new), f"half a pool looks whole after write {number}"
        else:
            assert number > 1, "the change takes several writes"
            return

        publish(cluster, after, tmp_path)

        slices = cluster.list(RESOURCE_SLICES).items
        assert (is_complete(slices, NODE), contents(cluster)) == (True, new), f"after a death at write {number}"
        assert publish(cluster, after, tmp_path) is Round.UNCHANGED
