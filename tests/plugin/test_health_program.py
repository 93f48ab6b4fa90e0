"""A fault on a GPU, from the simulated hardware to the published slice: what is fenced, what stays, what ends it."""

from __future__ import annotations

import pytest
from health_program import Running
from polling import until
from tesela.edge.nvml import codes
from tesela.edge.simulator.faults import Hang


@pytest.fixture
def run(short_path):
    """Starts a driver on the given GPUs."""
    started = []

    def make(gpus, **settings):
        started.append(Running(short_path, gpus, **settings))
        return started[-1]

    yield make
    for one in started:
        one.close()


def test_an_xid_that_asks_for_a_reset_fences_every_device_of_its_gpu(run):
    node = run("a30*2")

    node.sim("xid", gpu="0", xid=48)

    assert node.becomes_tainted("xid", "gpu-0")
    assert node.taints("gpu-0") == {"xid=48:NoSchedule"}


def test_a_fault_is_on_disk_before_it_is_published(run):
    node = run("a30")

    node.sim("xid", gpu="0", xid=48)

    assert node.becomes_tainted("xid", "gpu-0")
    assert node.signals() == {"xid-48"}


def test_a_restart_keeps_a_fault(run):
    node = run("a30")
    node.sim("xid", gpu="0", xid=48)
    assert node.becomes_tainted("xid", "gpu-0")

    node.restart()

    assert node.tainted("xid") == {"gpu-0"}


def test_a_device_with_a_fault_says_so_in_its_attribute(run):
    node = run("a30*2")

    node.sim("xid", gpu="0", xid=48)

    assert until(lambda: (node.health("gpu-0"), node.health("gpu-1")) == ("unhealthy", "healthy"))


def test_an_application_s_fault_fences_nothing(run):
    node = run("a30")

    node.sim("xid", gpu="0", xid=31)

    assert until(lambda: node.signals() == {"xid-31"})
    assert (node.taints("gpu-0"), node.health("gpu-0")) == (set(), "healthy")


# Faults


def test_memory_errors_fence_their_gpu_until_it_is_reset(run):
    node = run("a30*2")
    node.sim("ecc", gpu="0", uncorrected=1)
    assert node.becomes_tainted("ecc", "gpu-0")

    node.sim("reset", gpu="0")
    node.look()

    assert node.becomes_tainted("ecc")


def test_an_xid_goes_with_the_reset_that_sets_its_counter_back(run):
    node = run("a30*2")
    node.sim("ecc", gpu="0", uncorrected=1)
    node.sim("xid", gpu="0", xid=48)
    assert node.becomes_tainted("xid", "gpu-0")
    assert node.becomes_tainted("ecc", "gpu-0")

    node.sim("reset", gpu="0")
    node.look()

    assert until(lambda: node.taints("gpu-0") == set())


def test_what_happened_while_no_driver_ran_is_in_the_first_slice(run):
    node = run("a30")
    node.stop()
    node.sim("ecc", gpu="0", uncorrected=1)

    node.start()

    assert node.tainted("ecc") == {"gpu-0"}


def test_a_known_gpu_that_does_not_even_tell_its_uuid_at_a_start_is_fenced(run):
    node = run("a30*2", nvml_timeout_s=0.5)
    node.stop()
    node.machine.inject(Hang(function="get_uuid", gpu="1"))

    node.start()

    assert node.becomes_tainted("wedged", "gpu-1")


def test_what_ended_while_no_driver_ran_is_not_in_the_first_slice(run):
    node = run("a30")
    node.sim("ecc", gpu="0", uncorrected=1)
    assert node.becomes_tainted("ecc", "gpu-0")
    node.stop()
    node.sim("reset", gpu="0")

    node.start()

    assert node.taints("gpu-0") == set()


def test_a_row_that_could_not_be_replaced_stays_through_a_reset(run):
    node = run("a30")
    node.sim("remap", gpu="0", failure=True)
    node.look()
    assert node.becomes_tainted("remap", "gpu-0")

    node.sim("reset", gpu="0")
    node.look()

    assert node.tainted("remap") == {"gpu-0"}


def test_a_recovery_action_is_fenced_until_it_is_none(run):
    node = run("h100-80gb")
    node.sim("recovery-action", gpu="0", action=1)
    assert until(lambda: "recovery-action-gpu-reset" in node.signals())

    node.sim("recovery-action", gpu="0", action=0)

    assert until(lambda: node.signals() <= {"xid-154"})


