"""A cluster of its own for what daemonset/ ships and removes. At the end: counts, and what was refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from e2e.harness import build, container_image, deployed
from e2e.harness.cluster import NODE, Cluster
from e2e.harness.driver import DRIVER, list_slices
from e2e.harness.processes import wait_until

ROOT = Path(__file__).resolve().parents[3]
_SUMMARY = pytest.StashKey["Summary"]()


@dataclass(slots=True)
class Summary:
    """What a person reads at the end."""

    counts: dict[str, str] = field(default_factory=dict)
    refused: list[tuple[str, str]] = field(default_factory=list)

    def count(self, what: str, number: object) -> None:
        """Keeps a figure."""
        self.counts[what] = str(number)

    def refuse(self, attempt: str, said: str) -> None:
        """Keeps what was tried, and the part of the server's answer that says why not."""
        for start in (f'User "system:serviceaccount:{deployed.NAMESPACE}:{deployed.DRIVER}" ', "denied request: "):
            said = said.rpartition(start)[2]
        self.refused.append((attempt, said.partition(" * ")[0]))


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SUMMARY] = Summary()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    summary = config.stash[_SUMMARY]
    if summary.counts:
        terminalreporter.section("the shipped manifests on a real cluster")
        for what, number in summary.counts.items():
            terminalreporter.write_line(f"{number:>12}  {what}")
    if summary.refused:
        terminalreporter.section(f"refused to the driver's token: {len(summary.refused)} attempts")
        for attempt, answer in summary.refused:
            terminalreporter.write_line(f"{attempt:<48} {answer}")


@pytest.fixture(scope="session")
def summary(pytestconfig: pytest.Config) -> Summary:
    return pytestconfig.stash[_SUMMARY]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster with the image, and with nothing of daemonset/ yet."""
    archive = container_image.build_image()
    cluster = Cluster(build.prepare())
    cluster.up()
    try:
        cluster.import_image(archive)
        for label in ("gpu.nvidia.com/simulated", "nvidia.com/gpu.present"):
            cluster.kubectl("label", "node", NODE, f"{label}=true")
        yield cluster
    finally:
        cluster.down()


@pytest.fixture(scope="module", autouse=True)
def bare_node(cluster: Cluster) -> Iterator[None]:
    """Each file begins with the classes and without a driver, and leaves no driver's files to the next: other GPUs."""
    cluster.apply(ROOT / "deviceclasses")
    yield
    wait_until("the kubelet has removed the slices", lambda: not list_slices(cluster), timeout_s=90)
    shutil.rmtree(cluster.kubelet_folder / "plugins" / DRIVER, ignore_errors=True)
