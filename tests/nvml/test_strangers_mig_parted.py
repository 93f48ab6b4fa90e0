"""NVIDIA's nvidia-mig-parted applies layouts to simulated GPUs, and agrees with the simulator on what is there.

It runs in a mount namespace of its own, whose /proc/modules and /sys/bus/pci are those of the stand-in host. There is
no nvidia-smi, which it would run to reset a GPU whose new MIG mode is pending.
"""

from __future__ import annotations

import subprocess

import pytest
import yaml
from nvml.needs import processes
from nvml.strangers.host import Host, open_host
from nvml.strangers.programs import build_mig_parted
from tesela.core.model import Placement

pytestmark = processes("strangers", "compiler", "go", "root")

A100_MIXED = {"3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 2}
H100_MIXED = {"1g.10gb+me": 1, "2g.20gb": 1, "4g.40gb": 1}
"""No 1g.10gb: on a host of two models nvidia-mig-parted takes a name for the profile of the first GPU that has it, and
the A100's 1g.10gb is another NVML profile than the H100's."""
LAYOUTS = {
    "mixed": [
        {"devices": [0, 1], "mig-enabled": True, "mig-devices": A100_MIXED},
        {"devices": [2], "mig-enabled": True, "mig-devices": H100_MIXED},
    ],
    "one-each": [
        {"devices": [0], "mig-enabled": True, "mig-devices": {"7g.40gb": 1}},
        {"devices": [1], "mig-enabled": True, "mig-devices": {"4g.20gb": 1, "1g.5gb+me": 1}},
        {"devices": [2], "mig-enabled": False, "mig-devices": {}},
    ],
    "too-much": [{"devices": [0], "mig-enabled": True, "mig-devices": {"3g.20gb": 3}}],
    "all-disabled": [{"devices": "all", "mig-enabled": False, "mig-devices": {}}],
}


@pytest.fixture
def host(tmp_path):
    """Two A100 with MIG mode on, an H100 with it off, whose mode changes without a reset."""
    with open_host(tmp_path, "a100-40gb:mig*2,h100-80gb") as host:
        yield host


@pytest.fixture(scope="module")
def program():
    return build_mig_parted()


@pytest.fixture
def parted(host, program, tmp_path):
    """Runs nvidia-mig-parted with a file of the layouts above."""
    layouts = tmp_path / "layouts.yaml"
    layouts.write_text(yaml.safe_dump({"version": "v1", "mig-configs": LAYOUTS}))

    def run(verb: str, layout: str, *options: str) -> subprocess.CompletedProcess[str]:
        return host.run(*host.in_host_tree(program, verb, "-f", layouts, "-c", layout, *options))

    return run


def export(host: Host, program) -> list[dict]:
    done = host.run(*host.in_host_tree(program, "export"))
    assert (done.returncode, done.stderr) == (0, "")
    return yaml.safe_load(done.stdout)["mig-configs"]["current"]


def test_it_exports_what_is_there(host, program):
    host.create_partition(1, 9, 2, Placement(start=4, size=4))
    seen = [(entry["devices"], entry["mig-enabled"], entry["mig-devices"]) for entry in export(host, program)]
    assert seen == [([0], True, {}), ([1], True, {"3g.20gb": 1}), ("all", False, {})]


def test_it_tells_gpu_models_apart_by_their_pci_ids(host, program):
    filters = [entry["device-filter"] for entry in export(host, program)]
    assert filters == ["0x20B010DE", "0x233010DE"]


def test_it_applies_a_mixed_layout_to_gpus_of_two_models(host, parted):
    done = parted("apply", "mixed")
    assert (done.returncode, done.stderr, host.list_layouts()) == (0, "", [A100_MIXED, A100_MIXED, H100_MIXED])


def test_it_finds_applied_what_it_applied(parted):
    parted("apply", "mixed")
    assert parted("assert", "mixed").returncode == 0


def test_it_finds_missing_what_is_not_applied(parted):
    assert parted("assert", "mixed").returncode == 1


def test_what_it_exports_is_what_it_applied(host, parted, program):
    parted("apply", "mixed")
    assert [entry["mig-devices"] for entry in export(host, program)] == [A100_MIXED, H100_MIXED]


def test_it_changes_one_layout_into_another_and_takes_mig_mode_off(host, parted):
    parted("apply", "mixed")
    done = parted("apply", "one-each")
    layouts = [{"7g.40gb": 1}, {"4g.20gb": 1, "1g.5gb+me": 1}, {"off": 1}]
    assert (done.returncode, host.list_layouts()) == (0, layouts)


def test_a_layout_that_does_not_fit_leaves_nothing_behind(host, parted):
    done = parted("apply", "too-much")
    assert (done.returncode, host.list_layouts()) == (1, [{}, {}, {"off": 1}])


def test_a_partition_in_use_is_not_taken_away(host, parted):
    host.create_partition(0, 9, 2, Placement(start=4, size=4))
    instance = host.list_gpus()[0]["instances"][0]
    host.tesela("busy", "0", "4711", "--gi", str(instance["gi_id"]), "--ci", "0")
    done = parted("apply", "one-each")
    assert (done.returncode, host.list_layouts()[0]) == (1, {"3g.20gb": 1})


def test_the_mode_of_an_a100_changes_with_the_reset(host, parted):
    parted("apply", "all-disabled", "--skip-reset", "--mode-only")
    pending = [gpu["mig_current"] for gpu in host.list_gpus()]
    for gpu in ("0", "1"):
        host.tesela("reset", gpu)
    assert (pending, parted("assert", "all-disabled").returncode) == ([1, 1, 0], 0)


def test_it_asks_for_nothing_that_is_not_there(host, parted):
    parted("apply", "mixed")
    assert host.list_unknown() == []
