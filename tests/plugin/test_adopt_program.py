"""The node program takes a node over at its start, and `tesela adoption` shows it before and after."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from moved_world import Moved
from node_program import make_program, open_watched, start
from pod_resources import FakePodResources
from polling import until
from tesela.cli.main import main
from tesela.core.adoption import TheirPartitions
from tesela.edge.kube.port import EVENTS
from tesela.edge.kubelet.pod_resources import PodResources
from tesela.edge.store.records import RecordStore
from tesela.pb.podresources.v1 import api_pb2 as v1
from tesela.plugin.main import Plugin


class Program:
    """The node program of a world, in whose folder lies a checkpoint with one partition's claim."""

    def __init__(self, folder):
        self.world, config = make_program(folder, "a100-40gb:mig")
        self.kubelet = FakePodResources(folder / "pods.sock")
        self.config = replace(config, pod_resources=folder / "pods.sock", adopted_partitions=TheirPartitions.ON_DEMAND)
        self.config.state_dir.mkdir(parents=True)
        moved = Moved(self.world)
        self.ref, self.live = moved.partition("a", 0, "1g.5gb", 4)
        self.checkpoint = moved.theirs.write(self.config.state_dir)
        self.kubelet.pods.append(_render_pod(self.ref, self.world.partition(0, "1g.5gb", 4)))
        self.plugin = None

    def start(self):
        self.plugin = start(Plugin(self.config, self.world.kube, open_watched(self.world, self.config)))

    def stop(self):
        if self.plugin is not None:
            self.plugin.stop()
        self.kubelet.stop()


def _render_pod(ref, device):
    cdi = v1.CDIDevice(name=f"k8s.gpu.nvidia.com/claim={ref.uid}-{device}")
    resource = v1.ClaimResource(driver_name="gpu.nvidia.com", pool_name="node-1", device_name=device, cdi_devices=[cdi])
    dynamic = v1.DynamicResource(claim_name=ref.name, claim_namespace=ref.namespace, claim_resources=[resource])
    container = v1.ContainerResources(name="main", dynamic_resources=[dynamic])
    return v1.PodResources(name="pod", namespace=ref.namespace, containers=[container])


@pytest.fixture
def program(short_path):
    program = Program(short_path)
    yield program
    program.stop()


def test_the_kubelet_tells_the_name_of_a_claim_that_the_checkpoint_has_by_uid_alone(program):
    program.start()

    record = RecordStore(program.config.state_dir).read(program.ref.uid)
    assert (record.adopted, record.claim) == (True, program.ref)


def test_an_event_says_that_the_node_was_taken_over(program):
    program.start()

    def list_notes():
        return [one["note"] for one in program.world.kube.list(EVENTS).items if one["reason"] == "ClaimsAdopted"]

    assert until(list_notes)
    assert "1 of its claims are adopted and 0 are left" in list_notes()[0]


def test_claims_of_other_drivers_are_not_taken_for_ours(program):
    program.kubelet.pods[0].containers[0].dynamic_resources[0].claim_resources[0].driver_name = "other.example.com"

    assert PodResources(program.config.pod_resources).list_claims() == ()


def test_the_command_shows_what_was_taken_over(program, capsys):
    program.start()

    code = main(["adoption", "--plugins-dir", str(program.config.plugins_dir), "-o", "json"])

    shown = json.loads(capsys.readouterr().out)
    assert (code, shown["preview"], [one["fate"] for one in shown["claims"]]) == (0, False, ["adopted"])


def test_the_command_names_each_claim_for_people(program, capsys):
    program.start()

    main(["adoption", "--plugins-dir", str(program.config.plugins_dir)])

    assert f"  adopted default/a ({program.ref.uid}): gpu-0-mig-1g5gb-19-4" in capsys.readouterr().out


def test_the_command_says_where_nothing_was_adopted(tmp_path, capsys):
    code = main(["adoption", "--plugins-dir", str(tmp_path)])

    assert (code, "nothing was adopted here" in capsys.readouterr().err) == (1, True)


def test_the_command_refuses_a_word_that_it_does_not_know(program, capsys):
    arguments = ["plugin", "--node-name", "n", "--nvml", "simulated:a100-40gb", "--adopted-partitions", "some"]

    code = main(arguments)

    assert (code, "auto, on-demand, static" in capsys.readouterr().err) == (1, True)


def test_the_command_does_not_open_an_nvml_that_is_released(program, capsys):
    (program.config.state_dir / "released.json").write_text("{}")

    code = main(["adoption", "--node-name", "node-1", "--plugins-dir", str(program.config.plugins_dir)])

    assert (code, "NVML is released for maintenance" in capsys.readouterr().err) == (1, True)
