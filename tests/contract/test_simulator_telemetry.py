"""What monitors ask: load follows the processes, facts are the board's, and what nobody knows is not supported."""

from __future__ import annotations

import pytest
from contract.named_world import NamedWorld
from tesela.core.errors import DocumentError
from tesela.edge.nvml import codes
from tesela.edge.nvml.port import FabricInfo
from tesela.edge.simulator.boards import BOARDS
from tesela.edge.simulator.gpu import Process
from tesela.edge.simulator.machine import Machine, build_machine
from tesela.edge.simulator.models import list_models
from tesela.edge.simulator.named import NAMED
from tesela.edge.simulator.rows import NodeRow
from tesela.edge.simulator.spec import parse_machine_spec
from tesela.edge.simulator.telemetry import power_draw_mw

MIB = 1 << 20


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def world(clock):
    spec = parse_machine_spec("a100-40gb:mig*2,h100-80gb")
    return NamedWorld(Machine(spec, clock=clock, wall_clock=lambda: 1.5e9))


def busy(world, **facts):
    world.machine.add_process(world.h100, Process(pid=7, **facts))


def ask(world, function, *numbers):
    return world.ask(function, world.h100, numbers=numbers).numbers


# Load


@pytest.mark.parametrize(
    ("function", "numbers"),
    [
        ("nvmlDeviceGetUtilizationRates", ()),
        ("nvmlDeviceGetPowerUsage", ()),
        ("nvmlDeviceGetTemperature", (0,)),
        ("nvmlDeviceGetClockInfo", (0,)),
        ("nvmlDeviceGetClockInfo", (3,)),
        ("nvmlDeviceGetPcieThroughput", (0,)),
    ],
)
def test_a_busy_gpu_shows_more(world, function, numbers):
    idle = ask(world, function, *numbers)
    busy(world)
    assert ask(world, function, *numbers) > idle


def test_an_idle_gpu_says_why_its_clocks_are_low(world):
    assert ask(world, "nvmlDeviceGetCurrentClocksEventReasons") == (1,)


def test_a_busy_gpu_is_held_back_by_nothing(world):
    busy(world)
    assert ask(world, "nvmlDeviceGetCurrentClocksEventReasons") == (0,)


def test_who_only_holds_the_device_file_is_no_load(world):
    busy(world, kind="open")
    assert ask(world, "nvmlDeviceGetUtilizationRates") == (0, 0)


def test_answers_are_the_same_at_every_time(world, clock):
    before = ask(world, "nvmlDeviceGetPowerUsage")
    clock.now_s += 3600
    assert ask(world, "nvmlDeviceGetPowerUsage") == before


@pytest.mark.parametrize("function", [name for name in NAMED if name.endswith(("Utilization", "UtilizationRates"))])
def test_in_mig_mode_there_is_no_utilization(world, function):
    assert world.code(function, world.gpu, numbers=(0,) * NAMED[function].numbers) == codes.NOT_SUPPORTED


def test_a_mig_device_has_no_utilization(world):
    device = world.mig_device()
    code = world.code("nvmlDeviceGetUtilizationRates", world.gpu, gi=device.gi_id, ci=device.ci_id)
    assert code == codes.NOT_SUPPORTED


def test_a_partition_that_works_draws_its_share(world):
    device = world.mig_device(start=4, profile="3g.20gb")
    drawn = [world.ask("nvmlDeviceGetPowerUsage", world.gpu).numbers[0]]
    world.machine.add_process(world.gpu, Process(pid=7, gi_id=device.gi_id, ci_id=device.ci_id))
    drawn.append(world.ask("nvmlDeviceGetPowerUsage", world.gpu).numbers[0])
    full = 400_000 * 9 // 10
    assert drawn[1] - drawn[0] == int((full - drawn[0]) * 3 / 7)


