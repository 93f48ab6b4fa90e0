"""The contract of the NVML port, fifth part: what no GPU could have is an error of NVML's, and harms nothing."""

from __future__ import annotations

import pytest
from contract.nvml_backends import A100, BACKENDS, H100, at, code_of, open_initialised
from tesela.edge.nvml import codes

REFUSED = {codes.INVALID_ARGUMENT, codes.NOT_FOUND, codes.NOT_SUPPORTED}
NUMBERS = (-1, 18, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**64, -(2**31) - 1, -(2**63))
"""2**32 + 1 is 1 to whoever keeps the lower half only: the id of an instance that lives in these tests."""
NAMES = (
    "",
    "GPU-",
    "GPU-00000000-0000-0000-0000-000000000000",
    "0",
    "gpu\0",
    "GPU-ü",
    "GPU-\ud800",
    "x" * 5000,
)


@pytest.fixture(params=BACKENDS)
def world(request):
    with open_initialised(request.param) as world:
        yield world


@pytest.fixture
def made(world):
    """GPU instance 1 of the A100, with a compute instance."""
    instance = world.nvml.create_gpu_instance(world.gpu(A100), 9, at(0, 4))
    return world.nvml.create_compute_instance(world.gpu(A100), instance.gi_id, 2)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    "question",
    [
        "get_gpu_instance_profile_info",
        "get_gpu_instance_possible_placements",
        "get_gpu_instance_remaining_capacity",
        "get_gpu_instances",
        "get_gpu_instance_by_id",
        "destroy_gpu_instance",
    ],
)
def test_a_number_that_names_nothing(world, made, question, number):
    assert code_of(getattr(world.nvml, question), world.gpu(A100), number) in REFUSED


@pytest.mark.parametrize("number", NUMBERS)
def test_a_compute_instance_that_is_not_there(world, made, number):
    answers = {
        code_of(world.nvml.destroy_compute_instance, world.gpu(A100), made.gi_id, number),
        code_of(world.nvml.destroy_compute_instance, world.gpu(A100), number, made.ci_id),
        code_of(world.nvml.get_compute_instances, world.gpu(A100), made.gi_id, number),
        code_of(world.nvml.create_compute_instance, world.gpu(A100), number, 2),
        code_of(world.nvml.get_compute_instance_profile_info, world.gpu(A100), made.gi_id, number),
    }
    assert answers <= REFUSED


@pytest.mark.parametrize("number", NUMBERS)
def test_a_mode_that_is_none(world, number):
    assert code_of(world.nvml.set_mig_mode, world.gpu(H100), number) == codes.INVALID_ARGUMENT


@pytest.mark.parametrize("number", NUMBERS)
def test_an_index_that_is_none(world, number):
    assert code_of(world.nvml.get_uuid, number) == codes.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "placement", [at(-1, 4), at(2**32, 4), at(0, 2**32 + 4), at(0, 0), at(0, -4), at(2**64, 2**64)]
)
def test_a_placement_that_is_nowhere(world, placement):
    assert code_of(world.nvml.create_gpu_instance, world.gpu(A100), 9, placement) == codes.INVALID_ARGUMENT


def test_nothing_was_harmed(world, made):
    for number in NUMBERS:
        code_of(world.nvml.destroy_compute_instance, world.gpu(A100), made.gi_id, number)
    assert world.nvml.get_compute_instances(world.gpu(A100), made.gi_id, 2) == (made,)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
@pytest.mark.parametrize("question", ["get_name", "get_mig_mode", "get_remapped_rows"])
def test_a_name_that_is_no_gpus(world, name, question):
    assert code_of(getattr(world.nvml, question), name) in {codes.NOT_FOUND, codes.INVALID_ARGUMENT}


def test_a_name_does_not_end_at_a_zero_byte(world):
    assert code_of(world.nvml.get_name, f"{world.gpu(A100)}\0 and more") in {codes.NOT_FOUND, codes.INVALID_ARGUMENT}


def test_a_mig_device_is_no_gpu(world, made):
    assert code_of(world.nvml.get_name, made.mig_uuid) == codes.NOT_FOUND


@pytest.mark.parametrize("fields", [(-1,), (2**32,), (2**64, 1)])
def test_a_field_that_cannot_be(world, fields):
    assert code_of(world.nvml.get_field_values, world.gpu(A100), fields) == codes.INVALID_ARGUMENT