def test_a_gpu_that_falls_off_the_bus_stays_published_and_fenced(run):
    node = run("a30*2")

    node.sim("lose", gpu="0")

    assert node.becomes_tainted("xid", "gpu-0")
    assert until(lambda: node.health("gpu-0") == "gone")


def test_a_gpu_that_is_back_is_used_again(run):
    node = run("a30*2")
    node.sim("lose", gpu="0")
    assert until(lambda: node.health("gpu-0") == "gone")

    node.sim("reset", gpu="0")
    node.look()

    assert until(lambda: (node.taints("gpu-0"), node.health("gpu-0")) == (set(), "healthy"))


def test_a_missing_device_node_fences_its_gpu_until_it_is_there(run):
    node = run("a30*2")
    path = node.config.dev_root / "dev/nvidia0"
    path.rename(path.with_name("hidden"))
    node.look()
    assert node.becomes_tainted("device-node", "gpu-0")

    path.with_name("hidden").rename(path)
    node.look()

    assert node.becomes_tainted("device-node")


def test_a_fabric_that_is_not_ready_fences_whole_gpus_alone(run):
    node = run("h100-80gb:fabric")

    node.sim("fabric", gpu="0", state=codes.FABRIC_IN_PROGRESS)
    node.look()

    assert node.becomes_tainted("fabric", "gpu-0")


def test_a_fabric_that_a_gpu_could_not_join_fences_it_until_it_has(run):
    node = run("h100-80gb:fabric")
    node.sim("fabric", gpu="0", state=codes.FABRIC_COMPLETED, status=codes.UNKNOWN)
    node.look()
    assert node.becomes_tainted("fabric", "gpu-0")

    node.sim("fabric", gpu="0", state=codes.FABRIC_COMPLETED)
    node.look()

    assert node.becomes_tainted("fabric")


def test_a_fault_of_one_partition_fences_what_overlaps_it(run):
    node = run("a30:mig")
    record = node.claim("a", node.world.partition(0, "1g.6gb", 0))

    node.sim("xid", gpu="0", xid=95, gi=record.devices[0].partitions[0].gi_id)

    assert until(lambda: node.tainted("xid"))
    assert {name for name in node.devices() if name.endswith(("14-0", "5-0"))} <= node.tainted("xid")
    assert not [name for name in node.tainted("xid") if name.endswith(("14-1", "5-2"))]


def test_a_storm_of_one_xid_is_one_finding_and_few_writes(run):
    node = run("a30")

    for _ in range(1000):
        node.sim("xid", gpu="0", xid=48)

    assert until(lambda: [one.count for one in node.plugin.node.health.health.findings] == [1000])


# What else shows it


def test_the_metadata_of_a_workload_shows_the_health_of_its_device(run):
    node = run("a30")
    node.sim("xid", gpu="0", xid=48)
    assert node.becomes_tainted("xid", "gpu-0")

    record = node.claim("a", "gpu-0")

    shown = [path.read_text() for path in node.config.state_dir.glob(f"**/{record.claim.uid}/**/*.json")]
    assert ["unhealthy" in text for text in shown if "health" in text] == [True]


def test_a_call_that_hangs_is_on_disk_until_it_returns(run):
    node = run("a30*2", nvml_timeout_s=1)
    node.machine.inject(Hang(function="get_field_values", gpu=node.uuid(0)))
    node.look()
    assert node.becomes_tainted("wedged", "gpu-0")
    hanging = node.signals()

    node.machine.release()

    assert node.becomes_tainted("wedged")
    assert (hanging, node.signals()) == ({"wedged"}, set())


# Pause


def test_observers_that_are_paused_leave_nvml_alone(run):
    node = run("a30")

    assert node.plugin.observers.pause(10)

    assert not node.plugin.observers.events.is_open
    node.plugin.observers.resume()


def test_what_happened_during_a_pause_is_read_after_it(run):
    node = run("a30")
    assert node.plugin.observers.pause(10)
    node.sim("ecc", gpu="0", uncorrected=1)

    node.plugin.observers.resume()

    assert node.becomes_tainted("ecc", "gpu-0")
