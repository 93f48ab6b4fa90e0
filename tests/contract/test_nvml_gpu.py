"""The port on a real GPU: `pytest -m gpu tests/contract`. Read-only, unless TESELA_GPU_WRITE=1.

The same tests run over the other backends, so that they are right before they meet a GPU. They ask for what every GPU
answers, whatever its model, mode and age: what a driver may refuse is allowed to be refused, in NVML's words.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

import pytest
from contract.nvml_backends import BACKENDS, code_of, open_world
from tesela.core.errors import NvmlError
from tesela.edge.nvml import codes
from tesela.edge.nvml.native import NativeNvml
from tesela.edge.nvml.port import GpuInstanceProfileInfo, Nvml
from tesela.edge.nvml.watchdog import WatchedNvml

MACHINE = "a100-40gb:mig,h100-80gb:mig,h100-80gb"
LIMIT_S = 30.0
MAY_REFUSE = {codes.NOT_SUPPORTED, codes.FUNCTION_NOT_FOUND, codes.NO_PERMISSION}
REAL = pytest.param("real", marks=pytest.mark.gpu)
WRITE = os.environ.get("TESELA_GPU_WRITE") == "1"


def open_backend(backend: str) -> Iterator[Nvml]:
    if backend == "real":
        nvml = WatchedNvml(NativeNvml(), LIMIT_S)
        nvml.init()
        yield nvml
        nvml.shutdown()
        return
    with open_world(backend, MACHINE) as world:
        world.nvml.init()
        yield world.nvml


@pytest.fixture(params=[*BACKENDS, REAL])
def nvml(request):
    yield from open_backend(request.param)


@pytest.fixture(params=[*BACKENDS, *([REAL] if WRITE else [])])
def writable(request):
    yield from open_backend(request.param)


def list_gpus(nvml) -> list[str]:
    return [nvml.get_uuid(index) for index in range(nvml.get_device_count())]


def asked(question: Callable[..., object], *arguments: object, **keywords: object) -> object:
    """The answer, None where the driver refuses as it may."""
    try:
        return question(*arguments, **keywords)
    except NvmlError as error:
        if error.code not in MAY_REFUSE:
            raise
        return None


def list_profiles(nvml, gpu) -> list[GpuInstanceProfileInfo]:
    found = (asked(nvml.get_gpu_instance_profile_info, gpu, enum) for enum in range(codes.GPU_INSTANCE_PROFILE_COUNT))
    return [info for info in found if info is not None]


def list_instances(nvml, gpu) -> list:
    live = (asked(nvml.get_gpu_instances, gpu, info.profile_id) for info in list_profiles(nvml, gpu))
    return [instance for instances in live if instances is not None for instance in instances]


# Node and GPUs


def test_the_driver_has_a_version(nvml):
    assert re.fullmatch(r"[0-9]{3}(\.[0-9]+){1,2}", nvml.get_driver_version())


def test_a_gpu_is_found_by_index_and_uuid(nvml):
    assert [nvml.get_index(gpu) for gpu in list_gpus(nvml)] == list(range(nvml.get_device_count()))


def test_an_index_beyond_the_last_is_an_invalid_argument(nvml):
    assert code_of(nvml.get_uuid, nvml.get_device_count()) == codes.INVALID_ARGUMENT


def test_an_unknown_uuid_is_not_found(nvml):
    assert code_of(nvml.get_name, "GPU-00000000-0000-0000-0000-000000000000") == codes.NOT_FOUND


def test_a_gpu_has_a_name_and_an_address(nvml):
    address = re.compile(r"[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.0", re.IGNORECASE)
    facts = [(nvml.get_name(gpu), nvml.get_pci_info(gpu)) for gpu in list_gpus(nvml)]
    assert all(name and address.fullmatch(pci.bus_id) and pci.pci_device_id & 0xFFFF == 0x10DE for name, pci in facts)


def test_an_architecture_is_one_that_we_name(nvml):
    assert {nvml.get_architecture(gpu) for gpu in list_gpus(nvml)} <= set(codes.ARCHITECTURES)


def test_memory_adds_up(nvml):
    infos = [info for gpu in list_gpus(nvml) if (info := asked(nvml.get_memory_info, gpu)) is not None]
    assert all(info.free_bytes + info.used_bytes == info.total_bytes for info in infos)


def test_optional_questions_are_answered_or_refused(nvml):
    questions = (nvml.get_addressing_mode, nvml.get_fabric_info, nvml.get_virtualization_mode, nvml.get_minor_number)
    for question in questions:
        for gpu in list_gpus(nvml):
            asked(question, gpu)


def test_processes_have_numbers(nvml):
    lists = (nvml.get_compute_running_processes, nvml.get_graphics_running_processes)
    found = [process for gpu in list_gpus(nvml) for question in lists for process in asked(question, gpu) or ()]
    assert all(process.pid > 0 for process in found)


# MIG


def test_a_mode_is_on_or_off(nvml):
    modes = [mode for gpu in list_gpus(nvml) if (mode := asked(nvml.get_mig_mode, gpu)) is not None]
    assert {number for mode in modes for number in (mode.current, mode.pending)} <= {0, 1}


def test_a_profile_has_at_least_as_many_placements_as_instances(nvml):
    for gpu in list_gpus(nvml):
        for info in list_profiles(nvml, gpu):
            placements = nvml.get_gpu_instance_possible_placements(gpu, info.profile_id)
            assert len(placements) >= info.instance_count


def test_the_placements_of_a_profile_are_of_one_size(nvml):
    for gpu in list_gpus(nvml):
        for info in list_profiles(nvml, gpu):
            assert len({p.size for p in nvml.get_gpu_instance_possible_placements(gpu, info.profile_id)}) == 1


def test_an_instance_that_is_not_there(nvml):
    answers = {
        code_of(nvml.get_gpu_instance_by_id, gpu, 14) for gpu in list_gpus(nvml) if not list_instances(nvml, gpu)
    }
    assert answers <= {codes.NOT_FOUND, codes.NOT_SUPPORTED, codes.INVALID_ARGUMENT, codes.NO_PERMISSION}


# Health


def test_an_ecc_mode_is_on_or_off(nvml):
    modes = [mode for gpu in list_gpus(nvml) if (mode := asked(nvml.get_ecc_mode, gpu)) is not None]
    assert {number for mode in modes for number in (mode.current, mode.pending)} <= {0, 1}


@pytest.mark.parametrize("uncorrected", [False, True])
def test_a_gpus_life_has_at_least_the_errors_since_the_driver_was_loaded(nvml, uncorrected):
    for gpu in list_gpus(nvml):
        since_load = asked(nvml.get_total_ecc_errors, gpu, uncorrected=uncorrected, aggregate=False)
        of_its_life = asked(nvml.get_total_ecc_errors, gpu, uncorrected=uncorrected, aggregate=True)
        assert since_load is None or of_its_life is None or 0 <= since_load <= of_its_life


def test_the_fields_of_remapped_rows_agree_with_the_call(nvml):
    fields = (codes.FIELD_REMAPPED_CORRECTABLE, codes.FIELD_REMAPPED_UNCORRECTABLE)
    for gpu in list_gpus(nvml):
        rows = asked(nvml.get_remapped_rows, gpu)
        values = nvml.get_field_values(gpu, fields)
        assert rows is None or None in values or (rows.correctable, rows.uncorrectable) == values


def test_a_recovery_action_is_one_that_we_name(nvml):
    found = {nvml.get_field_values(gpu, [codes.FIELD_RECOVERY_ACTION])[0] for gpu in list_gpus(nvml)}
    assert found - {None} <= set(codes.RECOVERY_ACTIONS)


# Events


def test_every_gpu_reports_xids(nvml):
    assert all(nvml.get_supported_event_types(gpu) & codes.EVENT_XID for gpu in list_gpus(nvml))


def test_a_set_of_everything_can_be_opened_and_waited_on(nvml):
    events = nvml.open_event_set([(gpu, nvml.get_supported_event_types(gpu)) for gpu in list_gpus(nvml)])
    events.wait(0.1)  # on a busy machine something may have happened
    events.close()
    assert code_of(events.wait, 0) == codes.UNINITIALIZED


def test_a_bit_that_nvml_lacks_is_refused(nvml):
    answer = code_of(nvml.open_event_set, [(list_gpus(nvml)[0], 1 << 40)])
    assert answer in {codes.INVALID_ARGUMENT, codes.NOT_SUPPORTED}


# What changes a GPU, and changes it back


def test_an_instance_can_be_made_where_mig_is_on_and_nothing_lives(writable):
    for gpu in list_gpus(writable):
        mode = asked(writable.get_mig_mode, gpu)
        if mode is None or not mode.current or list_instances(writable, gpu):
            continue
        profile = min(list_profiles(writable, gpu), key=lambda info: (info.slice_count, -info.instance_count))
        placement = writable.get_gpu_instance_possible_placements(gpu, profile.profile_id)[0]
        made = writable.create_gpu_instance(gpu, profile.profile_id, placement)
        try:
            seen = writable.get_gpu_instance_by_id(gpu, made.gi_id)
        finally:
            writable.destroy_gpu_instance(gpu, made.gi_id)
        assert (seen, list_instances(writable, gpu)) == (made, [])
