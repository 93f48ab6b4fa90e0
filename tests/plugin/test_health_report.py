"""What the kubelet is told of each device: findings, lost partitions and released NVML as verdicts and sentences."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from node_world import POOL, make_world
from tesela.core.errors import StateError
from tesela.core.health.model import ALL_HEALTHY, Effect, Evidence, Finding, HealthState, NodeHealth, Reach
from tesela.core.health.verdict import plan_verdict
from tesela.core.model import Placement
from tesela.core.record import ClaimRecord
from tesela.core.released import NOT_RELEASED, Released, Request, Source
from tesela.core.roster import Roster
from tesela.core.slices.pool import render_pool
from tesela.core.slices.state import ApiAbilities
from tesela.plugin.health.report import HealthReport
from tesela.plugin.pool_state import read_pool_state

RELEASED = Released(requests=(Request(source=Source.COMMAND, reason="driver 580", requested_by="ann", since_s=1),))


def finding(gpu_uuid, state=HealthState.UNHEALTHY, placement=None, key="ecc", **changes) -> Finding:
    made = Finding(
        signal=f"{key}-test",
        gpu_uuid=gpu_uuid,
        placement=placement,
        state=state,
        key=key,
        effect=Effect.NO_SCHEDULE,
        evidence=Evidence.RESET,
        reason="test",
        message=f"{key} since noon",
        since_s=1,
        last_s=1,
        count=1,
        boot_id="b",
        epoch="e",
        generation=1,
    )
    return replace(made, **changes)


@dataclass
class Facts:
    """What the report is made from."""

    roster: Roster
    records: tuple[ClaimRecord, ...] = ()
    health: NodeHealth = ALL_HEALTHY
    released: Released = NOT_RELEASED
    problem: Exception | None = None
    report: HealthReport = field(init=False)

    def __post_init__(self) -> None:
        self.report = HealthReport(
            pool=POOL,
            health=lambda: self.health,
            roster=lambda: self.roster,
            records=self._list_records,
            released=lambda: self.released,
        )

    def _list_records(self) -> tuple[ClaimRecord, ...]:
        if self.problem is not None:
            raise self.problem
        return self.records

    @property
    def gpu(self) -> str:
        return self.roster.gpus[0].gpu.uuid

    def find(self, *findings: Finding) -> None:
        self.health = NodeHealth(findings=findings)

    def told(self) -> dict[str, tuple[bool | None, str]]:
        return {one.device: (one.healthy, one.message) for one in self.report.get_report()}


@pytest.fixture
def world(tmp_path):
    made = make_world(tmp_path, "h100-80gb*2")
    made.start()
    return made


@pytest.fixture
def facts(world):
    return Facts(roster=world.node.lookout.roster)


def test_every_published_device_is_reported_once_and_in_its_order(world, facts):
    pool = render_pool(read_pool_state(world.node), ApiAbilities())
    published = [device["name"] for content in pool.slices for device in content.devices]
    assert [one.device for one in facts.report.get_report()] == published


def test_a_node_without_findings_is_healthy_and_says_nothing(facts):
    assert set(facts.told().values()) == {(True, "")}


@pytest.mark.parametrize(
    ("state", "healthy"),
    [(HealthState.DEGRADED, True), (HealthState.UNHEALTHY, False), (HealthState.GONE, False)],
)
def test_a_fault_of_a_gpu_reaches_its_devices_with_its_message(facts, state, healthy):
    facts.find(finding(facts.gpu, state))
    told = facts.told()
    assert {told[name] for name in told if name.startswith("gpu-0")} == {
        (healthy, f"{state}, ecc since noon (until the GPU is reset)")
    }


def test_a_fault_of_one_gpu_leaves_the_other(facts):
    facts.find(finding(facts.gpu))
    told = facts.told()
    assert {told[name] for name in told if name.startswith("gpu-1")} == {(True, "")}


def test_a_fault_of_a_partition_reaches_what_overlaps_it(facts):
    facts.find(finding(facts.gpu, placement=Placement(start=6, size=1)))
    told = facts.told()
    assert [told[f"gpu-0{rest}"][0] for rest in ("", "-mig-1g10gb-19-6", "-mig-1g10gb-19-0")] == [False, False, True]


def test_a_signal_that_is_only_counted_is_not_told(facts):
    facts.find(finding(facts.gpu, HealthState.HEALTHY, key="xid"))
    assert facts.told()["gpu-0"] == (True, "")


def test_nobody_knows_how_a_gpu_is_that_does_not_answer(facts):
    facts.find(finding(facts.gpu, key="wedged"))
    assert facts.told()["gpu-0"][0] is None


def test_a_gpu_that_does_not_answer_stays_unhealthy_where_it_was_before(facts):
    facts.find(finding(facts.gpu, key="wedged"), finding(facts.gpu))
    assert facts.told()["gpu-0"][0] is False


def test_a_gpu_that_does_not_answer_is_unknown_although_it_was_degraded(facts):
    facts.find(finding(facts.gpu, key="wedged"), finding(facts.gpu, HealthState.DEGRADED))
    assert facts.told()["gpu-0"][0] is None


def test_a_mode_that_is_held_is_told_of_the_devices_that_need_the_other(facts):
    facts.find(finding(facts.gpu, HealthState.DEGRADED, key="mode-held", reach=Reach.PARTITIONS))
    told = facts.told()
    assert (told["gpu-0"], told["gpu-0-mig-1g10gb-19-0"][1] != "") == ((True, ""), True)


def test_nobody_knows_how_devices_are_while_nvml_is_released(facts):
    facts.released = RELEASED
    message = "NVML is released for maintenance by ann (driver 580), so nobody looks at this device"
    assert set(facts.told().values()) == {(None, message)}


def test_a_device_that_was_unhealthy_stays_so_while_nvml_is_released(facts):
    facts.find(finding(facts.gpu))
    facts.released = RELEASED
    assert facts.told()["gpu-0"][0] is False


def test_a_device_that_its_claim_lost_is_unhealthy(world, facts):
    ref = world.claim("one", world.partition(0, "1g.10gb", 0))
    world.serve(ref)
    world.machine.reset(facts.gpu)
    world.look()
    facts.records = world.node.records.list().records
    healthy, message = facts.told()["gpu-0-mig-1g10gb-19-0"]
    assert (healthy, message.startswith("its partition went")) == (False, True)


def test_a_whole_gpu_whose_driver_went_under_its_claim_is_unhealthy(world, facts):
    world.serve(world.claim("one", "gpu-0"))
    world.reload_module()
    world.look()
    facts.records = world.node.records.list().records
    healthy, message = facts.told()["gpu-0"]
    assert (healthy, message.startswith("the GPU's driver was loaded anew")) == (False, True)


@pytest.fixture
def watched(world):
    """A device that went with a reset and that only a claim with admin access still names: such stay for weeks."""
    device = world.partition(0, "1g.10gb", 0)
    first = world.claim("first", device)
    world.serve(first)
    world.serve(world.claim("watch", device, adminAccess=True))
    world.reset(0)
    world.look()
    world.unprepare(first)
    return device


def test_what_a_watcher_lost_is_well_for_the_claim_that_has_it_again(world, facts, watched):
    """The kubelet asks by the device's name alone."""
    world.machine.force_gi_id("0", 3)  # of the watcher's own id nothing is made while it may open that
    world.serve(world.claim("second", watched))
    facts.records = world.node.records.list().records
    assert facts.told()[watched] == (True, "")


