"""Logs and metrics in a bundle: all that was named, nothing of what they hold in confidence."""

from __future__ import annotations

from pathlib import Path

import pytest
from tesela.cli.bundle import render_metrics_url
from tesela.cli.bundle_parts import Places, collect_logs, collect_metrics
from tesela.cli.main import main
from tesela.core.redact import LEFT_OUT
from watched_program import Watched

TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzYSJ9.c2lnbmF0dXJl"


def places_of(**known):
    nowhere = dict.fromkeys(("state_dir", "cdi_dir", "proc_root"), Path("/nowhere"))
    return Places(**{**nowhere, "node_name": "node-1", "logs": (), "metrics_url": "", **known})


def test_a_log_that_was_named_is_in_it(tmp_path):
    log = tmp_path / "driver.log"
    log.write_text(f"hello\nAuthorization: Bearer {TOKEN}\n")

    part = collect_logs(places_of(logs=(log,)))

    assert part.files["logs/driver.log"].decode() == f"hello\nAuthorization: {LEFT_OUT}\n"


def test_without_a_log_the_command_for_one_is_named():
    assert "kubectl logs" in collect_logs(places_of()).missing["logs"]


def test_two_logs_of_one_name_are_both_in_it(tmp_path):
    logs = [tmp_path / folder / "driver.log" for folder in ("a", "b")]
    for log in logs:
        log.parent.mkdir()
        log.write_text(f"{log.parent.name}\n")

    assert sorted(collect_logs(places_of(logs=tuple(logs))).files.values()) == [b"a\n", b"b\n"]


def test_a_log_that_is_not_there_costs_no_other(tmp_path):
    (tmp_path / "driver.log").write_text("hello\n")
    part = collect_logs(places_of(logs=(tmp_path / "none.log", tmp_path / "driver.log")))

    assert (list(part.files), "No such file" in part.missing["logs/none.log"]) == (["logs/driver.log"], True)


def test_the_end_of_a_log_begins_with_a_whole_line(tmp_path):
    log = tmp_path / "driver.log"
    log.write_text("password=correct-horse\n" + "x" * ((16 << 20) - 8) + "\n")

    assert b"horse" not in collect_logs(places_of(logs=(log,))).files["logs/driver.log"]


def test_an_archive_goes_into_a_folder_that_is_there(tmp_path, capsys):
    code = main(["bundle", "-o", str(tmp_path / "no" / "x.tar.gz"), "--timeout=1"])

    assert (code, "is no folder" in capsys.readouterr().err, list(tmp_path.iterdir())) == (1, True, [])


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("", "http://127.0.0.1:9400/metrics"),
        ("::1", "http://[::1]:9400/metrics"),
        ("10.0.0.5", "http://10.0.0.5:9400/metrics"),
    ],
)
def test_metrics_are_asked_for_where_the_driver_serves_them(address, url):
    assert render_metrics_url(address, "9400") == url


def test_metrics_of_the_running_driver_are_in_it(short_path):
    program = Watched(short_path, "h100-80gb")
    try:
        url = f"http://127.0.0.1:{program.port}/metrics"
        part = collect_metrics(places_of(metrics_url=url))
    finally:
        program.close()

    assert b"tesela_slice_writes_total" in part.files["metrics.txt"]
