"""Clients of NVML that others wrote find on the library what they find on a GPU node.

nvitop and gpustat are from PyPI; the walker is ours, over NVIDIA's Go binding. None of them imports us or is imported.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from nvml.needs import processes
from nvml.strangers.host import Host, open_host
from nvml.strangers.programs import build_walker, find_python_program
from polling import until
from tesela.core.model import Placement
from tesela.edge.nvml import codes

pytestmark = processes("strangers", "compiler", "go", "clients")

# A 3g.20gb in the upper half, a 1g.5gb at the bottom: GPU instance profile, compute instance profile, placement.
PARTITIONS = ((9, 2, Placement(start=4, size=4)), (19, 0, Placement(start=0, size=1)))
NVITOP_DEVICES = """
import json
from nvitop import Device
print(json.dumps([
    {"uuid": gpu.uuid(), "name": gpu.name(), "mig": gpu.mig_mode(), "total": gpu.memory_total(),
     "migs": [{"uuid": mig.uuid(), "gi": mig.gpu_instance_id(), "total": mig.memory_total(),
               "pids": sorted(mig.processes())} for mig in gpu.mig_devices()]}
    for gpu in Device.all()
]))
"""


@pytest.fixture
def host(tmp_path):
    """Two A100 with MIG mode on, an H100 with it off."""
    with open_host(tmp_path, "a100-40gb:mig*2,h100-80gb") as host:
        yield host


@pytest.fixture
def partitioned(host):
    """The same host with two partitions on the first A100."""
    host.partitions = [host.create_partition(0, *partition) for partition in PARTITIONS]
    return host


@pytest.fixture(scope="module")
def walker():
    return build_walker()


def list_nvitop_devices(host: Host) -> list[dict]:
    return json.loads(host.get_output(sys.executable, "-c", NVITOP_DEVICES))


def draw_nvitop(host: Host) -> str:
    return host.get_output(find_python_program("nvitop"), "--once", "--ascii")


def list_gpustat(host: Host) -> list[dict]:
    return json.loads(host.get_output(find_python_program("gpustat"), "--json"))["gpus"]


def walk(host: Host, walker) -> list[dict]:
    return json.loads(host.get_output(walker))["gpus"]


# nvitop


def test_nvitop_lists_the_gpus(host):
    names = {0: "Disabled", 1: "Enabled"}
    seen = [(gpu["uuid"], gpu["name"], gpu["mig"]) for gpu in list_nvitop_devices(host)]
    assert seen == [(gpu["uuid"], gpu["product_name"], names[gpu["mig_current"]]) for gpu in host.list_gpus()]


def test_nvitop_lists_the_mig_devices(partitioned):
    seen = [[mig["uuid"] for mig in gpu["migs"]] for gpu in list_nvitop_devices(partitioned)]
    assert [sorted(uuids) for uuids in seen] == [sorted(partitioned.partitions), [], []]


def test_nvitop_sees_the_memory_of_a_mig_device(partitioned):
    migs = list_nvitop_devices(partitioned)[0]["migs"]
    assert sorted(round(mig["total"] / 2**30) for mig in migs) == [5, 20]


def test_nvitop_finds_a_process_on_its_mig_device(partitioned):
    instance = partitioned.list_gpus()[0]["instances"][0]
    gi, ci = instance["gi_id"], instance["compute_instances"][0]["ci_id"]
    partitioned.tesela("busy", "0", str(os.getpid()), "--gi", str(gi), "--ci", str(ci))
    assert {mig["gi"]: mig["pids"] for mig in list_nvitop_devices(partitioned)[0]["migs"]}[gi] == [os.getpid()]


def test_nvitop_draws_the_process_of_a_gpu(host):
    host.tesela("busy", "2", str(os.getpid()))
    assert re.search(rf"\|\s+2\s+{os.getpid()}\s+C\b", draw_nvitop(host))


def test_nvitop_draws_every_gpu_and_mig_device(partitioned):
    drawn = draw_nvitop(partitioned)
    wanted = [r"0\s+A100-SXM4-40GB", r"1\s+A100-SXM4-40GB", r"2\s+H100 80GB HBM3", r"3g\.20gb", r"1g\.5gb"]
    assert [pattern for pattern in wanted if not re.search(pattern, drawn)] == []


def test_nvitop_asks_for_nothing_that_is_not_there(partitioned):
    draw_nvitop(partitioned)
    assert partitioned.list_unknown() == []


# gpustat


def test_gpustat_lists_the_gpus(host):
    seen = [(gpu["index"], gpu["uuid"], gpu["name"]) for gpu in list_gpustat(host)]
    assert seen == [(gpu["index"], gpu["uuid"], gpu["product_name"]) for gpu in host.list_gpus()]


def test_gpustat_shows_the_process_of_a_gpu(host):
    host.tesela("busy", "2", str(os.getpid()))
    assert [[process["pid"] for process in gpu["processes"]] for gpu in list_gpustat(host)] == [[], [], [os.getpid()]]


def test_gpustat_shows_a_lost_gpu_beside_the_others(host):
    host.tesela("lose", "1")
    names = ["NVIDIA A100-SXM4-40GB", "((GPU is lost))", "NVIDIA H100 80GB HBM3"]
    assert [gpu["name"] for gpu in list_gpustat(host)] == names


def test_gpustat_asks_for_nothing_that_is_not_there(host):
    list_gpustat(host)
    assert host.list_unknown() == []


# The walker: NVIDIA's Go binding


def test_the_go_binding_walks_the_gpus(host, walker):
    seen = [(gpu["uuid"], gpu["name"], gpu["busId"], gpu["migEnabled"]) for gpu in walk(host, walker)]
    wanted = ("uuid", "product_name", "pci_bus_id", "mig_current")
    assert seen == [tuple(gpu[field] for field in wanted) for gpu in host.list_gpus()]


def test_the_go_binding_makes_a_partition_at_every_placement(host, walker):
    gpu = walk(host, walker)[0]
    placements = {(profile["name"], at["start"]) for profile in gpu["profiles"] for at in profile["placements"]}
    assert {(made["profile"], made["placement"]["start"]) for made in gpu["partitions"]} == placements


def test_the_go_binding_takes_away_what_it_made(host, walker):
    walk(host, walker)
    assert host.list_layouts() == [{}, {}, {"off": 1}]


def test_the_go_binding_reads_attributes_that_fit_the_profile(host, walker):
    gpu = walk(host, walker)[0]
    profiles = {profile["name"]: (profile["slices"], profile["memoryMiB"]) for profile in gpu["profiles"]}
    seen = {made["profile"]: (made["slices"], made["memoryMiB"]) for made in gpu["partitions"]}
    assert seen == profiles


def test_the_go_binding_finds_taken_places_taken(partitioned, walker):
    made = walk(partitioned, walker)[0]["partitions"]
    ones = [one["placement"]["start"] for one in made if one["profile"] == "MIG 1g.5gb"]
    assert ones == [1, 2, 3]


def test_many_go_threads_at_once_leave_nothing_behind(host, walker):
    churned = json.loads(host.get_output(walker, "-threads", "8", "-rounds", "12"))
    assert (churned["made"] + churned["full"], churned["made"] > 0, churned["left"]) == (96, True, 0)


def test_many_go_processes_at_once_leave_nothing_behind(host, walker):
    command = [str(walker), "-threads", "2", "-rounds", "8"]
    clients = [
        subprocess.Popen(command, env=host.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    ended = [(client.communicate(timeout=120)[1], client.returncode) for client in clients]
    assert (ended, host.list_layouts()) == ([("", 0)] * 4, [{}, {}, {"off": 1}])


def test_a_go_client_gets_the_code_of_a_call_that_fails(host, walker):
    host.tesela("fail", "nvmlDeviceGetMaxMigDeviceCount", "GPU_IS_LOST")
    assert host.run(walker).returncode == codes.GPU_IS_LOST


def test_a_go_client_without_a_simulator_finds_no_driver(host, walker):
    host.kill()
    assert host.run(walker).returncode == codes.DRIVER_NOT_LOADED


def test_a_go_client_ends_with_a_code_when_the_simulator_dies(host, walker):
    command = [str(walker), "-threads", "4", "-rounds", "100000"]
    client = subprocess.Popen(command, env=host.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert until(lambda: any(gpu["instances"] for gpu in host.list_gpus()), timeout_s=30)
    host.kill()
    client.communicate(timeout=60)
    assert client.returncode in {codes.GPU_IS_LOST, codes.DRIVER_NOT_LOADED}


def test_a_go_client_receives_an_xid(host, walker):
    command = [str(walker), "-wait-event", "60000"]
    client = subprocess.Popen(command, env=host.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert client.stderr.readline() == "registered\n"
    host.tesela("xid", "2", "79")
    event = json.loads(client.communicate(timeout=60)[0])
    assert (event["gpu"], event["data"]) == (host.list_gpus()[2]["uuid"], 79)


def test_the_go_binding_asks_for_nothing_that_is_not_there(host, walker):
    walk(host, walker)
    assert host.list_unknown() == []
