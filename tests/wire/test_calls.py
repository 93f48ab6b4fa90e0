"""Prepare and unprepare over the real sockets, in both versions."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from polling import until
from tesela.core.errors import ClaimRefused, TryAgain
from tesela.core.model import Refusal
from tesela.edge.kubelet.client import PluginClient
from tesela.pb.dra.v1 import api_pb2, api_pb2_grpc
from wire.kubelet_fakes import claim, device

VERSIONS = ["v1.DRAPlugin", "v1beta1.DRAPlugin"]


@pytest.fixture(params=VERSIONS)
def any_client(request, server):
    with PluginClient(server.registrar_socket, known_versions=[request.param]) as opened:
        opened.register()
        yield opened


@pytest.fixture
def stub(server):
    with grpc.insecure_channel(f"unix:{server.service_socket}") as channel:
        yield api_pb2_grpc.DRAPluginStub(channel)


def test_devices_arrive_as_they_were_given(any_client, node_service):
    devices = (device("gpu-0"), device("gpu-1", request_names=("a", "b"), cdi_device_ids=("x/y=1", "x/y=2")))
    node_service.devices = {"u1": devices}
    assert any_client.prepare([claim("u1")]) == {"u1": devices}


def test_a_claim_without_devices_of_ours_is_prepared(any_client, node_service):
    node_service.devices = {"u1": ()}
    assert any_client.prepare([claim("u1")]) == {"u1": ()}


def test_a_device_without_cdi_ids_arrives(any_client, node_service):
    node_service.devices = {"u1": (device(cdi_device_ids=()),)}
    assert any_client.prepare([claim("u1")]) == {"u1": (device(cdi_device_ids=()),)}


def test_the_service_sees_the_claim_as_the_kubelet_named_it(server, client, make_server, kubelet):
    seen = []

    class Recording:
        def prepare(self, claims, deadline_s):
            seen.extend(claims)
            return {one.uid: () for one in claims}

    other = make_server(service=Recording(), pod_uid="other")
    other.start()
    with PluginClient(other.registrar_socket) as opened:
        opened.register()
        opened.prepare([claim("u1", "scene", "spatial-net")])
    assert seen == [claim("u1", "scene", "spatial-net")]


@pytest.mark.parametrize(("version", "share_id"), [(VERSIONS[0], "share-1"), (VERSIONS[1], None)])
def test_only_v1_carries_the_id_of_a_share(server, node_service, version, share_id):
    node_service.devices = {"u1": (device(share_id="share-1"),)}
    with PluginClient(server.registrar_socket, known_versions=[version]) as opened:
        opened.register()
        answer = opened.prepare([claim("u1")])
    assert answer == {"u1": (device(share_id=share_id),)}


def test_one_claim_fails_and_the_other_is_prepared(any_client, node_service):
    node_service.devices = {"good": (device(),), "bad": Refusal(message="claim bad: gpu-9 is not here")}
    assert any_client.prepare([claim("good"), claim("bad")]) == node_service.devices


def test_unprepare_answers_per_claim(any_client, node_service):
    node_service.errors = {"good": None, "bad": "claim bad: GPU instance 3 is in use by process 42"}
    assert any_client.unprepare([claim("good"), claim("bad")]) == node_service.errors


def test_a_refusal_without_words_is_still_a_refusal(client, node_service):
    node_service.devices = {"u1": Refusal(message="")}
    assert "no reason" in client.prepare([claim("u1")])["u1"].message


def test_an_unprepare_error_without_words_is_still_an_error(client, node_service):
    node_service.errors = {"u1": ""}
    assert "no reason" in client.unprepare([claim("u1")])["u1"]


def test_a_sentence_with_an_undecodable_path_arrives(client, node_service):
    node_service.devices = {"u1": Refusal(message="cannot open /dev/\udcff")}
    assert client.prepare([claim("u1")]) == {"u1": Refusal(message="cannot open /dev/\\udcff")}


def test_an_exception_becomes_an_error_of_every_claim(any_client, node_service):
    node_service.raises = KeyError("secret")
    answers = any_client.prepare([claim("u1"), claim("u2")])
    assert {uid: "KeyError" in answer.message for uid, answer in answers.items()} == {"u1": True, "u2": True}


def test_the_text_of_an_unexpected_exception_stays_in_the_log(client, node_service, caplog):
    node_service.raises = KeyError("secret")
    assert "secret" not in client.prepare([claim("u1")])["u1"].message
    assert "secret" in caplog.text


def test_an_error_of_ours_is_told_in_its_own_words(any_client, node_service):
    node_service.raises = ClaimRefused("the records folder is read-only: remount it")
    assert any_client.unprepare([claim("u1")]) == {
        "u1": "claim team/claim-u1 (u1): the records folder is read-only: remount it"
    }


def test_the_driver_serves_on_after_an_exception(client, node_service):
    node_service.raises = KeyError("once")
    client.prepare([claim("u1")])
    node_service.raises = None
    node_service.devices = {"u1": (device(),)}
    assert client.prepare([claim("u1")]) == {"u1": (device(),)}


def test_a_claim_that_the_service_forgot_is_answered(client, node_service):
    node_service.devices = {"u1": ()}
    assert "gave no answer" in client.prepare([claim("u1"), claim("u2")])["u2"].message


def test_a_claim_that_nobody_asked_for_is_dropped(client, node_service):
    node_service.devices = {"u1": (), "stranger": (device(),)}
    assert client.prepare([claim("u1")]) == {"u1": ()}


def test_a_claim_listed_twice_is_served_once(client, node_service):
    node_service.devices = {"u1": ()}
    client.prepare([claim("u1"), claim("u1")])
    assert node_service.calls == [("prepare", ("u1",))]


@pytest.mark.parametrize("uid", ["", ".", "../../etc/passwd", "a/b", "a\nb", "x" * 200, ".hidden"])
def test_a_uid_that_is_no_file_name_goes_no_further(any_client, node_service, uid):
    node_service.devices = {"u1": ()}
    answers = any_client.prepare([claim("u1"), claim(uid, "evil")])
    assert "none that an API server makes" in answers[uid].message
    assert node_service.calls == [("prepare", ("u1",))]


def test_an_empty_request_has_an_empty_answer(any_client, node_service):
    assert any_client.prepare([]) == {}
    assert node_service.calls == []


def test_calls_of_different_pods_run_side_by_side(client, node_service):
    node_service.gate.clear()
    uids = [f"u{n}" for n in range(8)]
    node_service.devices = dict.fromkeys(uids, ())
    with ThreadPoolExecutor(len(uids)) as pods:
        calls = [pods.submit(client.prepare, [claim(uid)]) for uid in uids]
        all_inside = until(lambda: len(node_service.calls) == len(uids))
        node_service.gate.set()
        answers = [call.result() for call in calls]
    assert all_inside
    assert answers == [{uid: ()} for uid in uids]


def test_the_kubelets_45_seconds_leave_40(client, node_service):
    node_service.devices = {"u1": ()}
    client.prepare([claim("u1")])
    assert node_service.deadlines_s == [pytest.approx(40.0, abs=1.0)]


def test_a_short_deadline_leaves_a_share(client, node_service):
    node_service.devices = {"u1": ()}
    client.prepare([claim("u1")], timeout_s=10.0)
    assert node_service.deadlines_s == [pytest.approx(8.0, abs=1.0)]


def test_without_a_deadline_it_is_40_seconds(stub, node_service):
    node_service.devices = {"u1": ()}
    stub.NodePrepareResources(api_pb2.NodePrepareResourcesRequest(claims=[api_pb2.Claim(uid="u1")]))
    assert node_service.deadlines_s == [40.0]


def test_a_call_whose_caller_gave_up_in_the_queue_is_not_begun(client, stub, node_service):
    node_service.gate.clear()
    node_service.devices = {f"u{n}": () for n in range(16)}
    with ThreadPoolExecutor(16) as pods:
        calls = [pods.submit(client.prepare, [claim(uid)]) for uid in node_service.devices]
        assert until(lambda: len(node_service.calls) == 16)
        request = api_pb2.NodePrepareResourcesRequest(claims=[api_pb2.Claim(uid="late")])
        with pytest.raises(grpc.RpcError):
            stub.NodePrepareResources(request, timeout=0.2)
        node_service.gate.set()
        assert all(call.result() for call in calls)
    # One more call, after the abandoned one in the queue.
    node_service.devices = {"next": ()}
    client.prepare([claim("next")])
    assert ("prepare", ("late",)) not in node_service.calls


def test_bytes_that_are_no_message_end_their_call_only(server, client, node_service):
    with grpc.insecure_channel(f"unix:{server.service_socket}") as channel:
        call = channel.unary_unary("/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources")
        with pytest.raises(grpc.RpcError) as refused:
            call(b"\xff\xff\xff", timeout=5)
    node_service.devices = {"u1": ()}
    assert refused.value.code() == grpc.StatusCode.INTERNAL
    assert client.prepare([claim("u1")]) == {"u1": ()}


def test_bytes_that_are_no_http_end_their_connection_only(server, client, node_service):
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(5)
        raw.connect(str(server.service_socket))
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        while raw.recv(4096):
            pass
    node_service.devices = {"u1": ()}
    assert client.prepare([claim("u1")]) == {"u1": ()}


def test_a_health_watch_is_unimplemented(server):
    with grpc.insecure_channel(f"unix:{server.service_socket}") as channel:
        watch = channel.unary_stream("/v1.DRAResourceHealth/NodeWatchResources")
        with pytest.raises(grpc.RpcError) as refused:
            list(watch(b"", timeout=5))
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_client_that_is_not_registered_says_so(server):
    with PluginClient(server.registrar_socket) as opened, pytest.raises(TryAgain, match="not registered"):
        opened.prepare([claim("u1")])


def test_a_driver_that_is_too_slow_is_a_try_again(client, node_service):
    node_service.gate.clear()
    with pytest.raises(TryAgain, match="DEADLINE_EXCEEDED"):
        client.prepare([claim("u1")], timeout_s=0.2)
