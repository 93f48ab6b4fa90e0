"""One node, two releases: the one before, as its wheel, and this checkout's. Real processes, the same GPUs and files.

Forward, all that the older one wrote is read, and its claims go on. Back, the older one refuses before it changes
anything, and the way forward again is open.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from chaos.driver import TESELA, render_environment
from chaos.node import ChaosNode
from downgrade.older import build_release_before
from polling import until
from tesela.core.model import ClaimRef, Refusal
from tesela.edge.kube.port import RESOURCE_CLAIMS, RESOURCE_SLICES

START_S = 60.0
REFUSAL = "run the release of tesela that wrote it"


@pytest.fixture(scope="session")
def older():
    """The package of the release before."""
    return build_release_before()


class Releases:
    """A node on which drivers of two releases run, one after the other. `claims` are those that it holds."""

    def __init__(self, older: Path) -> None:
        self.older = older
        self.log: list[str] = []
        self.node = ChaosNode("a100-40gb:mig,a100-40gb", self.log.append)
        self.claims: dict[str, ClaimRef] = {}

    def start(self, release: Path | None) -> None:
        self.node.start(release)

    def exchange(self, release: Path | None) -> None:
        """The driver ends and one of `release` begins."""
        self.node.restart_driver(lambda: None, release)

    def hold(self, device: str) -> ClaimRef:
        """A claim with `device`, allocated."""
        obj = self.node.cluster.create(
            RESOURCE_CLAIMS,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": f"claim-of-{device}", "namespace": "default"},
                "spec": {"devices": {"requests": [{"name": "r0", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
            },
        )
        result = {"request": "r0", "driver": "gpu.nvidia.com", "pool": "node-1", "device": device}
        obj["status"] = {"allocation": {"devices": {"results": [result]}}}
        self.node.cluster.replace_status(RESOURCE_CLAIMS, obj)
        return ClaimRef(namespace="default", name=f"claim-of-{device}", uid=obj["metadata"]["uid"])

    def find_partition(self) -> str:
        """The first published partition."""
        found: list[str] = []

        def is_published() -> bool:
            slices = self.node.cluster.list(RESOURCE_SLICES).items
            names = [device["name"] for one in slices for device in one["spec"].get("devices", ())]
            found[:] = [name for name in names if "-mig-" in name]
            return bool(found)

        assert until(is_published, START_S)
        return found[0]

    def prepare(self) -> dict[str, object]:
        """What the driver answers for a whole GPU and a partition: made at the first call, the same ever after."""
        if not self.claims:
            self.claims = {device: self.hold(device) for device in ("gpu-1", self.find_partition())}
        answers = self.node.driver.client.prepare(list(self.claims.values()))
        refused = [one.message for one in answers.values() if isinstance(one, Refusal)]
        assert not refused
        return dict(answers)

    def end(self) -> list[str]:
        """What is left once all claims are given back."""
        refused = [one for one in self.node.driver.client.unprepare(list(self.claims.values())).values() if one]
        assert not refused
        return self.node.list_leftovers()

    def read_state(self) -> dict[str, object]:
        """All that a driver may lose: its files, those of containers, and the partitions."""
        files = {
            str(path): path.read_bytes()
            for folder in (self.node.state_dir, self.node.cdi_dir)
            for path in folder.rglob("*")
            if path.is_file() and path.suffix != ".lock"
        }
        return {**files, **{gpu.uuid: gpu.instances for gpu in self.node.machine.snapshot().gpus}}

    def try_older(self) -> subprocess.CompletedProcess[str]:
        """The release before on this node, until it ends by itself."""
        command = [sys.executable, "-c", TESELA, "plugin", "--pod-uid=older", *self.node.list_arguments()]
        environment = render_environment(self.older)
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=START_S, check=False)


@pytest.fixture
def releases(older):
    releases = Releases(older)
    yield releases
    releases.node.close()


def test_the_wheel_is_of_another_release_than_this_checkout(older):
    program = "import tesela, tesela.edge.documents.record as r; print(tesela.__file__, r._ENVELOPE._version)"
    command = [sys.executable, "-c", program]
    said = [
        subprocess.run(command, env=render_environment(where), capture_output=True, text=True, check=True).stdout
        for where in (older, None)
    ]

    assert [one.split()[1] for one in said] == ["1", "2"], said


def test_claims_of_the_older_release_go_on_after_an_upgrade(releases):
    releases.start(releases.older)
    before = releases.prepare()
    releases.exchange(None)

    assert (releases.prepare(), releases.end()) == (before, [])


def test_an_upgrade_says_the_form_of_the_roster_at_once(releases):
    """By it the older release refuses, though no claim has come yet."""
    releases.start(releases.older)
    releases.exchange(None)

    assert json.loads((releases.node.state_dir / "roster.json").read_text())["version"] == 2


def test_the_older_release_refuses_what_this_one_wrote_and_says_what_to_do(releases):
    releases.start(None)
    releases.prepare()
    releases.node.driver.stop()
    refused = releases.try_older()

    assert (refused.returncode, refused.stderr.count(REFUSAL)) == (1, 1), refused.stderr


def test_the_older_release_changes_nothing_that_this_one_wrote(releases):
    releases.start(None)
    releases.prepare()
    releases.node.driver.stop()
    before = releases.read_state()
    releases.try_older()

    assert releases.read_state() == before


def test_claims_go_on_on_the_way_forward_again(releases):
    releases.start(None)
    before = releases.prepare()
    releases.exchange(None)
    releases.node.driver.stop()
    releases.try_older()
    releases.exchange(None)

    assert (releases.prepare(), releases.end()) == (before, [])


def test_both_releases_at_once_as_in_a_rolling_update_lose_nothing(releases):
    releases.start(releases.older)
    before = releases.prepare()
    releases.node.overlap_drivers()

    assert (releases.prepare(), releases.end()) == (before, [])
