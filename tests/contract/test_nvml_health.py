"""The contract of the NVML port, third part: ECC, remapped rows and the recovery action."""

from __future__ import annotations

import pytest
from contract.nvml_backends import A100, BACKENDS, H100, at, code_of, open_initialised
from tesela.core.errors import NvmlError
from tesela.edge.nvml import codes
from tesela.edge.nvml.port import EccMode, RemappedRows
from tesela.edge.simulator.faults import Fault

DRAM = codes.MEMORY_LOCATION_DRAM
SRAM = codes.MEMORY_LOCATION_SRAM


@pytest.fixture(params=BACKENDS)
def world(request):
    with open_initialised(request.param) as world:
        yield world


@pytest.fixture
def gpu(world):
    return world.gpu(H100)


def add_errors(world, gpu, kind: int, count: int, *, location: int = DRAM, volatile_only: bool = False) -> None:
    def change(health):
        health.add_errors(kind, count, location=location, volatile_only=volatile_only)
        return 0

    world.machine.change_health(gpu, change)


def remap(world, gpu, *, correctable: int = 0, uncorrectable: int = 0, pending: bool = False, failure: bool = False):
    def change(health):
        health.remap(correctable=correctable, uncorrectable=uncorrectable, pending=pending, failure=failure)
        return 0

    world.machine.change_health(gpu, change)


def set_recovery_action(world, gpu, action: int) -> None:
    def change(health):
        health.recovery_action = action
        return 0

    world.machine.change_health(gpu, change)


def set_ecc_mode(world, gpu, mode: int) -> None:
    def change(health):
        health.set_ecc_mode(mode)
        return 0

    world.machine.change_health(gpu, change)


def read_totals(world, gpu) -> tuple[int, ...]:
    """Corrected volatile, corrected aggregate, uncorrected volatile, uncorrected aggregate."""
    kinds = [(uncorrected, aggregate) for uncorrected in (False, True) for aggregate in (False, True)]
    return tuple(world.nvml.get_total_ecc_errors(gpu, uncorrected=u, aggregate=a) for u, a in kinds)


# ECC


def test_ecc_is_on(world, gpu):
    assert world.nvml.get_ecc_mode(gpu) == EccMode(current=1, pending=1)


def test_an_ecc_mode_is_pending_until_the_reset(world, gpu):
    set_ecc_mode(world, gpu, 0)
    before = world.nvml.get_ecc_mode(gpu)
    world.machine.reset(gpu)
    assert (before, world.nvml.get_ecc_mode(gpu)) == (EccMode(current=1, pending=0), EccMode(current=0, pending=0))


def test_errors_are_counted_by_kind(world, gpu):
    add_errors(world, gpu, codes.ECC_CORRECTED, 5)
    add_errors(world, gpu, codes.ECC_UNCORRECTED, 2)
    assert read_totals(world, gpu) == (5, 5, 2, 2)


def test_a_total_is_of_all_memories(world, gpu):
    add_errors(world, gpu, codes.ECC_CORRECTED, 5)
    add_errors(world, gpu, codes.ECC_CORRECTED, 1, location=SRAM)
    assert read_totals(world, gpu) == (6, 6, 0, 0)


def test_errors_of_another_gpu_are_not_counted(world, gpu):
    add_errors(world, gpu, codes.ECC_CORRECTED, 5)
    assert read_totals(world, world.gpu(A100)) == (0, 0, 0, 0)


@pytest.mark.parametrize("event", ["reset", "reboot", "reload_driver"])
def test_volatile_counts_go_and_aggregate_ones_stay(world, gpu, event):
    add_errors(world, gpu, codes.ECC_UNCORRECTED, 2)
    restart = getattr(world.machine, event)
    restart(gpu) if event == "reset" else restart()
    assert read_totals(world, gpu) == (0, 0, 0, 2)


