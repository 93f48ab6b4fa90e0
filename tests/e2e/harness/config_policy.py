"""The admission policy of configs on a cluster: in force, and out of the way for tests of what prepare itself refuses.

The API server takes policies up and drops them a moment after they are written: both are seen on a claim that nobody
keeps.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from e2e.harness.build import HarnessError
from e2e.harness.cluster import Cluster
from e2e.harness.pods import render_claim, render_claim_spec, render_opaque, render_request
from e2e.harness.processes import wait_until

NAME = "tesela-configs"
FILE = Path(__file__).resolve().parents[3] / "daemonset" / "base" / "permissions" / "config-admission.yaml"
_BAD = render_claim(
    "nobody-keeps-this", render_claim_spec([render_request("core")], config=[render_opaque("GpuConfiguration")])
)


def wait_in_force(cluster: Cluster) -> None:
    """Until the API server refuses a bad config."""
    wait_until(f"policy {NAME} is in force", lambda: _refuses(cluster), timeout_s=30)


@contextlib.contextmanager
def without_config_policy(cluster: Cluster) -> Iterator[None]:
    """Bad configs reach prepare meanwhile, as where the policy is not installed."""
    cluster.kubectl("delete", "validatingadmissionpolicybinding", NAME)
    wait_until(f"policy {NAME} is out of force", lambda: not _refuses(cluster), timeout_s=30)
    try:
        yield
    finally:
        cluster.apply(FILE)
        wait_in_force(cluster)


def _refuses(cluster: Cluster) -> bool:
    try:
        cluster.kubectl("-n", "default", "create", "--dry-run=server", "-f", "-", stdin=json.dumps(_BAD))
    except HarnessError as error:
        if NAME in str(error):
            return True
        raise
    return False
