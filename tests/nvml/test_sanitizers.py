"""The contract suite and NVIDIA's Go binding over the library with AddressSanitizer and UBSan, which find nothing.

A report ends the process that it is about, and is kept in a file. The C programs of the fuzzing run sanitized in
test_fuzz_library.py; leaks are looked for there, because Python and Go leave theirs to the end.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from nvml.fuzz import programs
from nvml.needs import processes
from nvml.strangers.host import open_host
from nvml.strangers.programs import build_walker
from polling import until

pytestmark = processes("fuzz", "compiler", "make", "binutils", "go")


@pytest.fixture(scope="module")
def walker():
    programs.build("every_call", "sanitized")  # and with it the library
    return build_walker()


@pytest.fixture
def host(tmp_path):
    with open_host(tmp_path, "a100-40gb:mig*2,h100-80gb") as host:
        host.environment |= programs.preloaded(reports=tmp_path / "report")
        yield host
        assert list_reports(tmp_path) == []


def list_reports(folder):
    return [report.read_text() for report in folder.glob("report.*")]


def list_loaded(folder) -> set[str]:
    """Every build of the library that a process was started with or loaded, by the loader's own word."""
    begun = re.compile(r"calling init: (\S*/libnvidia-ml\.so\S*)")
    return {path for log in folder.iterdir() for path in begun.findall(log.read_text(errors="replace"))}


@pytest.mark.timeout(600)
def test_the_contract_suite_is_clean(walker, tmp_path):
    suite = ["tests/contract", *map(str, sorted((programs.ROOT / "tests" / "nvml").glob("test_library*.py")))]
    loads = tmp_path / "loads"
    loads.mkdir()
    # The outer run's options would have the inner one write over its report.
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**outer, **programs.preloaded(reports=tmp_path / "report")}
    environment |= {"LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": str(loads / "log")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "library", *suite]
    done = subprocess.run(command, cwd=programs.ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, list_reports(tmp_path)) == (0, []), done.stdout
    assert list_loaded(loads) == {str(programs.LIBRARIES["sanitized"] / "libnvidia-ml.so.1")}


def test_the_walker_uses_the_sanitized_library(host, walker):
    host.environment["LD_DEBUG"] = "libs"
    done = host.run(walker)
    assert f"calling init: {programs.LIBRARIES['sanitized']}/libnvidia-ml.so.1" in done.stderr


def test_the_walker_walks_creates_and_destroys_clean(host, walker):
    assert host.get_output(walker) != ""


def test_many_walkers_at_once_are_clean(host, walker):
    assert host.get_output(walker, "-threads", "8", "-rounds", "6") != ""


def test_the_walker_is_clean_when_the_simulator_dies(host, walker):
    client = subprocess.Popen(
        [walker, "-threads", "4", "-rounds", "100000"],
        env=host.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert until(lambda: any(gpu["instances"] for gpu in host.list_gpus()), timeout_s=30)
    host.kill()
    assert b"Sanitizer" not in client.communicate(timeout=60)[1]