def test_processes_share_the_utilization(world):
    for pid in (8, 7):
        world.machine.add_process(world.h100, Process(pid=pid))
    gpu_percent, memory_percent = (percent // 2 for percent in ask(world, "nvmlDeviceGetUtilizationRates"))
    samples = ask(world, "nvmlDeviceGetProcessUtilization", 0)
    assert samples == tuple(x for pid in (7, 8) for x in (pid, 15 * 10**14, gpu_percent, memory_percent, 0, 0))


@pytest.mark.parametrize(("since_us", "pids"), [(0, []), (15 * 10**14, [7])])
def test_without_a_later_sample_no_process_is_found(world, since_us, pids):
    for pid in pids:
        world.machine.add_process(world.h100, Process(pid=pid))
    code = world.code("nvmlDeviceGetProcessUtilization", world.h100, numbers=(since_us,))
    assert code == codes.NOT_FOUND


@pytest.mark.parametrize("model", list_models())
def test_no_gpu_draws_more_than_its_limit(model):
    machine = build_machine(model)
    (gpu,) = machine.visible_gpus()
    idle = power_draw_mw(gpu)
    machine.add_process("0", Process(pid=7))
    assert 0 < idle < power_draw_mw(gpu) <= BOARDS[model].power_limit_mw


# Energy


def test_energy_is_power_times_time(world, clock):
    (power_mw,) = ask(world, "nvmlDeviceGetPowerUsage")
    clock.now_s += 60
    assert ask(world, "nvmlDeviceGetTotalEnergyConsumption") == (60 * power_mw,)


def test_energy_counts_each_load_for_its_time(world, clock):
    (idle_mw,) = ask(world, "nvmlDeviceGetPowerUsage")
    clock.now_s += 10
    busy(world)
    (busy_mw,) = ask(world, "nvmlDeviceGetPowerUsage")
    clock.now_s += 10
    world.machine.remove_process(world.h100, 7)
    clock.now_s += 10
    assert ask(world, "nvmlDeviceGetTotalEnergyConsumption") == (20 * idle_mw + 10 * busy_mw,)


def test_energy_begins_anew_with_the_driver(world, clock):
    clock.now_s += 60
    world.machine.reload_driver()
    assert ask(world, "nvmlDeviceGetTotalEnergyConsumption") == (0,)


# Memory and processes


def test_what_the_driver_keeps_is_reserved(world):
    total, reserved, free, used = ask(world, "nvmlDeviceGetMemoryInfo_v2")
    assert (total, reserved, free, used) == (81559 * MIB, 407 * MIB, 81152 * MIB, 0)


def test_memory_follows_the_processes(world):
    busy(world, memory_bytes=300 * MIB)
    assert ask(world, "nvmlDeviceGetMemoryInfo_v2")[2:] == (80852 * MIB, 300 * MIB)


def test_the_port_counts_reserved_memory_as_used(world):
    busy(world, memory_bytes=300 * MIB)
    assert world.nvml.get_memory_info(world.h100).used_bytes == 707 * MIB


def test_nobody_holds_more_than_there_is(world):
    busy(world, memory_bytes=81152 * MIB)
    with pytest.raises(DocumentError, match=r"memory_mib: 1 MiB do not fit: GPU .* has 0 MiB free"):
        busy(world, memory_bytes=MIB)
    assert ask(world, "nvmlDeviceGetMemoryInfo_v2")[2] == 0


def test_a_process_fits_its_partition(world):
    device = world.mig_device()
    process = Process(pid=7, gi_id=device.gi_id, ci_id=device.ci_id, memory_bytes=40960 * MIB)
    with pytest.raises(DocumentError, match=rf"do not fit: GPU instance {device.gi_id} has \d+ MiB free"):
        world.machine.add_process(world.gpu, process)


def test_a_partition_is_filled_by_all_who_use_it(world):
    device = world.mig_device()
    for pid in (7, 8):
        process = Process(pid=pid, gi_id=device.gi_id, ci_id=device.ci_id, memory_bytes=100 * MIB)
        world.machine.add_process(world.gpu, process)
    memory = world.ask("nvmlDeviceGetMemoryInfo_v2", world.gpu, gi=device.gi_id, ci=device.ci_id).numbers
    assert memory[3] == 200 * MIB


def test_a_gpu_shows_all_its_processes(world):
    device = world.mig_device()
    world.machine.add_process(world.gpu, Process(pid=7, gi_id=device.gi_id, ci_id=0, memory_bytes=MIB))
    world.machine.add_process(world.gpu, Process(pid=8))
    shown = world.ask("nvmlDeviceGetComputeRunningProcesses_v3", world.gpu).numbers
    assert shown == (7, MIB, device.gi_id, 0, 8, 0, 0xFFFFFFFF, 0xFFFFFFFF)


def test_kinds_of_processes_are_told_apart(world):
    busy(world, kind="graphics")
    lists = [ask(world, f"nvmlDeviceGet{kind}RunningProcesses_v3") for kind in ("Compute", "Graphics", "MPSCompute")]
    assert [len(numbers) // 4 for numbers in lists] == [0, 1, 0]


def test_a_process_has_a_name(world):
    busy(world, name="trainer")
    assert world.ask("nvmlSystemGetProcessName", numbers=(7,)).text == "trainer"


def test_a_process_elsewhere_has_none(world):
    assert world.code("nvmlSystemGetProcessName", numbers=(7,)) == codes.NOT_FOUND


# Facts


@pytest.mark.parametrize("model", list_models())
def test_every_model_has_its_board(model):
    assert model in BOARDS


@pytest.mark.parametrize("function", ["nvmlDeviceGetFanSpeed", "nvmlDeviceGetMinMaxFanSpeed"])
def test_a_board_cooled_by_its_server_has_no_fan(world, function):
    assert world.code(function, world.gpu) == codes.NOT_SUPPORTED


def test_a_fact_that_nobody_published_is_not_supported():
    world = NamedWorld(build_machine("rtx-pro-6000*3"))
    assert world.code("nvmlDeviceGetMaxClockInfo", world.gpu, numbers=(0,)) == codes.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("function", "numbers"),
    [
        ("nvmlDeviceGetTemperature", (1,)),
        ("nvmlDeviceGetTemperatureThreshold", (8,)),
        ("nvmlDeviceGetClockInfo", (4,)),
        ("nvmlDeviceGetClock", (0, 4)),
        ("nvmlDeviceGetPcieThroughput", (2,)),
        ("nvmlDeviceGetNvLinkState", (18,)),
        ("nvmlDeviceGetCpuAffinity", (0,)),
        ("nvmlDeviceGetMemoryAffinity", (1, 2)),
        ("nvmlDeviceSetPersistenceMode", (2,)),
        ("nvmlDeviceSetComputeMode", (1,)),
        ("nvmlDeviceSetPowerManagementLimit", (1,)),
        ("nvmlDeviceRegisterEvents", (-1,)),
    ],
)
def test_what_there_is_not_is_refused(world, function, numbers):
    assert world.code(function, world.h100, numbers=numbers) == codes.INVALID_ARGUMENT


def test_a_power_limit_can_be_set(world):
    ask(world, "nvmlDeviceSetPowerManagementLimit", 300_000)
    limits = [ask(world, f"nvmlDeviceGet{which}") for which in ("EnforcedPowerLimit", "PowerManagementDefaultLimit")]
    assert limits == [(300_000,), (700_000,)]


@pytest.mark.parametrize("mode", ["Persistence", "Compute"])
def test_a_mode_lasts_until_the_driver_is_loaded_again(world, mode):
    ask(world, f"nvmlDeviceSet{mode}Mode", {"Persistence": 1, "Compute": 3}[mode])
    before = ask(world, f"nvmlDeviceGet{mode}Mode")
    world.machine.reload_driver()
    assert (before, ask(world, f"nvmlDeviceGet{mode}Mode")) == (({"Persistence": 1, "Compute": 3}[mode],), (0,))


def test_the_versions_belong_together(world):
    assert world.ask("nvmlSystemGetNVMLVersion").text == "13.580.95.05"


@pytest.mark.parametrize("model", list_models())
@pytest.mark.parametrize("mode", ["", ":mig"])
def test_every_row_answers_or_refuses_every_model(model, mode):
    world = NamedWorld(build_machine(f"{model}{mode}*3"))
    rows = [row for row in NAMED.values() if not isinstance(row, NodeRow) and row.target in {"G", "D"}]
    seen = {world.code(row.function, world.gpu, numbers=(1,) * row.numbers) for row in rows}
    assert seen <= {codes.SUCCESS, codes.NOT_SUPPORTED, codes.INVALID_ARGUMENT, codes.NOT_FOUND}


# Place


def test_cpus_are_those_of_the_numa_node(world):
    assert ask(world, "nvmlDeviceGetCpuAffinity", 2) == (0, 2**64 - 1)


def test_memory_is_that_of_the_numa_node(world):
    assert ask(world, "nvmlDeviceGetMemoryAffinity", 1, 0) == (2,)


def test_a_gpu_without_numa_node_has_no_cpus_of_its_own():
    world = NamedWorld(build_machine("a30:numa=unknown*3"))
    assert world.code("nvmlDeviceGetCpuAffinity", world.gpu, numbers=(1,)) == codes.NOT_SUPPORTED


@pytest.mark.parametrize(("other", "level"), [(0, 0), (1, 30), (2, 40), (4, 50)])
def test_the_path_to_another_gpu(other, level):
    world = NamedWorld(build_machine("h100-80gb*8"))
    uuid = world.machine.visible_uuids()[other]
    assert world.ask("nvmlDeviceGetTopologyCommonAncestor", world.gpu, text=uuid).numbers == (level,)


@pytest.mark.parametrize(("index", "status"), [(0, 0), (2, 5), (4, 0)])
def test_peers_without_fabric_meet_over_pcie(index, status):
    world = NamedWorld(build_machine("h100-80gb*3"))
    found = world.ask("nvmlDeviceGetP2PStatus", world.gpu, numbers=(index,), text=world.second).numbers
    assert found == (status,)


def test_peers_on_a_fabric_have_nvlink():
    world = NamedWorld(build_machine("h100-80gb:fabric*3"))
    assert world.ask("nvmlDeviceGetP2PStatus", world.gpu, numbers=(2,), text=world.second).numbers == (0,)


def test_mig_mode_takes_peers_away(world):
    assert world.ask("nvmlDeviceGetP2PStatus", world.gpu, numbers=(0,), text=world.h100).numbers == (5,)


@pytest.mark.parametrize(("state", "link"), [(codes.FABRIC_COMPLETED, 1), (codes.FABRIC_IN_PROGRESS, 0)])
def test_links_come_up_with_the_fabric(world, state, link):
    world.machine.set_fabric(world.h100, FabricInfo(cluster_uuid="", clique_id=0, state=state))
    assert ask(world, "nvmlDeviceGetNvLinkState", 0) == (link,)


# Errors and events


def test_registering_answers_the_last_event(world):
    world.machine.raise_xid(world.h100, 79)
    assert ask(world, "nvmlDeviceRegisterEvents", codes.EVENT_XID) == (world.machine.events.cursor,)


@pytest.mark.parametrize("mask", [codes.EVENT_GPU_UNAVAILABLE, codes.EVENT_RECOVERY_ACTION | codes.EVENT_XID])
def test_events_that_a_gpu_lacks_are_not_supported(world, mask):
    assert world.code("nvmlDeviceRegisterEvents", world.gpu, numbers=(mask,)) == codes.NOT_SUPPORTED


def test_events_of_a_mig_device_are_not_supported(world):
    device = world.mig_device()
    code = world.code("nvmlDeviceRegisterEvents", world.gpu, gi=device.gi_id, ci=device.ci_id, numbers=(8,))
    assert code == codes.NOT_SUPPORTED


def test_cleared_errors_are_gone(world):
    def fail(health):
        health.add_errors(codes.ECC_UNCORRECTED, 3, location=codes.MEMORY_LOCATION_DRAM)
        return 0

    counter = ("nvmlDeviceGetMemoryErrorCounter", codes.ECC_UNCORRECTED, codes.ECC_VOLATILE, codes.MEMORY_LOCATION_DRAM)
    world.machine.change_health(world.h100, fail)
    before = ask(world, *counter)
    ask(world, "nvmlDeviceClearEccErrorCounts", codes.ECC_VOLATILE)
    assert (before, ask(world, *counter)) == ((3,), (0,))
