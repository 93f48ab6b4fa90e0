"""Log lines: both forms, and the claim in every line of its work, whichever thread writes it."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import threading

import pytest
from tesela.core.model import ClaimRef
from tesela.edge.nvml.worker import Worker
from tesela.edge.store.locks import hold
from tesela.edge.telemetry.logs import JsonFormatter, LogFormat, TextFormatter, configure_logs
from tesela.edge.telemetry.work import Verb, working_on
from tesela.plugin.recover import recover_claim
from tesela.plugin.side_by_side import run_side_by_side

CLAIM = ClaimRef(namespace="default", name="one", uid="8a1c0f5e-0000-4000-8000-000000000001")
log = logging.getLogger("test")


@pytest.fixture
def lines():
    """What is logged, a line each, in the form that `lines(formatter)` says."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)

    def read(formatter):
        handler.setFormatter(formatter)
        return lambda: stream.getvalue().splitlines()

    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    yield read
    log.removeHandler(handler)


def test_a_line_of_text_ends_with_the_claim(lines):
    read = lines(TextFormatter())
    with working_on(Verb.PREPARE, CLAIM):
        log.info("GPU %d is slow", 3)

    assert read()[0].endswith(f"I test: GPU 3 is slow [claim {CLAIM.uid}]")


def test_a_line_that_names_the_claim_does_not_name_it_twice(lines):
    read = lines(TextFormatter())
    with working_on(Verb.PREPARE, CLAIM):
        log.info("claim %s: prepared", CLAIM)

    assert read()[0].count(CLAIM.uid) == 1


def test_outside_of_a_claims_work_there_is_no_claim(lines):
    read = lines(TextFormatter())
    with working_on(Verb.PREPARE, CLAIM):
        pass
    log.info("GPU 3 is slow")

    assert read()[0].endswith("I test: GPU 3 is slow")


def test_a_line_of_json_is_one_object(lines):
    read = lines(JsonFormatter())
    with working_on(Verb.UNPREPARE, CLAIM):
        log.warning("a line\nand another, in “quotes”")

    line = json.loads(read()[0])
    assert {key: line[key] for key in line if key not in {"time", "thread"}} == {
        "level": "warning",
        "logger": "test",
        "message": "a line\nand another, in “quotes”",
        "claim": "default/one",
        "claimUID": CLAIM.uid,
        "verb": "unprepare",
    }


def test_a_traceback_is_a_field(lines):
    read = lines(JsonFormatter())
    try:
        raise ValueError("no such thing")
    except ValueError:
        log.exception("failed")

    assert "ValueError: no such thing" in json.loads(read()[0])["error"]


def test_json_is_ascii_so_that_any_encoding_writes_it():
    message = "“é” \udcff \u2028 \U0001f600"
    # Not logged: pytest would put it into its report, which a worker of xdist has to send as UTF-8 and cannot.
    record = logging.makeLogRecord({"msg": message})

    line = JsonFormatter().format(record)

    assert (line.isascii(), json.loads(line)["message"]) == (True, message)


def test_what_others_wrote_begins_no_line_of_text(lines):
    read = lines(TextFormatter())
    log.warning("refused: %s", "no\n2026-01-12 09:14:03,118 I tesela: all is well\r\x1b[2K")

    assert [line.partition("test: ")[2] for line in read()] == [
        r"refused: no\n2026-01-12 09:14:03,118 I tesela: all is well\r\x1b[2K"
    ]


PROGRAM = """
import logging, sys, threading, warnings
from tesela.edge.telemetry.logs import LogFormat, configure_logs, log_everything
configure_logs(LogFormat.JSON, "info")
log_everything()
warnings.warn("old")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise OSError("full")
"""


def test_what_nobody_caught_is_a_line_of_json():
    told = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False).stderr

    lines = [json.loads(line) for line in told.splitlines()]
    assert [(line["level"], line.get("error", "").splitlines()[-1:]) for line in lines] == [
        ("warning", []),
        ("critical", ["ZeroDivisionError: division by zero"]),
        ("critical", ["OSError: full"]),
    ]


def test_a_start_that_fails_is_told_in_the_logs_form(tmp_path):
    flags = ("--nvml=simulated:a100-40gb", "--log-format=json", "--node-name=n", f"--kubeconfig={tmp_path}/none")
    told = subprocess.run(
        [sys.executable, "-c", "import sys; from tesela.cli.main import main; sys.exit(main())", "plugin", *flags],
        capture_output=True,
        text=True,
        check=False,
    )

    (line,) = [json.loads(line) for line in told.stderr.splitlines()]
    assert (told.returncode, line["level"], "kubeconfig" in line["message"]) == (1, "critical", True)


def test_time_is_utc_with_milliseconds():
    record = logging.LogRecord("test", logging.INFO, "", 0, "x", (), None)
    record.created, record.msecs = 1_700_000_000.0, 7

    assert json.loads(JsonFormatter().format(record))["time"] == "2023-11-14T22:13:20.007Z"


def test_the_thread_that_calls_nvml_knows_the_claim(lines):
    read = lines(TextFormatter())
    worker = Worker("GPU-1", "GPU GPU-1", lambda: None)
    with working_on(Verb.PREPARE, CLAIM):
        worker.run("nvmlX", lambda: log.info("inside"), 5)
    worker.stop()

    assert CLAIM.uid in read()[0]


def test_that_thread_forgets_it_with_its_call(lines):
    read = lines(TextFormatter())
    worker = Worker("GPU-1", "GPU GPU-1", lambda: None)
    with working_on(Verb.PREPARE, CLAIM):
        worker.run("nvmlX", lambda: None, 5)
    worker.run("nvmlX", lambda: log.info("another's"), 5)
    worker.stop()

    assert CLAIM.uid not in read()[0]


def test_threads_side_by_side_know_the_claim(lines):
    read = lines(TextFormatter())
    with working_on(Verb.PREPARE, CLAIM):
        run_side_by_side({"one": lambda: log.info("inside")}, timeout_s=5, name="look")

    assert CLAIM.uid in read()[0]


def test_two_claims_at_once_keep_apart(lines):
    read = lines(TextFormatter())
    both = threading.Barrier(2)

    def work(name):
        with working_on(Verb.PREPARE, ClaimRef(namespace="default", name=name, uid=f"uid-{name}")):
            both.wait(timeout=10)
            log.info("of %s", name)

    run_side_by_side({name: lambda name=name: work(name) for name in ("a", "b")}, timeout_s=10, name="work")

    assert sorted(line.partition("test: ")[2] for line in read()) == ["of a [claim uid-a]", "of b [claim uid-b]"]


def test_the_level_decides_what_is_written():
    stream, root = io.StringIO(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        configure_logs(LogFormat.TEXT, "warning", stream)
        logging.getLogger("quiet").info("not this")
        logging.getLogger("quiet").warning("but this")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)

    assert [line.partition("quiet: ")[2] for line in stream.getvalue().splitlines()] == ["but this"]


def test_a_line_about_a_claim_of_which_only_the_uid_is_known_names_it(world, caplog):
    ref = world.claim("a", world.partition(0, "1g.5gb", 6))
    world.serve(ref)
    caplog.handler.setFormatter(JsonFormatter())
    caplog.set_level(logging.INFO)
    caplog.clear()
    with hold(world.node.locks.claim_lock(ref.uid), 5, "the claim"):
        recover_claim(world.node, ref.uid)

    assert [json.loads(line)["claimUID"] for line in caplog.text.splitlines()] == [ref.uid]
