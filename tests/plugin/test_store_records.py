"""Record files: whole or not at all, one claim's damage is that claim's alone."""

from __future__ import annotations

import os
import resource
import signal
from dataclasses import replace

import pytest
from tesela.core.errors import ClaimRefused, StateError, TryAgain
from tesela.core.model import ClaimRef
from tesela.core.record import ClaimRecord, ClaimState
from tesela.core.roster import EMPTY_ROSTER
from tesela.edge.store.records import RecordStore
from tesela.edge.store.roster import RosterStore


def record(uid: str, state: ClaimState = ClaimState.PREPARED) -> ClaimRecord:
    return ClaimRecord(claim=ClaimRef(namespace="ai", name="train", uid=uid), state=state, devices=())


@pytest.fixture
def store(tmp_path):
    return RecordStore(tmp_path / "state")


def files_in(store: RecordStore) -> set[str]:
    return {path.name for path in store.path("x").parent.iterdir()}


def test_a_written_record_is_read_back(store):
    store.write(record("uid-1"))

    assert store.read("uid-1") == record("uid-1")


def test_a_claim_never_seen_has_no_record(store):
    assert store.read("uid-1") is None


def test_reading_makes_no_folder(store, tmp_path):
    store.list()

    assert not (tmp_path / "state").exists()


def test_a_write_leaves_no_temporary(store):
    store.write(record("uid-1"))

    assert files_in(store) == {"uid-1.json"}


def test_records_are_listed_by_uid(store):
    for uid in ("c", "a", "b"):
        store.write(record(uid))

    assert [r.claim.uid for r in store.list().records] == ["a", "b", "c"]


def test_a_listing_shows_every_change_at_once(store):
    for state in (ClaimState.PREPARING, ClaimState.PREPARED, ClaimState.UNPREPARING) * 20:
        store.write(record("uid-1", state))
        assert store.list().records == (record("uid-1", state),)


def test_a_listing_shows_what_another_process_wrote(store, tmp_path):
    store.write(record("uid-1", ClaimState.PREPARING))
    store.list()

    RecordStore(tmp_path / "state").write(record("uid-1"))

    assert store.list().records == (record("uid-1"),)


def test_an_old_record_is_not_parsed_again(store):
    store.write(record("uid-1"))
    os.utime(store.path("uid-1"), ns=(0, 0))

    first = store.list().records[0]

    assert store.list().records[0] is first


def is_unpreparing(store):
    """Read and listed."""
    return [store.read("uid-1").state, store.list().records[0].state] == [ClaimState.UNPREPARING] * 2


def test_a_prepared_record_that_is_marked_is_unpreparing(store):
    store.write(record("uid-1"))
    store.list()

    store.mark_unpreparing("uid-1")

    assert is_unpreparing(store)


def test_a_record_that_is_half_done_is_no_other_for_a_mark(store):
    store.write(record("uid-1", ClaimState.PREPARING))
    store.mark_unpreparing("uid-1")

    assert store.read("uid-1").state is ClaimState.PREPARING


def test_a_mark_ends_with_the_next_write(store):
    store.write(record("uid-1"))
    store.mark_unpreparing("uid-1")

    store.write(record("uid-1"))

    assert store.read("uid-1").state is ClaimState.PREPARED


@pytest.mark.parametrize("mode", [0o400, 0o644, 0o777, 0o1777])
def test_another_mode_is_no_mark(store, mode):
    store.write(record("uid-1"))
    store.path("uid-1").chmod(mode)

    assert store.read("uid-1").state is ClaimState.PREPARED


def test_a_mark_takes_no_space(store, request):
    store.write(record("uid-1"))
    request.getfixturevalue("full_disk")

    store.mark_unpreparing("uid-1")

    assert is_unpreparing(store)


def test_what_is_not_there_is_not_marked(store):
    with pytest.raises(StateError, match=r"cannot mark .*uid-1.json: No such file"):
        store.mark_unpreparing("uid-1")


def test_a_removed_record_is_gone(store):
    store.write(record("uid-1"))

    removed = store.remove("uid-1")

    assert (removed, store.read("uid-1"), store.list().records) == (True, None, ())


def test_removing_twice_is_no_error(store):
    assert store.remove("uid-1") is False


def test_removing_takes_a_crashed_write_along(store):
    store.write(record("uid-1"))
    (store.path("uid-1").parent / ".uid-1.json.tmp").write_bytes(b"half")

    store.remove("uid-1")

    assert files_in(store) == set()


def test_a_damaged_file_is_listed_apart_from_the_others(store):
    store.write(record("good"))
    store.write(record("bad"))
    store.path("bad").write_bytes(b'{"version": 1')

    listing = store.list()

    assert (listing.records, [u.uid for u in listing.unreadable]) == ((record("good"),), ["bad"])


def test_a_damaged_file_is_named_by_its_path(store):
    store.write(record("bad"))
    store.path("bad").write_bytes(b"")

    with pytest.raises(StateError, match=r"claims/bad\.json: the claim's record is unreadable"):
        store.read("bad")


