"""Every file in the plugin's folder, broken in every way: the driver serves on, and the claims end and leave nothing.

A file that the program writes and that is not in `KINDS` fails the first test, so a new one is broken too.
"""

from __future__ import annotations

import fnmatch
import json

import pytest
from survive.program import Program
from tesela.core.errors import StartError
from tesela.core.model import Refusal
from tesela.edge.store.health import HealthStore
from tesela.edge.store.sweep import SweepStore
from tesela.plugin.recover import Recovery
from tesela.plugin.sweep import Sweeper

KINDS = {
    "record": "claims/*.json",
    "roster": "roster.json",
    "copy of roster": "roster.copy.json",
    "health": "health.json",
    "copy of health": "health.copy.json",
    "released": "released.json",
    "sweep": "sweep.json",
    "metadata": "dra-device-metadata/*/*/metadata.json",
    "lock": "locks/*.lock",
    "CDI file": "../../cdi/*.json",
}
KEPT_FOR_PEOPLE = {"aside/*.json"}
"""Nobody reads them."""
MADE_FOR_THE_TEST = {"released"}
"""Exists only while somebody asks for NVML to be closed."""


def truncated(data):
    return data[: len(data) // 2]


def emptied(data):
    return b""


def noise(data):
    return bytes(range(256)) * 4


def newer(data):
    """Another release's: the version is unknown, and so is what follows."""
    try:
        document = json.loads(data)
    except ValueError:  # a lock holds no document
        return data
    return json.dumps({**document, "version": 99, "added": {"by": "a later release"}}).encode()


def flipped(data):
    """One bit of a letter or digit in the middle: the file reads as well as before."""
    at = next((place for place in range(len(data) // 2, len(data)) if chr(data[place]).isalnum()), None)
    if at is None:  # a lock is mostly blanks
        return data
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGES = [truncated, emptied, noise, flipped, newer]
REFUSED = {("record", newer), ("roster", newer), ("released", newer)}
"""Not guessed at, which test_claim_damage, test_roster_repair and test_release_gpu tell."""
START_REFUSED = ("health", newer)
"""As the record and the roster are, below; a driver that runs has a successor, and goes on beside it."""
EVERY = [(kind, damage) for kind in KINDS for damage in DAMAGES if (kind, damage) not in REFUSED]
NAMES = [f"{kind}-{damage.__name__}" for kind, damage in EVERY]


@pytest.fixture
def program(short_path):
    """GPU 0 has a claim and a fault, and a sweep was made."""
    program = Program(short_path, "a100-40gb:mig*2")
    world = program.world
    Sweeper(world.node, Recovery(world.node), SweepStore(world.state_dir)).sweep()
    world.node.health._store.write_health(world.node.health.health)
    yield program
    program.close()
    world.machine.release()


@pytest.fixture
def ref(program):
    ref = program.world.claim("a", program.world.partition(0, "1g.5gb", 6))
    program.world.serve(ref)
    return ref


def break_files(world, kind, damage):
    if kind in MADE_FOR_THE_TEST:
        (world.state_dir / KINDS[kind]).write_text('{"version": 1, "released": {}}')
    paths = list(world.state_dir.glob(KINDS[kind]))
    for path in paths:
        path.write_bytes(damage(path.read_bytes()))
    assert paths, f"there is no {kind} to break"


def serve_and_end_both(world, ref):
    """Another claim is served, and both end: what was refused, and what is left then."""
    other = world.claim("b", world.partition(1, "1g.5gb", 0))
    answer = world.prepare(other)
    refused = [answer.message] if isinstance(answer, Refusal) else []
    return refused + [one for one in (world.unprepare(other), world.unprepare(ref)) if one], world.leftovers()


def read_state(world):
    """All that must outlive a start that is refused; locks are nobody's to keep."""
    return {
        path: path.read_bytes()
        for folder in (world.state_dir, world.cdi_dir)
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


def test_every_file_is_of_a_kind_that_is_broken_here(program, ref):
    program.start()
    written = [
        path.relative_to(program.world.state_dir).as_posix()
        for path in program.world.state_dir.rglob("*")
        if path.is_file() and not path.is_socket()
    ]

    known = {*KINDS.values(), *KEPT_FOR_PEOPLE}
    assert [path for path in written if not any(fnmatch.fnmatch(path, pattern) for pattern in known)] == []


@pytest.mark.parametrize(("kind", "damage"), [one for one in EVERY if one != START_REFUSED])
def test_a_driver_that_starts_serves_and_ends_all_claims(program, ref, kind, damage):
    break_files(program.world, kind, damage)
    program.start()

    assert serve_and_end_both(program.world, ref) == ([], [])


@pytest.mark.parametrize(("kind", "damage"), EVERY, ids=NAMES)
def test_a_driver_that_runs_serves_and_ends_all_claims(program, ref, kind, damage):
    break_files(program.world, kind, damage)

    assert serve_and_end_both(program.world, ref) == ([], [])


@pytest.mark.parametrize("kind", ["record", "roster", "health"])
def test_a_driver_does_not_start_over_what_a_newer_release_wrote_and_changes_nothing(program, ref, kind):
    break_files(program.world, kind, newer)
    before = read_state(program.world)

    with pytest.raises(StartError, match=r"in version 99 .* run the release of tesela that wrote it"):
        program.start()

    assert read_state(program.world) == before


@pytest.mark.parametrize("damage", [one for one in DAMAGES if one is not newer], ids=lambda damage: damage.__name__)
def test_broken_health_is_kept_for_people_and_goes_on_from_its_copy(program, ref, damage):
    break_files(program.world, "health", damage)
    broken = (program.world.state_dir / "health.json").read_bytes()
    program.start()

    kept = [path.read_bytes() for path in (program.world.state_dir / "aside").glob("health.*")]
    assert (kept, HealthStore(program.world.state_dir).read_health().findings) == ([broken], ())


@pytest.mark.parametrize("damage", [truncated, emptied, noise], ids=lambda damage: damage.__name__)
def test_a_broken_cdi_file_is_whole_after_the_next_look(program, ref, damage):
    """A container that restarts is refused by its runtime until then."""
    before = json.loads(program.world.cdi_path(ref).read_text())
    program.world.look()
    break_files(program.world, "CDI file", damage)
    program.world.look()

    assert json.loads(program.world.cdi_path(ref).read_text()) == before


@pytest.mark.parametrize("damage", [truncated, emptied, noise], ids=lambda damage: damage.__name__)
def test_a_broken_cdi_file_is_whole_after_a_start(program, ref, damage):
    before = json.loads(program.world.cdi_path(ref).read_text())
    break_files(program.world, "CDI file", damage)
    program.start()

    assert json.loads(program.world.cdi_path(ref).read_text()) == before
