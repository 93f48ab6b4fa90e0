"""Whatever a client sends, the simulator goes on. The same inputs each run; `make fuzz` looks for new ones."""

from __future__ import annotations

import inspect
import resource
import socket
import struct
import subprocess
import sys
import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nvml.fuzz import proxy, served
from nvml.fuzz.conversations import ADMIN, CALLS, HELLO, WAIT_EVENT, conversations, frame, text
from polling import until
from tesela.core.errors import DocumentError, NvmlError
from tesela.edge.nvml import codes
from tesela.edge.nvml.functions import FUNCTIONS
from tesela.edge.simulator import calls
from tesela.edge.simulator.activity import ActivitySample, SimulatedSample
from tesela.edge.simulator.admin import SimulatorAdmin
from tesela.edge.simulator.frames import FrameStream
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.remote import RemoteNvml

GPUS = build_machine(served.MACHINE).visible_uuids()
CORPUS = sorted((Path(__file__).parent / "fuzz" / "corpus" / "server").glob("*.bin"))


def have(*talks: list[bytes]) -> list[tuple[int, int]]:
    with tempfile.TemporaryDirectory() as folder, served.served(Path(folder) / "sim.sock") as simulator:
        return served.hold_out(simulator, talks)


@pytest.fixture
def simulator(tmp_path):
    with served.served(tmp_path / "sim.sock") as simulator:
        yield simulator


def dial(simulator) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(simulator.path))  # waits for its turn; with a timeout it would be turned away
    connection.settimeout(10)
    return connection


def admin(document: str) -> bytes:
    return frame(ADMIN, text(document.encode()))


def test_the_fuzzer_knows_every_call():
    assert set(calls.CALLS) <= set(CALLS)


