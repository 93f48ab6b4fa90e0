"""Our allocator gives the verdicts of the scheduler's own: on generated worlds, and on hand-written ones.

The genuine allocator is the Go module that the scheduler uses; `allocator_compare/scheduler/main.go` runs it. The seed
is fixed so that a run can be repeated, and printed; TESELA_WORLDS_SEED sets another.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from e2e.allocator_compare.compare import compare, outcome, shares
from e2e.allocator_compare.expressions import EXPRESSIONS, as_world, our_outcome, their_outcome
from e2e.allocator_compare.faults import FAULTS, Fault
from e2e.allocator_compare.generated import make_world
from e2e.allocator_compare.genuine import build, judge_all
from e2e.allocator_compare.hand_written import load_worlds, summarize
from e2e.allocator_compare.judge import judge
from e2e.harness import progress

pytestmark = pytest.mark.timeout(1500)

SEED = int(os.environ.get("TESELA_WORLDS_SEED", "20370"))
WORLDS = 205  # of which 200 must be compared: the search through a few has no end
TESTS = Path(__file__).resolve().parents[1]
DRIVER = TESTS.parent / "driver"
HAND_WRITTEN = load_worlds()


@pytest.fixture(scope="module")
def program() -> Path:
    return build()


@pytest.fixture(scope="module")
def worlds() -> list[dict[str, Any]]:
    progress.say(f"{WORLDS} generated worlds of seed {SEED}; TESELA_WORLDS_SEED sets another")
    return [make_world(SEED, index) for index in range(WORLDS)]


@pytest.fixture(scope="module")
def theirs(program: Path, worlds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return judge_all(program, worlds)


def test_200_generated_worlds_agree_device_by_device(worlds, theirs):
    ours = [judge(world) for world in worlds]

    result = compare(worlds, ours, theirs)

    assert (result.differences, result.agree >= 200) == ([], True)


def test_30_to_70_percent_of_worlds_allocate(theirs):
    part = shares(map(outcome, theirs), WORLDS)["allocations"]

    assert 0.3 <= part <= 0.7


def test_every_feature_is_in_a_tenth_of_the_worlds():
    many = [make_world(SEED, index) for index in range(2000)]

    parts = shares((feature for world in many for feature in world["features"]), len(many))

    assert {name: part for name, part in parts.items() if part < 0.1} == {}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_in_the_allocator_is_found(fault: Fault, worlds, theirs, tmp_path):
    faulty = _judge_with(fault, worlds, tmp_path)

    assert compare(worlds, faulty, theirs).differences


@pytest.mark.parametrize("world", HAND_WRITTEN, ids=lambda world: world["name"])
def test_hand_written_world_is_decided_as_expected_by_us(world):
    assert summarize(judge(world), world["expect"]) == world["expect"]


@pytest.mark.parametrize("world", HAND_WRITTEN, ids=lambda world: world["name"])
def test_hand_written_world_is_decided_alike_by_the_genuine_allocator(world, program):
    result = compare([world], [judge(world)], judge_all(program, [world]))

    assert (result.differences, result.left_out) == ([], 0)


def test_selectors_have_the_outcome_of_the_genuine_engine_or_none(program):
    verdicts = judge_all(program, [as_world(expression) for expression in EXPRESSIONS])

    ours = {expression: our_outcome(expression) for expression in EXPRESSIONS}
    theirs = {
        expression: "undecided" if ours[expression] == "undecided" else their_outcome(verdict)
        for expression, verdict in zip(EXPRESSIONS, verdicts, strict=True)
    }

    assert ours == theirs


def _judge_with(fault: Fault, worlds: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """The verdicts of a copy of the core with the fault planted, in a process of its own."""
    shutil.copytree(
        DRIVER / "tesela" / "core", folder / "tesela" / "core", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(DRIVER / "tesela" / "__init__.py", folder / "tesela" / "__init__.py")
    module = folder / "tesela" / "core" / "allocator" / fault.module
    source = module.read_text()
    assert source.count(fault.before) == 1, f"{fault.module} no longer has {fault.before!r} once"
    module.write_text(source.replace(fault.before, fault.after))
    done = subprocess.run(
        [sys.executable, "-m", "e2e.allocator_compare.judge"],
        input="".join(json.dumps(world) + "\n" for world in worlds),
        env={**os.environ, "PYTHONPATH": f"{folder}:{TESTS}", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]
