"""`tesela release-gpu` against a driver's release: what it asks, how it waits, what it prints."""

from __future__ import annotations

import json
import threading

import pytest
from polling import until
from release_desk import Desk, running, turns_away
from tesela.cli.main import main
from tesela.core.errors import NvmlTimeout
from tesela.core.model import DRIVER_NAME
from tesela.core.released import NOT_RELEASED, Source
from tesela.edge.nvml import codes
from tesela.edge.simulator.faults import Fault, Hang


@pytest.fixture
def desk(tmp_path):
    state_dir = tmp_path / DRIVER_NAME
    state_dir.mkdir()
    return Desk(state_dir)


def run(desk, *arguments):
    return main(["release-gpu", "--plugins-dir", str(desk.state_dir.parent), *arguments])


def test_it_returns_when_nvml_is_closed(desk):
    with running(desk):
        assert (run(desk), desk.is_closed) == (0, True)


def test_it_says_what_to_do_next(desk, capsys):
    with running(desk):
        run(desk)

    assert "`tesela release-gpu --resume`" in capsys.readouterr().out


def test_resume_returns_when_nvml_is_open(desk):
    with running(desk):
        run(desk)

        assert (run(desk, "--resume"), desk.is_closed) == (0, False)


def test_resume_waits_while_nvml_is_being_opened(desk, capsys):
    with running(desk):
        run(desk)
        desk.machine.inject(Hang(function="init"))

        code = run(desk, "--resume", "--timeout", "0.3")

    assert (code, "for the driver to open NVML" in capsys.readouterr().err) == (1, True)


def test_resume_returns_when_claims_are_prepared_again(desk):
    with running(desk) as release, release.work():
        desk.ask()
        until(lambda: turns_away(release))

        assert (run(desk, "--resume"), turns_away(release)) == (0, False)


def test_resume_where_nobody_asked_has_nothing_to_wait_for(desk):
    with running(desk):
        assert (run(desk, "--resume", "--timeout", "0"), desk.store.path.exists()) == (0, False)


def test_resume_tells_who_asks_again_meanwhile(desk, capsys):
    with running(desk):
        run(desk)
        desk.machine.inject(Fault(function="init", code=codes.DRIVER_NOT_LOADED, times=None))
        desk.inner.before_init = lambda: desk.ask("the next work")

        code = run(desk, "--resume", "--timeout", "5")

    assert (code, "again by alex (the next work)" in capsys.readouterr().err) == (1, True)


def test_resume_waits_for_the_process_that_takes_the_place_of_one_with_an_old_library(desk):
    with running(desk):
        run(desk)
        desk.machine.inject(Fault(function="init", code=codes.LIB_RM_VERSION_MISMATCH, times=None))
        run(desk, "--resume", "--timeout", "0")
        until(lambda: desk.failures)
        said = desk.said().problem
        desk.mark.hold()  # as the next one does before it opens NVML

        code = run(desk, "--resume", "--timeout", "0")

        desk.mark.drop()

    assert (code, "does not match the loaded kernel module" in said) == (1, True)


def test_the_reason_reaches_the_driver(desk):
    with running(desk) as release:
        run(desk, "--reason", "driver 590")

        assert release.released.requests[0].reason == "driver 590"


def test_where_no_driver_runs_nvml_is_closed_already(desk):
    assert (run(desk), desk.said().is_wanted) == (0, True)


def test_what_it_waits_for_is_said_and_the_request_stands(desk, capsys):
    with running(desk):
        gpu = desk.nvml.get_uuid(0)
        desk.machine.inject(Hang(function="get_name", gpu=gpu))
        with pytest.raises(NvmlTimeout):
            desk.nvml.get_name(gpu)

        code = run(desk, "--timeout", "1.5")
        said = capsys.readouterr().err

    assert (code, f"a call on {gpu} is still inside NVML" in said, desk.said().is_wanted) == (1, True, True)


def test_a_wait_of_more_than_two_seconds_shows_progress(desk, capsys):
    desk.part.stuck = True
    with running(desk):
        waiting = threading.Thread(target=run, args=(desk,))
        waiting.start()
        said = []
        until(lambda: said.append(capsys.readouterr().err) or "waiting for the driver to close NVML" in "".join(said))
        desk.part.stuck = False
        waiting.join(10)

    assert "a look is still inside NVML" in "".join(said)


def test_resume_without_a_driver_says_where_to_look(desk, capsys):
    run(desk)

    code = run(desk, "--resume", "--timeout", "0.3")

    said = capsys.readouterr().err
    assert (code, "is `tesela plugin` running on this node?" in said, "is withdrawn" in said) == (1, True, True)


@pytest.mark.parametrize("reason", ["", " \n ", "x" * 257])
def test_a_reason_that_no_sentence_can_hold_is_wrong_usage(desk, reason):
    with pytest.raises(SystemExit) as ended:
        run(desk, "--reason", reason)

    assert (ended.value.code, desk.said().is_wanted) == (2, False)


def test_a_reason_of_several_lines_becomes_one(desk):
    run(desk, "--reason", "driver 590,\n  ticket 4711")

    assert desk.said().requests[0].reason == "driver 590, ticket 4711"


def test_resume_names_the_label_that_still_asks(desk, capsys):
    desk.label("true")
    with running(desk):
        desk.closes()
        run(desk)

        code = run(desk, "--resume")

    assert (code, "kubectl label node NODE gpu.nvidia.com/release-gpu-" in capsys.readouterr().err) == (1, True)


def test_status_shows_who_asked(desk, capsys):
    desk.ask("driver 590")

    run(desk, "--status")

    assert capsys.readouterr().out.splitlines() == [
        "NVML is closed",
        "released since 1970-01-01T00:00:01Z by alex (command): driver 590",
    ]


def test_status_is_json_for_machines(desk, capsys):
    desk.ask("driver 590")

    run(desk, "--status", "-o", "json")

    shown = json.loads(capsys.readouterr().out)
    asked = {"source": "command", "reason": "driver 590", "requestedBy": "alex", "since": "1970-01-01T00:00:01Z"}
    assert shown == {"nvmlOpen": False, "requests": [asked], "closedBy": None, "closed": None, "problem": None}


def test_status_changes_nothing(desk):
    run(desk, "--status")

    assert not desk.store.path.exists()


def test_a_damaged_file_is_set_aside_and_resume_goes_on(desk, capsys):
    desk.store.path.write_bytes(b"{")
    with running(desk):
        code = run(desk, "--resume")

    assert (code, desk.said()) == (0, NOT_RELEASED)


def test_a_node_without_a_driver(tmp_path, capsys):
    code = main(["release-gpu", "--plugins-dir", str(tmp_path)])

    assert (code, "no driver ever ran here" in capsys.readouterr().err) == (1, True)


def test_two_requests_of_one_kind_are_one(desk):
    run(desk)
    run(desk, "--reason", "another")

    assert [(one.source, one.reason) for one in desk.said().requests] == [(Source.COMMAND, "maintenance")]


def test_release_and_resume_exclude_each_other():
    with pytest.raises(SystemExit, match="2"):
        main(["release-gpu", "--resume", "--status"])
