"""What a machine lacks is named in a line each: before anything is built, and by a test that is run without it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from nvml import needs

ROOT = needs.ROOT


def run_python(*words: str, path: str) -> subprocess.CompletedProcess[str]:
    """A Python whose PATH is `path`; pytest's own variables are the outer run's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CC"))}
    environment = {**kept, "PATH": path, "PYTHONPATH": str(ROOT / "tests")}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_all_that_is_missing_is_named_at_once(tmp_path):
    done = run_python("-m", "nvml.needs", path=str(tmp_path))
    named = {line.split()[4].strip(",;") for line in done.stderr.splitlines()}
    assert (done.returncode, named >= {"a", "make", "nm", "Go"}) == (1, True)


def test_a_test_without_what_it_needs_fails_with_a_line_for_each(tmp_path):
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "library", "tests/nvml/test_header.py"]
    done = run_python(*options, "-k", "declared_as_in_the_header", path=str(tmp_path))
    failure = done.stdout.partition(" ERROR at setup of ")[2].partition("short test summary")[0].splitlines()[1:-1]
    assert {line.partition(": ")[0] for line in failure} == {"missing on this machine"}


@pytest.mark.parametrize("name", ["compiler", "go", "binutils", "make"])
def test_what_is_missing_is_named_with_where_to_get_it(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (line,) = needs.list_missing(name)
    assert ("Debian's package" in line) or ("go.dev" in line)
