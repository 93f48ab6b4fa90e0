"""NVIDIA's checkpoint when a node is taken over: its releases and damage, a crash in between, who may be at work."""

from __future__ import annotations

import dataclasses
import json
import socket
import threading
from uuid import uuid4

import pytest
from moved_world import Moved
from tesela.core.adoption import Fate, TheirPartitions
from tesela.core.errors import ApiUnavailable, StartError, TryAgain
from tesela.edge.store.checkpoint import CheckpointFile
from tesela.plugin.adopt import Adopter, look_around, preview


@pytest.fixture
def moved(world):
    return Moved(world)


def test_an_api_that_does_not_tell_of_slices_puts_the_adoption_off(moved):
    _ref, live = moved.partition("a", 0, "1g.5gb", 4)
    moved.world.foreign.add((live.gpu_uuid, live.gi_id))
    checkpoint = moved.theirs.write(moved.world.state_dir)

    class Away:
        def list(self, *_args, **_more):
            raise ApiUnavailable(503, "ServiceUnavailable", "the API is away")

    around = dataclasses.replace(look_around(moved.world.node), kube=Away())
    adopter = Adopter(moved.world.node, CheckpointFile(moved.world.state_dir), around)
    with pytest.raises(TryAgain, match="--adopted-partitions"):
        adopter.adopt()

    assert checkpoint.exists()


def test_after_a_boot_nothing_is_adopted_and_the_file_s_new_name_says_why(moved):
    ref = moved.whole("a", 2)
    moved.theirs.boot_id = "another"

    moved.adopt(ref)

    kept = [path.name for path in moved.world.state_dir.glob("nvidia-checkpoint.*")]
    assert (moved.world.record(ref), kept) == (None, ["nvidia-checkpoint.before-boot.1.json"])


@pytest.mark.parametrize("twins", [True, False])
def test_a_checkpoint_of_an_old_release_is_adopted_by_what_lives(moved, twins):
    ref, _ = moved.partition("a", 0, "1g.5gb", 4)
    moved.theirs.boot_id = ""
    moved.theirs.write(moved.world.state_dir, twins=twins)

    moved.adopt(ref, write=False)

    assert moved.world.record(ref).adopted


def test_the_checkpoint_s_bytes_are_kept_under_a_name_that_says_so(moved):
    ref = moved.whole("a", 2)

    report = moved.adopt(ref)

    kept = moved.world.state_dir / "nvidia-checkpoint.adopted.1.json"
    assert (report.kept_as, kept.read_bytes(), (moved.world.state_dir / "checkpoint.json").exists()) == (
        str(kept),
        moved.theirs.render(),
        False,
    )


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"{}", b'{"v2":3}'])
def test_a_damaged_checkpoint_stays_and_nothing_is_adopted(moved, damage):
    ref, live = moved.partition("a", 0, "1g.5gb", 4)
    moved.world.foreign.add((live.gpu_uuid, live.gi_id))
    path = moved.world.state_dir / "checkpoint.json"
    path.write_bytes(damage)

    report = moved.adopt(ref, write=False)

    assert (report, path.read_bytes(), moved.world.record(ref)) == (None, damage, None)


def test_a_bit_that_flipped_in_a_uuid_is_damage(moved, caplog):
    ref, live = moved.partition("a", 0, "1g.5gb", 4)
    moved.world.foreign.add((live.gpu_uuid, live.gi_id))
    path = moved.theirs.write(moved.world.state_dir)
    flipped = chr(ord(live.mig_uuid[-1]) ^ 1)
    path.write_text(path.read_text().replace(live.mig_uuid, live.mig_uuid[:-1] + flipped))

    moved.adopt(ref, write=False)

    assert "checkpoint.json: its checksum does not match" in caplog.text


def test_a_file_that_somebody_laid_out_anew_counts_as_it_reads(moved):
    ref = moved.whole("a", 2)
    path = moved.theirs.write(moved.world.state_dir)
    path.write_text(json.dumps(json.loads(path.read_text()), indent=1))

    moved.adopt(ref, write=False)

    assert moved.world.record(ref).adopted


def test_an_entry_that_cannot_be_read_harms_its_claim_alone(moved):
    ref = moved.whole("a", 2)
    moved.theirs.claims[str(uuid4())] = {
        "checkpointState": "PrepareCompleted",
        "status": {},
        "preparedDevices": [{"devices": [{"tpu": {}}]}],
    }

    report = moved.adopt(ref)

    assert sorted(one.fate for one in report.claims) == [Fate.ADOPTED, Fate.LEFT]


