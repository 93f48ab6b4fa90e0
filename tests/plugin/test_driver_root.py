"""Where the GPU driver's files are sought below its root, and that the binding gets the library that was found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import PurePosixPath

import pytest
from contract.nvml_backends import serve
from nvml.needs import LIBRARY
from tesela.cli.sim import SOCKET_VARIABLE
from tesela.core.errors import NvmlError
from tesela.edge.backends import open_nvml
from tesela.edge.host.driver_root import LIBRARY_FOLDERS, NVML_LIBRARY, find_library, find_program, resolve_below
from tesela.edge.nvml import codes
from tesela.edge.simulator.machine import build_machine


def put(root, path, data=b"a library"):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


def link(root, path, target):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).symlink_to(target)


@pytest.mark.parametrize("folder", LIBRARY_FOLDERS)
def test_a_library_is_found_in_every_folder_that_is_searched(tmp_path, folder):
    file = put(tmp_path, f"{folder}/{NVML_LIBRARY}")

    assert find_library(tmp_path, NVML_LIBRARY) == file


def test_a_program_is_found(tmp_path):
    program = put(tmp_path, "usr/local/bin/nvidia-smi")

    assert find_program(tmp_path, "nvidia-smi") == program


def test_nothing_is_found_in_an_empty_root(tmp_path):
    assert find_library(tmp_path, NVML_LIBRARY) is None


def test_links_of_the_host_lead_on_below_its_root(tmp_path):
    """As Debian's packages lay the library out: absolute links, by way of /etc/alternatives."""
    link(tmp_path, f"usr/lib/x86_64-linux-gnu/{NVML_LIBRARY}", "/etc/alternatives/nvidia--nvml")
    link(tmp_path, "etc/alternatives/nvidia--nvml", f"/usr/lib/x86_64-linux-gnu/nvidia/current/{NVML_LIBRARY}")
    link(tmp_path, f"usr/lib/x86_64-linux-gnu/nvidia/current/{NVML_LIBRARY}", "libnvidia-ml.so.580.95.05")
    file = put(tmp_path, "usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.580.95.05")

    assert find_library(tmp_path, NVML_LIBRARY) == file


def test_a_folder_that_is_a_link_leads_on_too(tmp_path):
    link(tmp_path, "lib64", "/usr/other")
    file = put(tmp_path, f"usr/other/{NVML_LIBRARY}")

    assert find_library(tmp_path, NVML_LIBRARY) == file


def test_a_link_does_not_lead_out_of_the_root(tmp_path):
    root = tmp_path / "root"
    link(root, "a", "../../../../b")

    assert resolve_below(root, PurePosixPath("/a")) == root / "b"


def test_links_in_a_circle_are_no_library(tmp_path):
    link(tmp_path, f"usr/lib64/{NVML_LIBRARY}", NVML_LIBRARY)

    assert find_library(tmp_path, NVML_LIBRARY) is None


def test_links_in_a_circle_end(tmp_path):
    link(tmp_path, "a", "a")

    with pytest.raises(OSError, match="Too many levels"):
        resolve_below(tmp_path, PurePosixPath("a"))


# The binding


def open_below(root):
    with pytest.raises(NvmlError) as refused:
        open_nvml("real", root).init()
    return refused.value.code, refused.value.text


def test_a_root_without_the_library_says_where_it_was_sought(tmp_path):
    code, text = open_below(tmp_path)

    assert (code, text.startswith(f"there is no {NVML_LIBRARY} in usr/lib64, ")) == (codes.LIBRARY_NOT_FOUND, True)


def test_a_root_that_is_not_there_is_named(tmp_path):
    _code, text = open_below(tmp_path / "none")

    assert text.startswith(f"{tmp_path}/none is no folder here, ")


def test_a_file_that_is_no_library_is_named(tmp_path):
    file = put(tmp_path, f"usr/lib64/{NVML_LIBRARY}")

    code, text = open_below(tmp_path)

    assert (code, text.startswith(f"{file} cannot be loaded: ")) == (codes.LIBRARY_NOT_FOUND, True)


_OPENED = """
import sys
from pathlib import Path
from tesela.edge.backends import open_library_file, open_nvml

root = Path(sys.argv[1])
nvml, library = open_nvml("real", root), open_library_file("real", root)
nvml.init()
print(nvml.get_device_count())
library.note()
print(sorted({line.split()[5] for line in Path("/proc/self/maps").read_text().splitlines() if "libnvidia-ml" in line}))
nvml.shutdown()
nvml.init()
print(library.describe_change(), library.describe_change())
folder = root / "usr/lib64"
(folder / "libnvidia-ml.so.2").write_bytes(b"newer")
(folder / "libnvidia-ml.so.1").unlink()
(folder / "libnvidia-ml.so.1").symlink_to("/usr/lib64/libnvidia-ml.so.2")
print(library.describe_change(), library.describe_change())
nvml.shutdown()
nvml.init()
print(nvml.get_device_count())
"""


@pytest.mark.library
def test_the_library_below_the_root_is_the_only_one_and_its_replacement_is_noticed(tmp_path):
    file = put(tmp_path, "usr/lib64/libnvidia-ml.so.580.95.05", LIBRARY.read_bytes())
    link(tmp_path, f"usr/lib64/{NVML_LIBRARY}", "/usr/lib64/libnvidia-ml.so.580.95.05")

    with serve(build_machine("h100-80gb*2")) as server:
        environment = os.environ | {SOCKET_VARIABLE: str(server.path), "LD_LIBRARY_PATH": ""}
        command = [sys.executable, "-c", _OPENED, tmp_path]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.splitlines() == [
        "2",
        f"['{file}']",
        " ",
        f" {file} was replaced since this process loaded it",
        "2",
    ]
