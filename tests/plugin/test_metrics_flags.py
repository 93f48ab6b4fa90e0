"""Who asks for metrics, traces and a form of log, by flag or by environment, and what cannot work."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest
from tesela.cli.main import main
from tesela.cli.plugin import add_arguments, read_config
from tesela.edge.telemetry.logs import LogFormat

WITHOUT_OPENTELEMETRY = """
import sys
sys.modules["opentelemetry"] = None
from tesela.cli.main import main
sys.exit(main(["plugin", "--node-name=n", "--kubeconfig=/nonexistent", "--traces"]))
"""
IMPORTED_BY_A_QUIET_DRIVER = """
import sys
import tesela.plugin.main
print(sorted({"prometheus_client", "opentelemetry"}.intersection(sys.modules)))
"""


def read(*argv):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return read_config(parser.parse_args(["--node-name=n", *argv]))


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in (
        *("TESELA_METRICS_PORT", "TESELA_METRICS_ADDRESS", "TESELA_LOG_FORMAT", "TESELA_LOG_LEVEL"),
        *("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
    ):
        monkeypatch.delenv(name, raising=False)


def test_nothing_is_served_unless_asked_for():
    config = read()

    assert (config.metrics_port, config.traces, config.log_format, config.log_level) == (
        None,
        False,
        LogFormat.TEXT,
        "info",
    )


def test_flags_ask():
    config = read("--metrics-port=9400", "--metrics-address=127.0.0.1", "--traces", "--log-format=json")

    assert (config.metrics_port, config.metrics_address, config.traces, config.log_format) == (
        9400,
        "127.0.0.1",
        True,
        LogFormat.JSON,
    )


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("TESELA_METRICS_PORT", "9400", "metrics_port", 9400),
        ("TESELA_METRICS_ADDRESS", "::1", "metrics_address", "::1"),
        ("TESELA_LOG_FORMAT", "json", "log_format", LogFormat.JSON),
        ("TESELA_LOG_LEVEL", "debug", "log_level", "debug"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318", "traces", True),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://collector:4318/v1/traces", "traces", True),
    ],
)
def test_the_environment_asks(monkeypatch, name, value, field, expected):
    monkeypatch.setenv(name, value)

    assert getattr(read(), field) == expected


@pytest.mark.parametrize(
    "flag",
    [
        *("--metrics-port=0", "--metrics-port=65536", "--metrics-port=http", "--metrics-port=-1"),
        *("--log-format=xml", "--log-level=loud"),
    ],
)
def test_what_cannot_work_is_one_line(capsys, flag):
    code = main(["plugin", "--node-name=n", flag])

    assert (code, capsys.readouterr().err.startswith(f"tesela plugin: {flag.partition('=')[0]} is ")) == (1, True)


def test_an_address_that_is_not_here_is_one_line(capsys):
    code = main(["plugin", "--node-name=n", "--metrics-port=9400", "--metrics-address=192.0.2.1"])

    assert (code, "192.0.2.1, port 9400" in capsys.readouterr().err) == (1, True)


def test_traces_without_opentelemetry_say_what_to_install():
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_OPENTELEMETRY], capture_output=True, text=True, timeout=60, check=False
    )

    assert (ended.returncode, "install tesela[traces]" in ended.stderr, ended.stderr.count("\n")) == (1, True, 1)


def test_a_quiet_driver_imports_neither_library():
    told = subprocess.run(
        [sys.executable, "-c", IMPORTED_BY_A_QUIET_DRIVER], capture_output=True, text=True, timeout=60, check=True
    )

    assert told.stdout == "[]\n"