def test_no_errors_are_counted_without_ecc(world, gpu):
    set_ecc_mode(world, gpu, 0)
    world.machine.reset(gpu)
    with pytest.raises(NvmlError) as refused:
        world.nvml.get_total_ecc_errors(gpu, uncorrected=False, aggregate=True)
    assert refused.value.code == codes.NOT_SUPPORTED


# Remapped rows


def test_remapped_rows_are_counted_by_cause(world, gpu):
    remap(world, gpu, correctable=2, uncorrectable=1)
    rows = RemappedRows(correctable=2, uncorrectable=1, pending=False, failure=False)
    assert world.nvml.get_remapped_rows(gpu) == rows


def test_a_pending_row_comes_into_use_at_the_reset(world, gpu):
    remap(world, gpu, uncorrectable=1, pending=True)
    before = world.nvml.get_remapped_rows(gpu).pending
    world.machine.reset(gpu)
    assert (before, world.nvml.get_remapped_rows(gpu).pending) == (True, False)


def test_a_failed_remapping_stays_for_good(world, gpu):
    remap(world, gpu, failure=True)
    world.machine.reboot()
    assert world.nvml.get_remapped_rows(gpu).failure


def test_rows_cannot_be_asked_while_the_gpu_has_instances(world):
    world.nvml.create_gpu_instance(world.gpu(A100), 19, at(0, 1))
    assert code_of(world.nvml.get_remapped_rows, world.gpu(A100)) == codes.NOT_SUPPORTED


# Field values


def test_the_fields_say_what_the_calls_say(world, gpu):
    remap(world, gpu, correctable=3, uncorrectable=1, pending=True)
    set_recovery_action(world, gpu, 4)
    fields = (
        codes.FIELD_REMAPPED_CORRECTABLE,
        codes.FIELD_REMAPPED_UNCORRECTABLE,
        codes.FIELD_REMAPPED_PENDING,
        codes.FIELD_REMAPPED_FAILURE,
        codes.FIELD_RECOVERY_ACTION,
        codes.FIELD_REMAPPED_UNCORRECTABLE_INACTIVE,
    )
    assert world.nvml.get_field_values(gpu, fields) == (3, 1, 1, 0, 4, 1)


def test_with_instances_the_recovery_action_is_told_and_the_rows_are_not(world):
    gpu = world.gpu(A100)
    world.nvml.create_gpu_instance(gpu, 19, at(0, 1))
    fields = (codes.FIELD_REMAPPED_PENDING, codes.FIELD_RECOVERY_ACTION)
    assert world.nvml.get_field_values(gpu, fields) == (None, 0)


@pytest.mark.parametrize(("action", "left"), [(1, 0), (4, 0), (6, 0), (2, 2), (7, 7)])
def test_a_reset_does_what_a_reset_can(world, gpu, action, left):
    set_recovery_action(world, gpu, action)
    world.machine.reset(gpu)
    assert world.nvml.get_field_values(gpu, [codes.FIELD_RECOVERY_ACTION]) == (left,)


def test_a_reboot_does_everything(world, gpu):
    set_recovery_action(world, gpu, 7)
    world.machine.reboot()
    assert world.nvml.get_field_values(gpu, [codes.FIELD_RECOVERY_ACTION]) == (0,)


# All of them


QUESTIONS = ("get_ecc_mode", "get_remapped_rows", "get_supported_event_types")


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_lost_gpu_says_so(world, gpu, question):
    world.machine.lose(gpu)
    assert code_of(getattr(world.nvml, question), gpu) == codes.GPU_IS_LOST


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_unknown_gpu_is_not_found(world, question):
    assert code_of(getattr(world.nvml, question), "GPU-00000000-0000-0000-0000-000000000000") == codes.NOT_FOUND


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_driver_may_lack_the_function(world, gpu, question):
    world.machine.inject(Fault(function=question, code=codes.FUNCTION_NOT_FOUND))
    assert code_of(getattr(world.nvml, question), gpu) == codes.FUNCTION_NOT_FOUND
