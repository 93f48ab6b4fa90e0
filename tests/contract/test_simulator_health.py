"""The health of a simulated GPU beyond the port: locations of errors, the histogram, and the admin operations."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tesela.core.errors import DocumentError
from tesela.edge.nvml import codes
from tesela.edge.simulator.admin import perform_admin
from tesela.edge.simulator.events import Registration
from tesela.edge.simulator.health import GpuHealth
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.models import list_models, load_model
from tesela.edge.simulator.refused import Refused

CORRECTED, UNCORRECTED = codes.ECC_CORRECTED, codes.ECC_UNCORRECTED
VOLATILE, AGGREGATE = codes.ECC_VOLATILE, codes.ECC_AGGREGATE
DRAM, SRAM = codes.MEMORY_LOCATION_DRAM, codes.MEMORY_LOCATION_SRAM


@pytest.fixture
def health():
    return GpuHealth()


@pytest.fixture
def machine():
    return build_machine("h100-80gb:mig,a100-40gb:mig")


def perform(machine, **document: object) -> None:
    perform_admin(machine, json.dumps(document))


def code_of(call, *arguments) -> int:
    with pytest.raises(Refused) as refused:
        call(*arguments)
    return refused.value.code


# Counters


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((2, 0, DRAM), codes.INVALID_ARGUMENT),
        ((0, 2, DRAM), codes.INVALID_ARGUMENT),
        ((0, 0, 8), codes.INVALID_ARGUMENT),
        ((0, 0, -1), codes.INVALID_ARGUMENT),
        ((0, 0, 1), codes.NOT_SUPPORTED),  # the L2 cache, which has been part of SRAM since Turing
    ],
)
def test_counters_that_are_not_there(health, arguments, code):
    assert code_of(health.memory_error_count, *arguments) == code


def test_errors_are_counted_where_they_struck(health):
    health.add_errors(CORRECTED, 3, location=SRAM)
    assert [health.memory_error_count(CORRECTED, AGGREGATE, where) for where in (DRAM, SRAM)] == [0, 3]


def test_the_sram_status_tells_kinds_and_lives_apart(health):
    health.add_errors(CORRECTED, 3, location=SRAM)
    health.add_errors(UNCORRECTED, 2, location=SRAM)
    health.reset()
    health.add_errors(UNCORRECTED, 1, location=SRAM)
    assert health.sram_ecc_status() == (0, 3, 3, 0, 1, 0, 0, 0, 0, 0, 3, 0)


@pytest.mark.parametrize(("counter", "left"), [(VOLATILE, (0, 2)), (AGGREGATE, (2, 0))])
def test_counts_can_be_cleared(health, counter, left):
    health.add_errors(UNCORRECTED, 2, location=DRAM)
    health.clear_ecc_counts(counter)
    assert (health.count(UNCORRECTED, VOLATILE), health.count(UNCORRECTED, AGGREGATE)) == left


@given(rows=st.integers(0, 5000), failure=st.booleans(), model=st.sampled_from(list_models()))
@settings(deadline=None)
def test_every_bank_is_in_the_histogram_once(rows, failure, model):
    model, health = load_model(model), GpuHealth()
    everything = sum(health.row_remapper_histogram(model))
    health.remap(correctable=rows, uncorrectable=0, pending=False, failure=failure)
    assert sum(health.row_remapper_histogram(model)) == everything


# Operations


def test_ecc_errors_are_counted_and_told(machine):
    since = machine.events.cursor
    perform(machine, op="ecc", gpu="0", uncorrected=2, corrected=1)
    wanted = Registration(gpu_uuid=machine.gpu("0").uuid, mask=0x3, since=since)
    first = machine.events.wait([wanted], 0)
    assert (first.event_type, machine.gpu("0").health.uncorrected_volatile) == (codes.EVENT_SINGLE_BIT_ECC, 2)


def test_volatile_errors_alone(machine):
    perform(machine, op="ecc", gpu="0", corrected=5, volatile_only=True)
    health = machine.gpu("0").health
    assert (health.corrected_volatile, health.corrected_aggregate) == (5, 0)


def test_remapped_rows_add_up(machine):
    perform(machine, op="remap", gpu="0", uncorrectable=1)
    perform(machine, op="remap", gpu="0", uncorrectable=2, pending=True)
    health = machine.gpu("0").health
    assert (health.remapped_uncorrectable, health.remap_pending) == (3, True)


def test_a_recovery_action_is_shown_by_name(machine):
    perform(machine, op="recovery-action", gpu="0", action=4)
    assert machine.gpu("0").health.recovery_action == "DRAIN_AND_RESET"


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"op": "xid", "gpu": "0", "xid": 0}, "outside 1..999"),
        ({"op": "xid", "gpu": "0", "xid": 94, "gi": 3}, "has no GPU instance 3"),
        ({"op": "xid", "gpu": "0", "xid": 94, "ci": 0}, "is an id within a GPU instance"),
        ({"op": "ecc", "gpu": "0"}, "nothing to do"),
        ({"op": "ecc", "gpu": "0", "corrected": -1}, "outside 0..1000000000"),
        ({"op": "ecc", "gpu": "0", "mode": "maybe"}, "neither on nor off"),
        ({"op": "remap", "gpu": "0"}, "nothing to do"),
        ({"op": "remap", "gpu": "0", "uncorrectable": 513}, "512 spare rows, and this one has 512 left"),
        ({"op": "recovery-action", "gpu": "0", "action": 8}, "it has 0 NONE, 1 GPU_RESET"),
        ({"op": "busy", "gpu": "0", "pid": 0}, "outside 1..2147483647"),
        ({"op": "busy", "gpu": "0", "pid": 2147483647, "real": True}, "no process 2147483647 lives"),
    ],
)
def test_what_cannot_be_done_is_refused(machine, document, problem):
    with pytest.raises(DocumentError, match=problem.replace(".", r"\.")):
        perform(machine, **document)


def test_spare_rows_are_used_up(machine):
    perform(machine, op="remap", gpu="0", correctable=500)
    with pytest.raises(DocumentError, match="this one has 12 left"):
        perform(machine, op="remap", gpu="0", uncorrectable=13)


def test_nobody_can_use_a_lost_gpu(machine):
    machine.lose("0")
    with pytest.raises(DocumentError, match="has fallen off the bus"):
        perform(machine, op="busy", gpu="0", pid=7)


def test_a_real_process_is_called_as_the_kernel_calls_it(machine):
    perform(machine, op="busy", gpu="0", pid=os.getpid(), real=True)
    (process,) = machine.gpu("0").processes
    perform(machine, op="idle", gpu="0", pid=os.getpid())
    assert (process.name, process.real) == (Path("/proc/self/comm").read_text().strip(), True)


def test_without_ecc_no_errors_are_counted(machine):
    perform(machine, op="ecc", gpu="0", mode="off")
    machine.reset("0")
    with pytest.raises(DocumentError, match="ECC is off"):
        perform(machine, op="ecc", gpu="0", corrected=1)
