"""The simulator's protocol: frames that come back as they went, and a server that no client can harm."""

from __future__ import annotations

import re
import socket
import struct
import threading

import pytest
from contract.sim_command import served
from hypothesis import given, settings
from hypothesis import strategies as st
from tesela.core.errors import DocumentError, NvmlError, StartError
from tesela.edge.nvml import codes
from tesela.edge.nvml.functions import FUNCTIONS
from tesela.edge.simulator import wire
from tesela.edge.simulator.admin import SimulatorAdmin
from tesela.edge.simulator.calls import CALLS, GET_NAME
from tesela.edge.simulator.faults import Fault, Hang
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.remote import RemoteNvml
from tesela.edge.simulator.server import SimulatorServer
from tesela.edge.simulator.wire import Reader, Request, Response

WORDS = st.integers(0, 2**32 - 1)


@pytest.fixture
def server(tmp_path):
    with served(tmp_path / "sim.sock", "a100-40gb:mig*2") as server:
        yield server


@pytest.fixture
def nvml(server):
    nvml = RemoteNvml(server.path, timeout_s=10)
    nvml.init()
    yield nvml
    nvml.close()


def dial(server) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(10)
    connection.connect(str(server.path))
    return connection


def hello(lowest: int = 1, highest: int = 1, magic: bytes = b"TSIM") -> bytes:
    return wire.render_request(Request(opcode=0, request_id=1, payload=magic + struct.pack("<HH", lowest, highest)))


def answer(connection: socket.socket) -> Response | None:
    body = wire.read_frame(connection, wait_s=10, body_s=10)
    return None if body is None else wire.parse_response(body)


def greeted(server) -> socket.socket:
    connection = dial(server)
    connection.sendall(hello())
    answer(connection)
    return connection


def text(payload: bytes) -> str:
    return wire.TEXT.take(Reader(payload))


# Frames


def test_the_bytes_of_a_request():
    frame = wire.render_request(Request(opcode=0x16, request_id=7, payload=b"\x02\0\0\0hi"))
    assert frame == bytes.fromhex("0e000000 1600 0000 07000000 02000000 6869")


@given(opcode=st.integers(0, 2**16 - 1), request_id=WORDS, payload=st.binary(max_size=64))
@settings(deadline=None)
def test_requests_round_trip(opcode, request_id, payload):
    request = Request(opcode=opcode, request_id=request_id, payload=payload)
    assert wire.parse_request(wire.render_request(request)[4:]) == request


@given(request_id=WORDS, code=WORDS, payload=st.binary(max_size=64))
@settings(deadline=None)
def test_responses_round_trip(request_id, code, payload):
    response = Response(request_id=request_id, code=code, payload=payload)
    assert wire.parse_response(wire.render_response(response)[4:]) == response


@given(body=st.binary(max_size=200))
@settings(deadline=None)
def test_any_bytes_are_a_request_or_a_refusal(body):
    try:
        request = wire.parse_request(body)
    except DocumentError:
        return
    assert wire.render_request(request)[4:] == body


@given(call=st.sampled_from(list(CALLS.values())), payload=st.binary(max_size=200))
@settings(max_examples=500, deadline=None)
def test_any_bytes_are_arguments_or_a_refusal(call, payload):
    try:
        arguments = call.parse_arguments(payload)
    except DocumentError:
        return
    assert call.render_arguments(arguments) == payload


@given(call=st.sampled_from(list(CALLS.values())), payload=st.binary(max_size=200))
@settings(max_examples=500, deadline=None)
def test_any_bytes_are_a_result_or_a_refusal(call, payload):
    try:
        call.parse_result(payload)
    except DocumentError:
        return


@given(values=st.lists(st.none() | st.integers(0, 2**64 - 1), max_size=8))
@settings(deadline=None)
def test_field_values_round_trip(values):
    codec, out = wire.sequence(wire.OPTIONAL_VALUE), bytearray()
    codec.put(out, tuple(values))
    assert codec.take(Reader(bytes(out))) == tuple(values)


@given(value=st.text(max_size=40))
@settings(deadline=None)
def test_texts_round_trip(value):
    out = bytearray()
    wire.TEXT.put(out, value)
    assert wire.TEXT.take(Reader(bytes(out))) == value


def test_a_long_list_is_refused_before_it_is_read():
    with pytest.raises(DocumentError, match="at most 4096"):
        wire.sequence(wire.U32).take(Reader(struct.pack("<I", 2**32 - 1)))


