"""docs/simulator-protocol.md, from which people write clients, says what the simulator does."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path

from contract.named_world import shape
from tesela.edge.nvml.functions import FUNCTIONS
from tesela.edge.simulator import wire
from tesela.edge.simulator.calls import CALLS, NAMED_CALL
from tesela.edge.simulator.gpu import Process
from tesela.edge.simulator.named import NAMED
from tesela.edge.simulator.state import (
    CallState,
    ComputeInstanceState,
    GpuInstanceState,
    GpuState,
    HealthState,
    MachineState,
)
from tesela.edge.simulator.targets import NamedAnswer, NamedRequest
from tesela.edge.simulator.wire import Request, Response

PAGE = Path(__file__).parents[2] / "docs" / "simulator-protocol.md"


def test_the_page_lists_every_call():
    rows = set(re.findall(r"^\| 0x([0-9A-F]{4}) \| (nvml\w+)", PAGE.read_text(), re.MULTILINE))
    calls = {(f"{opcode:04X}", FUNCTIONS[call.method]) for opcode, call in CALLS.items()}
    assert rows ^ calls == set(), f"{PAGE.name}, 'Calls': add or take away the rows of these"


def table_of_the_page():
    rows = re.findall(r"^\| (nvml[\w, ]+) \| (\S+) \| ([^|]+) \|", PAGE.read_text(), re.MULTILINE)
    for names, target, takes in rows:
        parts = [] if takes == "none" else takes.split(", ")
        text = takes.startswith("text ") or target == "G+G"
        for name in names.split(", "):
            yield name, (target, 0 if takes.startswith("text ") else len(parts), text)


def test_the_page_lists_every_named_call():
    listed = {name for name, _ in table_of_the_page()}
    assert listed ^ set(NAMED) == set(), f"{PAGE.name}, 'Calls by name': add or take away the rows of these"


def test_the_page_lists_no_named_call_twice():
    listed = Counter(name for name, _ in table_of_the_page())
    twice = {name for name, count in listed.items() if count > 1}
    assert twice == set(), f"{PAGE.name}, 'Calls by name': keep one row of each of these"


def test_the_page_says_what_each_named_call_takes():
    rows = {(name, shape(row)) for name, row in NAMED.items()}
    assert set(table_of_the_page()) ^ rows == set(), f"{PAGE.name}, 'Calls by name': these differ from ROWS"


def test_the_page_shows_a_call_by_name_and_its_answer():
    request = NAMED_CALL.render_arguments((NamedRequest("nvmlUnitGetCount"),))
    frames = [
        wire.render_request(Request(opcode=NAMED_CALL.opcode, request_id=2, payload=request)),
        wire.render_response(Response(request_id=2, code=0, payload=NAMED_CALL.render_result(NamedAnswer((0,))))),
    ]
    shown = "".join(re.findall(r"^ {4,6}((?:[0-9a-f]{2} +)+[0-9a-f]{2})$", PAGE.read_text(), re.MULTILINE))
    assert b"".join(frames).hex() in shown.replace(" ", "")


def test_the_page_lists_every_field_of_a_status():
    section = PAGE.read_text().partition("The answer of `status`")[2].partition("\n## ")[0]
    parts = (MachineState, GpuState, GpuInstanceState, ComputeInstanceState, Process, HealthState, CallState)
    fields = {field.name for part in parts for field in dataclasses.fields(part)}
    listed = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`]+)`", section))))
    assert fields - listed == set(), f"{PAGE.name}, 'Acting on the machine': the table of `status` lacks these"
