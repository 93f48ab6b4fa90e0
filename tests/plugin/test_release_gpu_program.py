"""A whole driver whose NVML is released and opened again: what it publishes, what it answers, what it finds."""

from __future__ import annotations

import dataclasses

import pytest
from health_program import Running
from polling import until
from tesela.core.model import Refusal
from tesela.core.record import ClaimState
from tesela.core.released import Request, Source
from tesela.edge.nvml import codes
from tesela.edge.store.locks import FileLocks
from tesela.edge.store.released import OpenMark, ReleasedStore
from tesela.plugin.assembly import build_release_files
from tesela.plugin.health.report import HealthReport
from tesela.plugin.main import Plugin
from tesela.plugin.release_gpu import open_unless_released
from tesela.plugin.service import ClaimService


class Node(Running):
    """A running driver whose NVML may be asked for."""

    def release(self):
        self.ask()
        assert until(lambda: not self.mark.is_held(), timeout_s=15)
        assert until(lambda: self.devices() and self.tainted("released") == set(self.devices()))

    def ask(self):
        files = build_release_files(self.config, self.world.kube)
        asked = Request(source=Source.COMMAND, reason="driver 590", requested_by="alex", since_s=1)
        files.change(lambda released: released.with_request(asked))

    def resume(self):
        files = build_release_files(self.config, self.world.kube)
        files.change(lambda released: released.without(Source.COMMAND))
        assert until(self.mark.is_held)
        assert until(lambda: self.devices() and not self.tainted("released"))
        assert until(lambda: self.plugin.observers.events.is_open)  # what happens before that, nobody is told

    @property
    def mark(self):
        return OpenMark(FileLocks(self.config.state_dir).folder)

    @property
    def service(self):
        return ClaimService(self.plugin.node, self.plugin.release.work)

    def prepare(self, ref):
        return self.service.prepare([ref], 20)[ref.uid]

    def is_unhealthy(self, device):
        node = self.plugin.node
        report = HealthReport(
            pool=node.pool,
            health=lambda: node.health.health,
            roster=lambda: node.lookout.roster,
            records=lambda: node.records.list().records,
        )
        return next(one.healthy for one in report.get_report() if one.device == device) is False

    def find_partition(self):
        return next(name for name in sorted(self.devices()) if "-mig-1g" in name)


@pytest.fixture
def node(short_path):
    node = Node(short_path, "a100-40gb:mig*2")
    yield node
    node.close()


def test_every_device_is_tainted_and_stays_published(node):
    before = set(node.devices())

    node.release()

    assert (set(node.devices()), node.taints(node.find_partition())) == (before, {"released=driver-590:NoSchedule"})


def test_the_driver_stays_registered(node):
    node.release()

    assert node.plugin.server.service_socket.exists()


def test_a_claim_waits_with_a_sentence_and_is_served_afterwards(node):
    ref = node.world.claim("late", node.find_partition())
    node.release()
    refused = node.prepare(ref)
    node.resume()

    served = node.prepare(ref)

    assert refused == Refusal(
        message="claim default/late: NVML is released for maintenance by alex (driver 590); `tesela release-gpu "
        "--resume` on this node ends that, and the kubelet tries again by itself"
    )
    assert not isinstance(served, Refusal)


def test_a_claim_that_ends_meanwhile_waits_too(node):
    held = node.claim("held", node.find_partition())
    node.release()

    said = node.service.unprepare([held.claim], 20)[held.claim.uid]

    assert "released for maintenance by alex" in said


def test_a_claim_whose_gpu_was_reset_meanwhile_is_lost_and_unhealthy(node):
    device = node.find_partition()
    held = node.claim("held", device)
    node.release()
    node.sim("reset", gpu="0", force=True)
    node.resume()

    assert until(lambda: node.plugin.node.records.read(held.claim.uid).state is ClaimState.PREPARING)
    assert until(lambda: node.is_unhealthy(device))


def test_a_claim_that_was_not_touched_meanwhile_is_still_prepared(node):
    held = node.claim("held", node.find_partition())
    node.release()
    node.resume()
    node.look()

    assert node.plugin.node.records.read(held.claim.uid) == held


def test_an_upgrade_meanwhile_shows_in_the_devices(node):
    node.release()
    node.sim("reload", driver="590.44.01")
    node.resume()

    def version():
        return node.devices()[node.find_partition()]["attributes"]["driverVersion"]["version"]

    assert until(lambda: version() == "590.44.1")


def test_an_upgrade_raises_the_generation_of_every_gpu(node):
    before = [known.generation for known in node.plugin.node.lookout.roster.gpus]
    node.claim("held", node.find_partition())
    node.release()
    node.sim("reload", driver="590.44.01")
    node.resume()

    assert until(
        lambda: [known.generation for known in node.plugin.node.lookout.roster.gpus] == [one + 1 for one in before]
    )


def test_faults_are_seen_again_afterwards(node):
    node.release()
    node.resume()

    node.sim("xid", gpu="0", xid=48)

    assert until(lambda: node.signals() == {"xid-48"})


def test_a_process_that_ends_meanwhile_ends_well_and_the_next_one_closes_nvml_again(node):
    node.release()

    node.stop()
    node.begin()  # with NVML open, as one does that has not read the file before

    assert until(lambda: not node.mark.is_held())


def test_a_process_that_begins_meanwhile_publishes_what_the_node_had(node):
    before = set(node.devices())
    node.release()
    node.stop()
    nvml = node.nvml
    open_unless_released(nvml, build_release_files(node.config, node.world.kube))
    assert not nvml.is_open

    node.plugin = Plugin(node.config, node.world.kube, nvml)
    node.plugin.start()

    assert until(node.plugin.publisher.published.is_set)
    assert (set(node.devices()), node.tainted("released")) == (before, before)


def test_a_process_that_began_meanwhile_serves_once_nvml_is_open(node):
    ref = node.world.claim("late", node.find_partition())
    node.release()
    node.stop()
    open_unless_released(node.nvml, build_release_files(node.config, node.world.kube))
    node.plugin = Plugin(node.config, node.world.kube, node.nvml)
    node.plugin.start()
    node.resume()

    assert not isinstance(node.prepare(ref), Refusal)


def test_nothing_is_left_of_a_release_that_is_over(node):
    node.release()
    node.resume()

    assert until(lambda: not ReleasedStore(node.config.state_dir).path.exists())


def test_the_taints_stay_until_nvml_is_really_open_again(node):
    node.release()
    node.sim("fail", function="nvmlInit_v2", code=codes.DRIVER_NOT_LOADED, forever=True)
    build_release_files(node.config, node.world.kube).change(lambda released: released.without(Source.COMMAND))
    store = ReleasedStore(node.config.state_dir)
    assert until(lambda: "cannot be opened again yet" in store.read().problem)
    node.plugin.publisher.wake("a test")

    assert not until(lambda: not node.tainted("released"), timeout_s=0.5)


def test_static_partitions_stay_as_published_by_a_process_that_has_not_seen_them(node, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nrules:\n- mode: static\n")
    node.stop()
    node.config = dataclasses.replace(node.config, policy=policy)
    node.world.make_foreign(0, "1g.5gb", 0)
    node.start()
    assert until(lambda: len(node.devices()) == 1)
    node.release()
    node.stop()
    open_unless_released(node.nvml, build_release_files(node.config, node.world.kube))

    node.plugin = Plugin(node.config, node.world.kube, node.nvml)
    node.plugin.start()
    node.plugin.publisher.wake("a test")

    assert not until(lambda: len(node.devices()) != 1, timeout_s=0.5)
