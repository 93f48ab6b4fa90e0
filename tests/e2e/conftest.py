"""Fixtures of the end-to-end tests: one cluster for the session, one node set-up per module, one namespace per test."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.harness import build, progress
from e2e.harness.cluster import Cluster
from e2e.harness.identity import Identity, create_identity
from e2e.harness.node import Node
from e2e.harness.pods import Namespace

ROOT = Path(__file__).resolve().parents[2]
PERMISSIONS = ROOT / "daemonset" / "base" / "permissions"
LOGS = Path(os.environ.get("TESELA_E2E_LOGS") or Path(tempfile.gettempdir()) / "tesela-e2e-failures")
TIMEOUT_S = 300  # of one test with its fixtures, where it sets none itself
# Of whose log a failure shows the end, and which lines.
_TELLING = {"driver": ".", "simulator": ".", "kubelet": r"^[EWF]\d{4}.*([dD]ynamic|DRA|[cC]laim)|DRA plugin"}
_FAILED = pytest.StashKey[bool]()
_binaries: list[Path] = []
_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    progress.keep_terminal()


def pytest_unconfigure(config: pytest.Config) -> None:
    progress.drop_terminal()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Everything slow that is done once per machine, before any test's time counts; workers of xdist find it done."""
    if session.config.option.collectonly:
        return
    if os.geteuid() != 0:
        pytest.exit(
            "tests/e2e brings up a real Kubernetes in namespaces of its own: run it as root; `make test` needs none",
            returncode=4,
        )
    try:
        _binaries.append(build.prepare())
    except build.HarnessError as error:
        pytest.exit(f"tests/e2e cannot be set up: {error}", returncode=4)
    if not hasattr(session.config, "workerinput"):
        shutil.rmtree(LOGS, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """On a failure: logs and objects into a folder that outlives the cluster, the last lines into the report."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    cluster = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and cluster is not None:
        folder = LOGS / re.sub(r"[^\w.-]+", "_", item.nodeid)
        cluster.collect(folder)
        report.sections.append(("cluster", f"logs and objects: {folder}"))
        for name, process in cluster.processes.items():
            if pattern := _TELLING.get(name.split("-")[0]):
                report.sections.append((f"end of {process.log.name}", process.tail(25, matching=pattern)))
    return report


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The real cluster with the permissions and classes that are shipped, still without GPUs."""
    cluster = Cluster(_binaries[0])
    cluster.up()
    try:
        cluster.apply(PERMISSIONS, ROOT / "deviceclasses")
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[Namespace]:
    """A namespace of the test's own. Its claims may ask for admin access."""
    namespace = Namespace(cluster, f"test-{next(_numbers)}")
    namespace.create({"resource.kubernetes.io/admin-access": "true"})
    yield namespace
    namespace.clear()
    namespace.remove()


@pytest.fixture(scope="session")
def identity(cluster: Cluster) -> Identity:
    """A pod of the driver and its token, without a driver."""
    return create_identity(cluster, "nobody")


@pytest.fixture(scope="module")
def node(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Node]:
    """The module's GPUs, as in its GPUS, and one driver, with what ARGUMENTS has where it is there."""
    arguments = getattr(request.module, "ARGUMENTS", ())
    node = Node(cluster, f"plugin-{next(_numbers)}", request.module.GPUS, arguments)
    try:
        yield node
    finally:
        node.close()


@pytest.fixture
def work(node: Node, namespace: Namespace, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """The test's namespace on the module's node; when its pods have ended, nothing of their claims may be left.

    After a failure the node begins anew, so that one broken scenario does not break the next ones.
    """
    yield namespace
    if request.node.stash.get(_FAILED, False):
        node.renew()
        return
    try:
        namespace.clear()
        node.wait_clean()
    except BaseException:
        node.renew()
        raise