@given(talks=st.lists(conversations(GPUS), min_size=1, max_size=3))
@settings(max_examples=150, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_client_harms_the_simulator(talks):
    have(*talks)


@pytest.mark.parametrize("found", CORPUS, ids=lambda path: path.stem)
def test_what_was_found_once_stays_harmless(found):
    have([found.read_bytes()])


# What was found, by name


def test_json_too_deep_to_read_is_refused():
    assert have([HELLO, admin("[" * 20000)])[1] == (7, codes.INVALID_ARGUMENT)


def test_a_delay_beyond_any_number_is_refused():
    document = f'{{"op": "slow", "function": "get_name", "seconds": 1{"0" * 400}}}'
    assert have([HELLO, admin(document)])[1] == (7, codes.INVALID_ARGUMENT)


@pytest.mark.parametrize(
    "field", ['"clique_id": 4294967296', '"clique_id": -1', '"cluster_uuid": "\\ud800"', '"cluster_uuid": "x"']
)
def test_a_fabric_that_nvml_cannot_tell_is_refused(field):
    answers = have(
        [HELLO, admin(f'{{"op": "fabric", "gpu": "2", "state": 3, {field}}}'), frame(0x1E, text(GPUS[2].encode()))]
    )
    assert [code for _, code in answers[1:3]] == [codes.INVALID_ARGUMENT, codes.SUCCESS]


@pytest.mark.parametrize("payload", [b"", b"TSI", b"TSIM\x01", b"TSIM\x01\0\x01\0more"])
def test_half_a_hello_is_answered(payload):
    assert have([frame(0, payload, 1)])[0] == (1, codes.INVALID_ARGUMENT)


def test_a_frame_that_trickles_in_is_not_waited_for_beyond_its_time():
    # Each byte comes in time, the frame as a whole does not.
    near, far = socket.socketpair()
    with near, far:
        far.sendall(struct.pack("<I", 100))
        trickle = subprocess.Popen([sys.executable, "-c", TRICKLE, str(far.fileno())], pass_fds=[far.fileno()])
        try:
            with pytest.raises(TimeoutError):
                FrameStream(near, frame_s=0.5).receive()
        finally:
            trickle.kill()
            trickle.wait()


TRICKLE = """
import socket, sys, time
far = socket.socket(fileno=int(sys.argv[1]))
for _ in range(100):
    far.send(b"x")
    time.sleep(0.1)
"""


def test_a_simulator_out_of_descriptors_goes_on(simulator):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with dial(simulator) as early:
        early.sendall(HELLO)
        early.recv(4)  # taken, before there is nothing left to take it with
        waiting = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(4)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(s.fileno() for s in waiting) + 1, limits[1]))
        try:
            for connection in waiting:
                connection.connect(str(simulator.path))
            early.sendall(frame(0x0012, b""))
            early.recv(1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for connection in waiting:
            connection.close()
    with dial(simulator) as late:
        late.sendall(HELLO)
        assert late.recv(4) != b""


def test_a_client_that_leaves_while_it_waits_for_an_event_is_let_go(simulator):
    with dial(simulator) as connection:
        registration = text(GPUS[0].encode()) + struct.pack("<QQ", 2**64 - 1, 0)
        connection.sendall(HELLO + frame(WAIT_EVENT, struct.pack("<I", 1) + registration + b"\xff\xff\xff\xff"))
        connection.recv(4)
    assert until(lambda: not simulator.crowd, 8)


# The clients in Python: what a hostile simulator may make of a call is an NvmlError, and nothing else


@pytest.fixture(params=range(4))
def hostile(simulator, tmp_path, request):
    with served.lively(simulator), proxy.between(simulator.path, tmp_path / "no.sock", proxy.hostile(request.param)):
        yield tmp_path / "no.sock"


ARGUMENTS = {
    "gpu_uuid": GPUS[0],
    "mig_uuid": GPUS[0].replace("GPU", "MIG"),
    "field_ids": (184,),
    "profile_id": 19,
    "gi_id": 7,
    "metric_ids": (2,),
    "before": SimulatedSample(GPUS[0], ActivitySample(1, 0, 0)),
    "after": SimulatedSample(GPUS[0], ActivitySample(1, 1000, 500)),
}
READS = [name for name in FUNCTIONS if name.startswith("get_")]


def code_of(call) -> int:
    try:
        call()
    except NvmlError as error:
        return error.code
    except DocumentError:  # what the admin's client says where the simulator refuses
        return codes.INVALID_ARGUMENT
    return codes.SUCCESS


def read(nvml, name: str) -> None:
    call = getattr(nvml, name)
    call(**{argument: ARGUMENTS.get(argument, 0) for argument in inspect.signature(call).parameters})


def test_the_driver_bears_a_hostile_simulator(hostile):
    nvml = RemoteNvml(hostile, timeout_s=2)
    with closing(nvml):
        assert until(lambda: code_of(nvml.init) == codes.SUCCESS)
        found = {code_of(partial(read, nvml, name)) for _ in range(5) for name in READS}
    assert found <= served.KNOWN_CODES


def test_the_command_bears_a_hostile_simulator(hostile):
    with closing(SimulatorAdmin(hostile, timeout_s=2)) as admin:
        found = {code_of(partial(admin.send, {"op": "status"})) for _ in range(60)}
    assert found <= served.KNOWN_CODES


def answer_with(simulator, tmp_path, change):
    """A proxy that changes the answers to everything but hellos."""

    def spoil(request: bytes, answer: bytes) -> tuple[list[bytes], bool]:
        return [proxy.framed(answer if request[:2] == bytes(2) else change(answer))], True

    return proxy.between(simulator.path, tmp_path / "odd.sock", spoil)


def test_a_code_that_nvml_does_not_have_is_unknown(simulator, tmp_path):
    with (
        answer_with(simulator, tmp_path, lambda answer: answer[:4] + struct.pack("<I", 4096) + text(b"")),
        closing(RemoteNvml(tmp_path / "odd.sock", timeout_s=2)) as nvml,
    ):
        assert code_of(nvml.init) == codes.UNKNOWN


@pytest.mark.parametrize("document", [b"{", b"[]", b"[" * 20000, b"\xff"])
def test_an_answer_of_the_admin_that_is_no_document_is_unknown(simulator, tmp_path, document):
    with (
        answer_with(simulator, tmp_path, lambda answer: answer[:8] + text(document)),
        closing(SimulatorAdmin(tmp_path / "odd.sock", timeout_s=2)) as admin,
    ):
        assert code_of(partial(admin.send, {"op": "status"})) == codes.UNKNOWN