def test_a_number_that_does_not_fit_is_refused():
    with pytest.raises(DocumentError, match="does not fit"):
        wire.U32.put(bytearray(), -1)


def test_a_frame_that_is_too_long_is_not_sent():
    with pytest.raises(DocumentError, match="at most 1048576"):
        wire.render_request(Request(opcode=1, request_id=1, payload=bytes(wire.MAX_FRAME_BYTES)))


# Calls


def test_every_method_of_the_port_has_a_call():
    by_name = {
        *("get_supported_event_types", "open_event_set", "get_mig_memory_info"),
        *("get_gpm_support", "get_gpm_sample", "get_mig_gpm_sample", "get_gpm_metrics"),
    }
    never_asked = {"free_gpm_sample"}
    assert {call.method for call in CALLS.values()} | by_name | never_asked == set(FUNCTIONS)


def test_opcodes_never_move():
    # Written down a second time on purpose: a client of an older version relies on each.
    moved = {
        "get_name": 0x16,
        "set_mig_mode": 0x31,
        "create_gpu_instance": 0x35,
        "get_graphics_running_processes": 0x51,
    }
    assert {call.method: opcode for opcode, call in CALLS.items() if call.method in moved} == moved


# Server


def test_versions_are_agreed(server):
    with dial(server) as connection:
        connection.sendall(hello(1, 9))
        assert answer(connection).payload[:2] == struct.pack("<H", 1)


def test_a_client_of_another_version_is_told(server):
    with dial(server) as connection:
        connection.sendall(hello(2, 3))
        response = answer(connection)
        assert (response.code, text(response.payload)) == (
            codes.ARGUMENT_VERSION_MISMATCH,
            "this simulator speaks version 1, the client 2 to 3",
        )


@pytest.mark.parametrize(
    "first", [hello(magic=b"HTTP"), wire.render_request(Request(opcode=0x12, request_id=1, payload=b"abcdefgh"))]
)
def test_whoever_does_not_greet_is_shown_out(server, first):
    with dial(server) as connection:
        connection.sendall(first)
        assert [answer(connection).code, answer(connection)] == [codes.INVALID_ARGUMENT, None]


def test_a_call_of_a_later_version_is_function_not_found(server):
    with greeted(server) as connection:
        connection.sendall(wire.render_request(Request(opcode=0x7FFF, request_id=5, payload=b"")))
        response = answer(connection)
        assert (response.request_id, response.code) == (5, codes.FUNCTION_NOT_FOUND)


def test_a_bad_payload_is_answered_and_the_connection_goes_on(server):
    with greeted(server) as connection:
        for payload in (b"\xff", GET_NAME.render_arguments((server.machine.gpu("0").uuid,))):
            connection.sendall(wire.render_request(Request(opcode=GET_NAME.opcode, request_id=5, payload=payload)))
        assert [answer(connection).code, answer(connection).code] == [codes.INVALID_ARGUMENT, codes.SUCCESS]


def test_a_frame_that_is_too_long_ends_its_connection(server):
    with greeted(server) as connection:
        connection.sendall(struct.pack("<I", wire.MAX_FRAME_BYTES + 1))
        assert answer(connection) is None


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64, b"\x08\0\0\0\x16\0\x01\0\0\0\0\0", b"\x04"])
def test_garbage_harms_nobody_else(server, nvml, garbage):
    with dial(server) as connection:
        connection.sendall(garbage)
    assert nvml.get_device_count() == 2


def test_a_call_in_flight_holds_up_no_other(server, nvml):
    gpu = nvml.get_uuid(0)
    server.machine.inject(Hang(function="get_name", gpu=gpu))
    stuck = threading.Thread(target=nvml.get_name, args=(gpu,))
    stuck.start()
    server.machine.wait_for_hung_calls(1, timeout_s=5)
    assert nvml.get_name(nvml.get_uuid(1)) == "NVIDIA A100-SXM4-40GB"
    server.machine.release()
    stuck.join()


