from __future__ import annotations

import pytest
from health_world import GPU, tell
from tesela.core.errors import StateError
from tesela.core.health.model import ALL_HEALTHY
from tesela.core.health.observations import XidSeen
from tesela.edge.store.health import HealthStore
from tesela.edge.store.locks import FileLocks

ILL = tell(XidSeen(gpu_uuid=GPU, xid=48))
WORSE = tell(XidSeen(gpu_uuid=GPU, xid=119), health=ILL)


@pytest.fixture
def store(tmp_path):
    return HealthStore(tmp_path)


def test_a_node_without_a_file_is_healthy(store):
    assert store.read_health() == ALL_HEALTHY


def test_what_was_written_is_read_by_the_next_process(store, tmp_path):
    store.write_health(ILL)

    assert HealthStore(tmp_path).read_health() == ILL


def test_what_another_process_wrote_is_noticed(store, tmp_path):
    store.write_health(ILL)
    seen = [store.read_health()]

    HealthStore(tmp_path).write_health(WORSE)

    assert [*seen, store.read_health()] == [ILL, WORSE]


@pytest.mark.parametrize("damage", [b"", b"{", b"\x00" * 64, b'{"version": 3, "health": {}}'])
def test_a_damaged_file_is_named(store, damage):
    store.path.write_bytes(damage)

    with pytest.raises(StateError, match=r"health\.json"):
        store.read_health()


def test_a_damaged_file_is_kept(store):
    store.path.write_bytes(b"{")

    kept = store.set_aside()

    assert kept.read_bytes() == b"{"


def test_a_second_damaged_file_is_kept_beside_the_first(store):
    for damage in (b"{", b"["):
        store.path.write_bytes(damage)
        store.set_aside()

    assert sorted(path.name for path in store.path.with_name("aside").iterdir()) == ["health.1.json", "health.2.json"]


def test_health_is_on_disk_before_anybody_relies_on_it(tmp_path):
    synced = []
    store = HealthStore(tmp_path, fsync=synced.append)

    store.write_health(ILL)

    assert len(synced) == 4  # the copy and its folder, the file and its folder


def test_a_copy_holds_what_was_written_last(store, tmp_path):
    store.write_health(ILL)
    store.write_health(WORSE)
    store.path.write_bytes(b"{")

    assert HealthStore(tmp_path).read_copy() == WORSE


@pytest.mark.parametrize("damage", [b"", b"{", b'{"version": 3, "health": {}}'])
def test_a_copy_that_is_damaged_itself_is_none(store, damage):
    store.path.with_name("health.copy.json").write_bytes(damage)

    assert store.read_copy() is None


def test_health_has_a_lock_of_its_own(tmp_path):
    locks = FileLocks(tmp_path)
    first, second = locks.health_lock(), locks.health_lock()
    first.acquire(0)

    taken = second.acquire(0)
    first.release()

    assert not taken