def test_a_key_that_is_a_path_is_left_and_the_others_are_adopted(moved):
    ref = moved.whole("a", 2)
    moved.theirs.give_gpu("../../etc/x", "gpu-3", moved.world.uuid(3))

    report = moved.adopt(ref)

    assert [(one.claim.uid, one.fate) for one in report.claims] == [
        ("../../etc/x", Fate.LEFT),
        (ref.uid, Fate.ADOPTED),
    ]


def test_two_starts_do_not_adopt_at_once(moved):
    moved.whole("a", 2)
    moved.theirs.write(moved.world.state_dir)

    with CheckpointFile(moved.world.state_dir).hold(), pytest.raises(TryAgain, match="another start of this driver"):
        Adopter(moved.world.node, CheckpointFile(moved.world.state_dir), look_around(moved.world.node)).adopt()


def test_a_folder_in_its_place_is_damage(moved):
    ref = moved.world.claim("a", "gpu-2")
    (moved.world.state_dir / "checkpoint.json").mkdir()

    assert moved.adopt(ref, write=False) is None


def test_an_api_that_is_away_is_asked_once_for_the_names_of_pods(moved):
    refs = (moved.whole("a", 2), moved.whole("b", 3))
    moved.theirs.write(moved.world.state_dir)
    asked = []

    class Away:
        def get(self, *what):
            asked.append(what)
            raise ApiUnavailable(0, "", "the API is away")

    around = dataclasses.replace(look_around(moved.world.node, list_names=lambda: refs), kube=Away())
    Adopter(moved.world.node, CheckpointFile(moved.world.state_dir), around).adopt()

    assert len(asked) == 1


def test_a_file_of_another_node_is_left(moved):
    ref = moved.whole("a", 2)
    moved.theirs.claims[ref.uid]["preparedDevices"][0]["devices"][0]["gpu"]["device"]["PoolName"] = "node-2"

    report = moved.adopt(ref)

    assert "another node's" in report.claims[0].remarks[0]


def test_a_start_ends_while_their_driver_serves_the_kubelet(moved, short_path):
    moved.theirs.write(short_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(short_path / "dra.sock"))
        server.listen()
        adopter = Adopter(moved.world.node, CheckpointFile(short_path), look_around(moved.world.node))

        with pytest.raises(StartError, match="NVIDIA's driver serves"):
            adopter.adopt()


def test_and_while_it_prepares_something(moved):
    moved.theirs.write(moved.world.state_dir)
    file = CheckpointFile(moved.world.state_dir)
    (moved.world.state_dir / "pu.lock").touch()
    held, done = threading.Event(), threading.Event()

    def prepare():
        with file.hold():
            held.set()
            done.wait(10)

    thread = threading.Thread(target=prepare)
    thread.start()
    held.wait(10)
    try:
        with pytest.raises(TryAgain, match="is at work"):
            Adopter(moved.world.node, file, look_around(moved.world.node)).adopt()
    finally:
        done.set()
        thread.join()


def test_a_crash_between_two_records_is_gone_on_from(moved):
    refs = [moved.partition(name, 0, "1g.5gb", start)[0] for name, start in (("a", 4), ("b", 5), ("c", 6))]
    moved.theirs.write(moved.world.state_dir)

    class Crash(BaseException):
        pass

    class Dying:
        """Records that end the process at the second write."""

        def __init__(self, records):
            self.records, self.writes = records, 0

        def __getattr__(self, name):
            return getattr(self.records, name)

        def write(self, record, **more):
            self.writes += 1
            if self.writes == 2:
                raise Crash
            self.records.write(record, **more)

    node = dataclasses.replace(moved.world.node, records=Dying(moved.world.node.records))
    around = look_around(node, list_names=lambda: tuple(refs), partitions=TheirPartitions.ON_DEMAND)
    with pytest.raises(Crash):
        Adopter(node, CheckpointFile(moved.world.state_dir), around).adopt()

    moved.adopt(*refs, write=False)

    assert [moved.world.record(ref).adopted for ref in refs] == [True, True, True]


def test_a_preview_tells_the_same_and_writes_nothing(moved):
    ref, _ = moved.partition("a", 0, "1g.5gb", 4)
    half = moved.world.claim("half", "gpu-2")
    moved.theirs.begin(half.uid, "gpu-2")
    moved.theirs.write(moved.world.state_dir)
    around = look_around(moved.world.node, list_names=lambda: (ref,), partitions=TheirPartitions.ON_DEMAND)

    ahead = preview(around, CheckpointFile(moved.world.state_dir), at_s=1)
    untouched = moved.world.record(ref) is None
    done = moved.adopt(ref, write=False)

    assert (untouched, ahead.claims) == (True, done.claims)


def test_the_report_is_kept_for_people(moved):
    ref = moved.whole("a", 2)

    report = moved.adopt(ref)

    assert CheckpointFile(moved.world.state_dir).read_report() == report
