"""The contract suite of the Kubernetes port, tests/contract, on the real API server."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from e2e.harness.build import HarnessError
from e2e.harness.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]


def test_the_real_api_server_keeps_the_contract_of_the_port(cluster: Cluster) -> None:
    kubeconfig = cluster.certificates.path("admin.kubeconfig")
    suite = [sys.executable, "-m", "pytest", "-q", "-m", "cluster", "-p", "no:cacheprovider", f"--rootdir={ROOT}"]
    environment = ["env", f"TESELA_E2E_KUBECONFIG={kubeconfig}", "PYTEST_ADDOPTS="]

    try:
        said = cluster.run([*environment, *suite, f"-c{ROOT}/pyproject.toml", ROOT / "tests/contract"], timeout_s=240)
    except HarnessError as failed:
        pytest.fail(str(failed)[-6000:], pytrace=False)

    assert re.search(r"[1-9]\d+ passed", said)