def test_many_threads_share_one_client(server, nvml):
    gpus, answers = [nvml.get_uuid(0), nvml.get_uuid(1)], []

    def ask(gpu):
        answers.extend(nvml.get_index(gpu) == gpus.index(gpu) for _ in range(50))

    threads = [threading.Thread(target=ask, args=(gpus[i % 2],)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [True] * 400


def test_no_answer_in_time_is_a_timeout(server):
    nvml = RemoteNvml(server.path, timeout_s=1)
    nvml.init()
    server.machine.inject(Hang(function="get_device_count"))
    with pytest.raises(NvmlError, match=r"did not answer within 1 s") as refused:
        nvml.get_device_count()
    nvml.close()
    assert refused.value.code == codes.TIMEOUT


def test_an_answer_to_another_request_is_not_taken(tmp_path):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(tmp_path / "odd.sock"))
    listener.listen()

    def answer_oddly():
        connection, _ = listener.accept()
        with connection:
            wire.read_frame(connection, wait_s=10, body_s=10)
            connection.sendall(wire.render_response(Response(request_id=99, code=0, payload=b"\x01\0\0\0\0\0")))

    odd = threading.Thread(target=answer_oddly)
    odd.start()
    with listener, pytest.raises(NvmlError, match="answer 99 to request 1"):
        RemoteNvml(tmp_path / "odd.sock", timeout_s=10).init()
    odd.join()


def test_no_simulator_is_a_driver_that_is_not_loaded(tmp_path):
    with pytest.raises(NvmlError, match="tesela sim serve") as refused:
        RemoteNvml(tmp_path / "none.sock").init()
    assert refused.value.code == codes.DRIVER_NOT_LOADED


def test_a_client_outlives_a_restart_of_the_simulator(server, nvml):
    server.stop()
    again = SimulatorServer(build_machine("a30"), server.path)
    again.start()
    assert nvml.get_device_count() == 1
    again.stop()


def test_gpus_outlive_their_client(server, nvml):
    gpu = nvml.get_uuid(0)
    nvml.create_gpu_instance(gpu, 9, nvml.get_gpu_instance_possible_placements(gpu, 9)[0])
    nvml.close()
    other = RemoteNvml(server.path)
    other.init()
    assert len(other.get_gpu_instances(gpu, 9)) == 1
    other.close()


def test_a_socket_in_use_is_not_taken(server):
    with pytest.raises(StartError, match="another simulator serves"):
        SimulatorServer(build_machine("a30"), server.path).start()


def test_a_file_is_not_replaced_by_a_socket(tmp_path):
    (tmp_path / "sim.sock").touch()
    with pytest.raises(StartError, match="no socket"):
        SimulatorServer(build_machine("a30"), tmp_path / "sim.sock").start()


def test_a_path_too_long_for_a_socket_is_refused(tmp_path):
    with pytest.raises(StartError, match="longer than 107 bytes"):
        SimulatorServer(build_machine("a30"), tmp_path / ("x" * 120)).start()


def test_the_socket_is_the_owners(server):
    assert server.path.stat().st_mode & 0o777 == 0o600


# Admin


@pytest.fixture
def admin(server):
    admin = SimulatorAdmin(server.path)
    yield admin
    admin.close()


def test_a_fault_can_be_sent(server, admin):
    admin.send({"op": "fail", "function": "get_name", "code": 19, "times": 3})
    assert server.machine.misbehaviours() == (Fault(function="get_name", code=19, times=3),)


def test_the_status_tells_what_is_injected(admin):
    admin.send({"op": "slow", "function": "*", "seconds": 0.001})
    injected = admin.send({"op": "status"})["misbehaviours"]
    assert injected == [{"kind": "latency", "function": "*", "seconds": 0.001, "gpu": None, "after": 0, "times": None}]


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ({}, "op: is missing"),
        ({"op": "explode"}, "unknown operation"),
        ({"op": "lose"}, "gpu: is missing"),
        ({"op": "lose", "gpu": 0}, "wrong type"),
        ({"op": "lose", "gpu": "7"}, "no GPU '7'"),
        ({"op": "reboot", "when": "now"}, "when: is unknown"),
        ({"op": "fail", "function": "get_name", "when": "never"}, "neither before nor after"),
        ({"op": "slow", "function": "get_name", "seconds": True}, "no number of seconds"),
        ({"op": "busy", "gpu": "0", "pid": True}, "no number"),
        ({"op": "busy", "gpu": "0", "pid": 1, "kind": "idle"}, "none of compute"),
        ({"op": "fabric", "gpu": "0", "state": 9}, "outside 0..3"),
    ],
)
def test_an_operation_that_cannot_be_done_says_why(admin, request_, problem):
    with pytest.raises(DocumentError, match=re.escape(problem)):
        admin.send(request_)


def test_an_admin_request_that_is_no_json_is_refused(server):
    payload = bytearray()
    wire.TEXT.put(payload, "reboot!")
    with greeted(server) as connection:
        connection.sendall(wire.render_request(Request(opcode=wire.ADMIN, request_id=1, payload=bytes(payload))))
        assert answer(connection).code == codes.INVALID_ARGUMENT
