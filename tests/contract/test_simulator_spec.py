"""The text that describes a simulated machine, and the machines nobody could build."""

from __future__ import annotations

import re

import pytest
from tesela.core.errors import DocumentError, NvmlError
from tesela.core.model import Placement
from tesela.edge.nvml import codes
from tesela.edge.simulator.machine import Machine, build_machine
from tesela.edge.simulator.nvml import SimulatedNvml
from tesela.edge.simulator.spec import GpuSpec, MachineSpec, parse_machine_spec


def gpus(text: str):
    return build_machine(text).snapshot().gpus


def test_a_count():
    assert [g.model.model for g in parse_machine_spec("a100-40gb*3").gpus] == ["a100-40gb"] * 3


def test_mixed_models_keep_their_order():
    assert [g.model for g in gpus("a100-40gb,h100-80gb*2,a30")] == ["a100-40gb", "h100-80gb", "h100-80gb", "a30-24gb"]


def test_mig_is_on_where_asked():
    assert [g.mig_current for g in gpus("a100-40gb:mig,a100-40gb")] == [1, 0]


def test_options_go_before_the_count():
    assert [g.numa_node for g in gpus("h100-80gb:numa=3:mig*2")] == [3, 3]


def test_the_first_half_is_on_numa_node_0():
    assert [g.numa_node for g in gpus("a100-40gb*4")] == [0, 0, 1, 1]


def test_two_gpus_share_a_pcie_root():
    assert [g.pcie_root for g in gpus("a100-40gb*4")] == ["pci0000:04", "pci0000:04", "pci0000:13", "pci0000:13"]


def test_topology_can_be_unknown():
    (gpu,) = gpus("a100-40gb:numa=unknown:pcie-root=unknown")
    assert (gpu.numa_node, gpu.pcie_root) == (None, None)


def test_a_pcie_root_can_be_chosen():
    assert gpus("a100-40gb:pcie-root=pci0000-64")[0].pcie_root == "pci0000:64"


@pytest.mark.parametrize("fact", ["uuid", "pci_bus_id", "minor"])
def test_32_gpus_are_told_apart(fact):
    assert len({getattr(g, fact) for g in gpus("a100-40gb*32")}) == 32


def test_bus_ids_are_pci_addresses():
    assert all(re.fullmatch(r"00000000:[0-9A-F]{2}:00\.0", g.pci_bus_id) for g in gpus("a100-40gb*32"))


def test_gpus_are_in_pci_order():
    ids = [g.pci_bus_id for g in gpus("a100-40gb*32")]
    assert ids == sorted(ids)


def test_equal_texts_build_equal_uuids():
    assert [g.uuid for g in gpus("a100-40gb*2")] == [g.uuid for g in gpus("a100-40gb*2")]


def test_another_seed_builds_other_uuids():
    assert gpus("a100-40gb,seed=1")[0].uuid != gpus("a100-40gb,seed=2")[0].uuid


def test_another_boot_has_another_id():
    assert build_machine("a30").snapshot().boot_id != build_machine("a30").snapshot().boot_id


def test_the_driver_version_can_be_chosen():
    assert build_machine("a30,driver=550.54.15").snapshot().driver_version == "550.54.15"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "cannot read"),
        ("a100-40gb,", "cannot read"),
        ("A100", "cannot read"),
        ("a100", "no GPU model 'a100'; known are a100-40gb"),
        ("a100-40gb*0", "asks for 0 GPUs"),
        ("a100-40gb*33", "asks for 33 GPUs"),
        ("a100-40gb*20,a30*13", "33 GPUs; a machine has 1 to 32"),
        ("a100-40gb*9999999", "cannot read"),
        ("seed=1", "0 GPUs"),
        ("a30,seed=x", "no number"),
        ("a30,seed=1,seed=2", "given twice"),
        ("a30,driver=new", "no driver version"),
        ("a30:gfx", "unknown option 'gfx'"),
        ("a30:mig=1", "unknown option"),
        ("a30:numa=", "no number"),
        ("a30:numa=64", "outside 0..63"),
        ("a30:pcie-root=64", "no root"),
        ("a30:fabric", "no NVSwitch fabric"),
        ("h100-80gb:vgpu:mig", "a vGPU has neither"),
    ],
)
def test_what_nobody_could_build_is_refused(text, problem):
    with pytest.raises(DocumentError, match=re.escape(problem)):
        parse_machine_spec(text)


@pytest.mark.parametrize("code", [codes.INVALID_ARGUMENT, codes.INSUFFICIENT_RESOURCES])
def test_the_answer_to_an_illegal_start_can_be_switched(code):
    model = parse_machine_spec("a30:mig").gpus[0].model
    nvml = SimulatedNvml(Machine(MachineSpec(gpus=(GpuSpec(model=model, mig=True),), illegal_start_code=code)))
    nvml.init()
    with pytest.raises(NvmlError) as refused:
        nvml.create_gpu_instance(nvml.get_uuid(0), 5, Placement(start=1, size=2))
    assert refused.value.code == code


def test_no_driver_answers_anything_else_to_an_illegal_start():
    model = parse_machine_spec("a30").gpus[0].model
    with pytest.raises(DocumentError, match="illegal_start_code"):
        Machine(MachineSpec(gpus=(GpuSpec(model=model),), illegal_start_code=codes.NOT_FOUND))
