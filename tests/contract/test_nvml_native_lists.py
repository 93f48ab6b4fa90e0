"""Lists of instances through the native backend, while another client destroys what is listed, over nvml-sim/."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from contract.nvml_backends import World, at, code_of, open_world
from contract.older_library import as_older
from tesela.core.errors import NvmlError
from tesela.edge.nvml import codes
from tesela.edge.nvml.port import ComputeInstanceInfo

pytestmark = pytest.mark.library
THREE_G, ONE_G, WHOLE_ONE_G = 9, 19, 0


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def world(stack):
    world = stack.enter_context(open_world("library", "a100-40gb:mig"))
    world.nvml.init()
    return world


@pytest.fixture
def made(world) -> tuple[ComputeInstanceInfo, ...]:
    """Two compute instances, in the order of their MIG devices' indexes."""
    instances = [world.nvml.create_gpu_instance(world.gpu(), ONE_G, at(start, 1)) for start in (0, 1)]
    return tuple(world.nvml.create_compute_instance(world.gpu(), i.gi_id, WHOLE_ONE_G) for i in instances)


def list_compute_instances(world: World, gi_id: int) -> tuple[ComputeInstanceInfo, ...]:
    return world.nvml.get_compute_instances(world.gpu(), gi_id, WHOLE_ONE_G)


def destroy_after(world: World, function: str, gi_id: int, ci_id: int | None = None) -> None:
    """Another client destroys an instance as soon as `function` has been answered."""

    def destroy(called: str, phase: str) -> None:
        if (called, phase) == (function, "after"):
            world.machine.on_call.remove(destroy)
            if ci_id is None:
                world.machine.with_gpu(world.gpu(), lambda gpu: gpu.destroy_gpu_instance(gi_id))
            else:
                world.machine.with_gpu(world.gpu(), lambda gpu: gpu.destroy_compute_instance(gi_id, ci_id))

    world.machine.on_call.append(destroy)


def test_an_instance_that_goes_while_they_are_listed_is_left_out(world):
    first, second = (world.nvml.create_gpu_instance(world.gpu(), THREE_G, at(start, 4)) for start in (0, 4))
    destroy_after(world, "get_gpu_instances", first.gi_id)
    assert world.nvml.get_gpu_instances(world.gpu(), THREE_G) == (second,)


def test_a_gpu_that_goes_while_its_instances_are_listed_is_no_empty_gpu(world):
    world.nvml.create_gpu_instance(world.gpu(), THREE_G, at(4, 4))
    world.machine.on_call.append(
        lambda function, phase: (
            (function, phase) == ("get_gpu_instances", "after") and world.machine.lose(world.gpu(), absent=True)
        )
    )
    assert code_of(world.nvml.get_gpu_instances, world.gpu(), THREE_G) == codes.NOT_FOUND


@pytest.mark.parametrize("last_answer", ["get_compute_instances", "nvmlComputeInstanceGetInfo_v2"])
def test_a_compute_instance_that_goes_while_they_are_listed_is_left_out(world, made, stack, last_answer):
    stack.enter_context(as_older(parent_in_info=True))
    destroy_after(world, last_answer, made[0].gi_id, made[0].ci_id)
    assert list_compute_instances(world, made[0].gi_id) == ()


def test_a_living_compute_instance_without_a_mig_device_is_not_left_out(world, made, stack):
    refused = {"nvmlDeviceGetMigDeviceHandleByIndex": codes.NOT_FOUND}
    stack.enter_context(as_older(parent_in_info=True, refused=refused))
    with pytest.raises(
        NvmlError, match=f"no MIG device for compute instance 0 of GPU instance {made[0].gi_id}"
    ) as error:
        list_compute_instances(world, made[0].gi_id)
    assert error.value.code == codes.UNKNOWN


def test_a_mig_device_that_goes_during_the_walk_is_passed_over(world, made, stack):
    stack.enter_context(as_older(parent_in_info=True, refused_once={"nvmlDeviceGetGpuInstanceId": codes.NOT_FOUND}))
    assert list_compute_instances(world, made[1].gi_id) == (made[1],)


def test_a_mig_device_that_cannot_be_named_at_once_is_found_by_a_walk(world, made, stack):
    stack.enter_context(as_older(refused_once={"nvmlDeviceGetUUID": codes.NOT_FOUND}))
    assert list_compute_instances(world, made[0].gi_id) == (made[0],)