def test_a_record_under_another_claims_name_is_damage(store):
    store.write(record("uid-1"))
    store.path("uid-1").rename(store.path("uid-2"))

    with pytest.raises(StateError, match=r"belongs to claim ai/train \(uid-1\)"):
        store.read("uid-2")


def test_setting_aside_keeps_every_damaged_version(store):
    asides = []
    for damage in (b"first", b"second"):
        store.write(record("uid-1"))
        store.path("uid-1").write_bytes(damage)
        asides.append(store.set_aside("uid-1"))

    assert [(a.name, a.read_bytes()) for a in asides] == [("uid-1.1.json", b"first"), ("uid-1.2.json", b"second")]


def test_a_record_set_aside_stays_damaged_until_it_is_written_anew(store):
    """Without its file the claim would be unknown, and its partitions nobody's."""
    store.write(record("uid-1"))
    store.path("uid-1").write_bytes(b"damage")

    aside = store.set_aside("uid-1")
    between = store.list().unreadable[0].uid
    store.write(record("uid-1"))

    assert (between, store.list().unreadable, aside.read_bytes()) == ("uid-1", (), b"damage")


def test_there_may_be_nothing_to_set_aside(store):
    assert store.set_aside("uid-1") is None


@pytest.mark.parametrize("uid", ["", "../evil", "a/b", ".hidden", "a" * 129, "uid\n", "uid\0"])
def test_a_uid_that_is_a_path_is_refused(store, uid):
    with pytest.raises(ClaimRefused, match="is not a UID"):
        store.read(uid)


@pytest.fixture
def full_disk():
    """A file size limit cuts a write off in the middle, as a full disk does, with another errno."""
    old_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    old_handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, old_limit[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, old_limit)
    signal.signal(signal.SIGXFSZ, old_handler)


def test_a_write_that_fails_half_way_leaves_the_old_record(store, request):
    store.write(record("uid-1", ClaimState.PREPARING))
    request.getfixturevalue("full_disk")

    with pytest.raises(StateError, match=r"cannot write .*/uid-1\.json: File too large"):
        store.write(record("uid-1"))

    assert (store.read("uid-1"), files_in(store)) == (record("uid-1", ClaimState.PREPARING), {"uid-1.json"})


def test_a_full_disk_means_later(store, full_device):
    with pytest.raises(TryAgain, match=r"cannot write .*: No space left on device: free space on that file system"):
        store.write(replace(record("uid-1"), pod_claim_name="gpu"))


@pytest.fixture
def full_device(store):
    """The temporary name leads to /dev/full, which takes no byte."""
    folder = store.path("x").parent
    folder.mkdir(parents=True)
    (folder / ".uid-1.json.tmp").symlink_to("/dev/full")


def test_a_folder_that_is_a_file_is_said(store, tmp_path):
    (tmp_path / "state").write_bytes(b"")

    with pytest.raises(StateError, match="cannot write"):
        store.write(record("uid-1"))


def test_an_unwritten_roster_is_empty(tmp_path):
    assert RosterStore(tmp_path).read_roster() == EMPTY_ROSTER


def test_a_roster_is_read_back(tmp_path):
    roster = replace(EMPTY_ROSTER, boot_id="boot")
    RosterStore(tmp_path).write_roster(roster)

    assert RosterStore(tmp_path).read_roster() == roster


def test_a_copy_of_the_roster_holds_what_was_written_last(tmp_path):
    store = RosterStore(tmp_path)
    rosters = [replace(EMPTY_ROSTER, boot_id=boot_id) for boot_id in ("b1", "b2")]
    for roster in rosters:
        store.write_roster(roster)
    store.path.write_text("{")

    assert RosterStore(tmp_path).read_copy() == rosters[-1]


def test_a_copy_of_the_roster_is_never_older_than_the_roster(tmp_path):
    """A write that fails between the two leaves the newer one in the copy."""
    store = RosterStore(tmp_path)
    store.path.mkdir(parents=True)

    with pytest.raises(StateError):
        store.write_roster(replace(EMPTY_ROSTER, boot_id="b1"))

    assert store.read_copy() == replace(EMPTY_ROSTER, boot_id="b1")


@pytest.mark.parametrize("damage", [b"", b"{", b'{"version": 9}'])
def test_a_copy_of_the_roster_that_is_damaged_itself_is_none(tmp_path, damage):
    store = RosterStore(tmp_path)
    store.write_roster(EMPTY_ROSTER)
    store.path.with_name("roster.copy.json").write_bytes(damage)

    assert store.read_copy() is None


def test_a_damaged_roster_is_never_taken_for_an_empty_one(tmp_path):
    (tmp_path / "roster.json").write_bytes(b"")

    with pytest.raises(StateError, match=r"roster\.json: the roster of GPUs is unreadable"):
        RosterStore(tmp_path).read_roster()


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_an_unreadable_record_and_holds_up_no_other(store, make):
    store.write(record("uid-1"))
    make(store.path("uid-2"))

    listing = store.list()

    assert ([one.claim.uid for one in listing.records], [one.uid for one in listing.unreadable]) == (
        ["uid-1"],
        ["uid-2"],
    )