def test_what_a_watcher_lost_and_nobody_has_again_is_unhealthy(world, facts, watched):
    facts.records = world.node.records.list().records
    assert facts.told()[watched][0] is False


def test_a_device_of_a_profile_that_the_gpu_driver_forgot_is_reported_while_it_is_held(world, facts):
    name = world.partition(0, "1g.10gb", 0)
    facts.records = (world.serve(world.claim("one", name)),)
    known = facts.roster.gpus[0]
    kept = tuple(profile for profile in known.gpu.profiles if profile.name != "1g.10gb")
    facts.roster = facts.roster.replace_gpu(replace(known, gpu=replace(known.gpu, profiles=kept)))
    facts.find(finding(facts.gpu, placement=Placement(start=0, size=1)))
    assert facts.told()[name][0] is False


def test_records_that_cannot_be_read_make_nothing_unknown(facts):
    facts.problem = StateError("cannot list the claims: I/O error")
    assert set(facts.told().values()) == {(True, "")}


def test_whoever_listens_hears_of_a_wake(facts):
    heard = []
    facts.report.listen(lambda: heard.append(1))
    facts.report.wake()
    assert heard == [1]


@pytest.mark.parametrize(
    ("state", "key", "reason"),
    [
        (HealthState.DEGRADED, "ecc", "Degraded"),
        (HealthState.UNHEALTHY, "xid", "Unhealthy"),
        (HealthState.GONE, "gone", "Gone"),
        (HealthState.UNHEALTHY, "wedged", "Wedged"),
    ],
)
def test_a_verdict_has_a_reason_in_one_word(state, key, reason):
    health = NodeHealth(findings=(finding("GPU-1", state, key=key),))
    assert plan_verdict(health, "GPU-1", None).reason == reason
