"""What daemonset/monitoring ships for Prometheus is valid, and each alert is quiet, fires and clears."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from e2e.harness.build import get_prometheus
from e2e.harness.prometheus import MONITORING

ALERTS = Path(__file__).parent / "alerts"


def promtool(*arguments: str | Path) -> tuple[int, str]:
    done = subprocess.run(
        [get_prometheus() / "promtool", *arguments], capture_output=True, text=True, timeout=60, check=False, cwd=ALERTS
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("file", ["alerts.yaml", "old-names.yaml"])
def test_a_rule_file_is_valid(file: str) -> None:
    code, said = promtool("check", "rules", MONITORING / file)

    assert code == 0, said


@pytest.mark.parametrize("file", sorted(path.name for path in ALERTS.glob("*.yaml")))
def test_each_alert_fires_and_clears(file: str) -> None:
    code, said = promtool("test", "rules", file)

    assert code == 0, said
