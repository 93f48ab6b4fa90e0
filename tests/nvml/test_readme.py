"""What nvml-sim/README.md has people type does what it says."""

from __future__ import annotations

import re
import subprocess

from nvml import library as lib
from nvml.needs import library
from nvml.simulator_process import served_apart

pytestmark = library("compiler", "go")

README = lib.ROOT / "nvml-sim" / "README.md"


def list_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)


def test_the_example_compiles_and_counts_the_gpus(tmp_path):
    (program,) = list_blocks("c")
    (tmp_path / "count.c").write_text(program)
    commands = "set -e\n" + "".join(list_blocks("sh")).replace("/tmp/", f"{tmp_path}/")
    with served_apart(tmp_path / "sim.sock", lib.MACHINE):
        done = subprocess.run(["sh", "-c", commands], cwd=lib.ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Success: 2 GPUs\n", "")


def test_every_source_is_in_the_reading_order():
    rows = "".join(re.findall(r"^\| `.*$", README.read_text(), re.MULTILINE))
    listed = {name.partition(".")[0] for name in re.findall(r"`([\w.]+)`", rows)}
    assert {file.stem for file in README.parent.iterdir() if file.suffix in {".c", ".h", ".def"}} - listed == set()
