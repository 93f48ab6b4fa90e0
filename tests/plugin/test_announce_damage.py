"""Every damaged file of ours that is set aside is told to the cluster, in one sentence that names the file kept."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from node_world import POOL
from polling import until
from tesela.core.model import ClaimRef
from tesela.edge.kube.port import EVENTS, NODES
from tesela.edge.store.records import RecordStore
from tesela.edge.store.released import ReleasedStore
from tesela.edge.store.roster import RosterStore
from tesela.plugin.release_gpu import ReleaseFiles
from tesela.plugin.roster_repair import repair_roster
from watched_program import Watched


@dataclass
class Heard:
    """An `Announces` that writes down what it hears."""

    aside: list[tuple[str, ClaimRef | None]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def announce_set_aside(self, sentence, claim=None):
        self.aside.append((sentence, claim))

    def announce_unreadable(self, sentence):
        self.unreadable.append(sentence)


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def ref(world):
    """A claim that holds a partition, with one flipped byte in its record."""
    ref = world.claim("a", world.partition(0, "1g.5gb", 6))
    world.serve(ref)
    data = bytearray(world.record_path(ref).read_bytes())
    data[len(data) // 2] ^= 0xFF
    world.record_path(ref).write_bytes(data)
    return ref


def test_a_damaged_record_is_told_at_a_start(world, ref, heard):
    world.start(announcer=heard)
    ((sentence, claim),) = heard.aside
    assert (f"aside/{ref.uid}.1.json" in sentence, claim) == (True, ref)


def test_a_damaged_record_is_told_when_its_claim_is_prepared_again(world, ref, heard):
    node = world.build(announcer=heard)
    node.lookout.refresh()
    world.prepare(ref, node)
    assert [claim for _, claim in heard.aside] == [ref]


def test_a_record_that_was_rebuilt_is_told_once(world, ref, heard):
    world.start(announcer=heard)
    world.start(announcer=heard)
    assert len(heard.aside) == 1


def test_a_record_that_nothing_is_left_of_is_told(world, ref, heard):
    world.cdi_path(ref).unlink()
    world.start(announcer=heard)
    (sentence,) = heard.unreadable
    assert (str(world.record_path(ref)) in sentence, heard.aside) == (True, [])


def test_a_damaged_roster_is_told(world, heard):
    world.kube.create(NODES, {"metadata": {"name": POOL}})
    world.serve(world.claim("a", world.partition(0, "1g.5gb", 6)))
    store = RosterStore(world.state_dir)
    store.path.write_text("{")
    locks, records = world.node.locks, RecordStore(world.state_dir)
    repair_roster(store, records, locks, world.kube, POOL, announcer=heard)
    ((sentence, claim),) = heard.aside
    assert ("aside/roster.1.json" in sentence, claim) == (True, None)


def test_a_roster_that_is_damaged_under_a_driver_is_told(world, heard):
    node = world.build(announcer=heard)
    node.lookout.refresh()
    RosterStore(world.state_dir).path.write_text("{")
    node.lookout.refresh()
    assert ["aside/roster.1.json" in sentence for sentence, _ in heard.aside] == [True]


def test_damaged_health_is_told(world, heard):
    node = world.build(announcer=heard)
    path = world.state_dir / "health.json"
    path.write_text("{")
    node.health.observe()
    assert [str(path.parent / "aside") in sentence for sentence, _ in heard.aside] == [True]


def test_a_damaged_request_to_release_nvml_is_told_and_counted(short_path):
    node = Watched(short_path, "a100-40gb*1")
    node.start()
    (node.config.state_dir / "released.json").write_text("{")
    try:
        assert node.becomes("tesela_records_set_aside_total", (), 1)
        assert until(lambda: [one["reason"] for one in node.world.kube.list(EVENTS).items] == ["RecordSetAside"], 20)
    finally:
        node.close()


def test_what_was_set_aside_before_anybody_listened_is_told_then(world):
    store = ReleasedStore(world.state_dir)
    store.path.write_text("{")
    files = ReleaseFiles(store, world.node.locks, world.kube, POOL)
    files.read()
    told = []
    files.listen(told.append)
    assert ["aside/released.1.json" in sentence for sentence in told] == [True]
