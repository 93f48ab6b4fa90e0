"""Streams of device health as the kubelet has them: real sockets, both versions, one driver instance."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from polling import until
from tesela.core.errors import StateError, TryAgain
from tesela.edge.kubelet.client import PluginClient
from tesela.edge.kubelet.health import MIN_GAP_S, MOST_STREAMS
from tesela.edge.kubelet.port import DeviceHealth
from tesela.edge.kubelet.registration import HEALTH_SERVICES, SUPPORTED_VERSIONS
from tesela.pb.dra_health.v1 import api_pb2 as v1
from wire.kubelet_fakes import FakeHealth, Watcher, claim

WATCH = "/v1.DRAResourceHealth/NodeWatchResources"
SOON_S = 0.02
SICK = DeviceHealth(pool="node-a", device="gpu-0", healthy=False, message="Xid 79 since 12:00: replace the board")
WELL = DeviceHealth(pool="node-a", device="gpu-0", healthy=True)
UNSURE = DeviceHealth(pool="node-a", device="gpu-0", healthy=None, message="NVML does not answer")


@pytest.fixture
def health():
    return FakeHealth()


@pytest.fixture
def make_health_server(make_server, health):
    """A started driver that serves health; told to send again after `resend_s`."""

    def make(resend_s: float = 10.0):
        server = make_server()
        server.serve_health(health, resend_s=resend_s)
        server.start()
        return server

    return make


@pytest.fixture
def watch():
    """Opens streams as kubelets of their own, and ends all of them."""
    opened = []

    def open_stream(server, known=SUPPORTED_VERSIONS + HEALTH_SERVICES) -> Watcher:
        client = PluginClient(server.registrar_socket, known)
        client.register()
        watcher = Watcher(client.watch_health())
        opened.append((client, watcher))
        return watcher

    yield open_stream
    for client, watcher in opened:
        watcher.close()
        client.close()


@pytest.mark.parametrize("service", HEALTH_SERVICES)
def test_a_kubelet_that_knows_one_version_gets_its_reports(make_health_server, watch, service):
    watcher = watch(make_health_server(), (*SUPPORTED_VERSIONS, service))
    assert watcher.wait_for(1)[0] == (WELL,)


@pytest.mark.parametrize(
    ("known", "chosen"),
    [(HEALTH_SERVICES, "v1.DRAResourceHealth"), (HEALTH_SERVICES[1:], "v1alpha1.DRAResourceHealth"), ((), None)],
)
def test_the_kubelet_takes_the_newest_version_that_both_know(make_health_server, known, chosen):
    with PluginClient(make_health_server().registrar_socket, (*SUPPORTED_VERSIONS, *known)) as kubelet:
        kubelet.register()
        assert kubelet.health_service == chosen


def test_both_versions_are_promised_after_those_of_prepare(make_health_server):
    with PluginClient(make_health_server().registrar_socket) as kubelet:
        assert kubelet.register().versions == SUPPORTED_VERSIONS + HEALTH_SERVICES


def test_health_alone_is_no_driver(make_health_server):
    with PluginClient(make_health_server().registrar_socket, HEALTH_SERVICES) as kubelet, pytest.raises(TryAgain):
        kubelet.register()


@pytest.mark.parametrize("device", [WELL, SICK, UNSURE], ids=["healthy", "unhealthy", "unknown"])
@pytest.mark.parametrize("service", HEALTH_SERVICES)
def test_every_state_arrives_with_its_message(make_health_server, watch, health, service, device):
    health.tell(device)
    watcher = watch(make_health_server(), (*SUPPORTED_VERSIONS, service))
    assert watcher.wait_for(1)[0] == (device,)


def test_an_entry_holds_for_half_a_minute(make_health_server, watch):
    watcher = watch(make_health_server())
    watcher.wait_for(1)
    assert watcher.holds_s == {30}


@pytest.mark.parametrize(("sentence", "length"), [("x" * 1024, 1024), ("x" * 1025, 1024), ("ü" * 600, 1023)])
def test_a_long_message_is_cut_between_characters(make_health_server, watch, health, sentence, length):
    health.tell(DeviceHealth(pool="node-a", device="gpu-0", healthy=False, message=sentence))
    watcher = watch(make_health_server())
    assert len(watcher.wait_for(1)[0][0].message.encode()) == length


def test_a_node_without_devices_has_an_empty_report(make_health_server, watch, health):
    health.tell()
    assert watch(make_health_server()).wait_for(1) == [()]


def test_a_change_is_sent_at_once(make_health_server, watch, health):
    watcher = watch(make_health_server(resend_s=600.0))
    watcher.wait_for(1)
    health.tell(SICK)
    assert watcher.wait_for(2)[-1] == (SICK,)


def test_what_did_not_change_is_not_sent_early(make_health_server, watch, health):
    watcher = watch(make_health_server(resend_s=600.0))
    watcher.wait_for(1)
    health.tell(WELL)
    health.tell(SICK)
    assert watcher.wait_for(2) == [(WELL,), (SICK,)]


def test_everything_is_sent_again_though_nothing_changes(make_health_server, watch):
    watcher = watch(make_health_server(resend_s=0.2))
    assert watcher.wait_for(4)[:4] == [(WELL,)] * 4


def test_everything_is_sent_again_when_asked_for(make_health_server, watch):
    server = make_health_server(resend_s=600.0)
    watcher = watch(server)
    watcher.wait_for(1)

    server.send_health_again()

    assert watcher.wait_for(2) == [(WELL,)] * 2


def test_a_storm_of_changes_is_sent_together(make_health_server, watch, health):
    watcher = watch(make_health_server(resend_s=600.0))
    watcher.wait_for(1)
    began_s = time.monotonic()
    for number in range(1000):
        health.tell(DeviceHealth(pool="node-a", device="gpu-0", healthy=False, message=f"Xid 13, {number} times"))
    health.tell(SICK)
    assert until(lambda: watcher.reports[-1] == (SICK,))
    most = 3 + (watcher.arrived_s[-1] - began_s) / MIN_GAP_S
    assert len(watcher.reports) <= most


def test_a_new_stream_begins_with_the_full_state(make_health_server, watch, health):
    server = make_health_server(resend_s=600.0)
    first = watch(server)
    first.wait_for(1)
    first.close()
    others = tuple(DeviceHealth(pool="node-a", device=f"gpu-0-mig-{n}", healthy=True) for n in range(250))
    health.tell(SICK, *others)
    assert watch(server).wait_for(1) == [(SICK, *others)]


def test_a_stream_that_was_cut_is_forgotten(make_health_server, watch):
    server = make_health_server(resend_s=600.0)
    watcher = watch(server)
    watcher.wait_for(1)
    watcher.close()
    assert until(lambda: server.health_streams == 0)


def test_a_kubelet_that_vanishes_is_forgotten(make_health_server):
    server = make_health_server(resend_s=600.0)
    with PluginClient(server.registrar_socket) as kubelet:
        kubelet.register()
        watcher = Watcher(kubelet.watch_health())
        watcher.wait_for(1)
    assert until(lambda: server.health_streams == 0)


def test_many_streams_do_not_keep_claims_waiting(make_health_server, watch, node_service):
    node_service.devices = {"u1": ()}
    server = make_health_server(resend_s=600.0)
    for _ in range(3 * MOST_STREAMS):
        watch(server).wait_for(1)
    with PluginClient(server.registrar_socket) as kubelet:
        kubelet.register()
        assert kubelet.prepare([claim("u1")], timeout_s=5.0) == {"u1": ()}


def test_claims_and_health_share_one_connection(make_health_server, health, node_service):
    node_service.devices = {"u1": ()}
    with PluginClient(make_health_server().registrar_socket) as kubelet:
        kubelet.register()
        watcher = Watcher(kubelet.watch_health())
        watcher.wait_for(1)
        answer = kubelet.prepare([claim("u1")])
        health.tell(SICK)
        reports = watcher.wait_for(2)
        watcher.close()
    assert (answer, reports[1]) == ({"u1": ()}, (SICK,))


def test_one_stream_too_many_ends_the_oldest(make_health_server, watch):
    server = make_health_server(resend_s=600.0)
    watchers = []
    for _ in range(MOST_STREAMS):  # one after the other, so that it is known which is the oldest
        watchers.append(watch(server))
        watchers[-1].wait_for(1)
    watch(server).wait_for(1)
    assert watchers[0].ended.wait(10)


@contextmanager
def open_deaf(server, health, count):
    """Streams that nobody reads, with reports that fill their windows, each with its thread stuck in sending."""
    long = "x" * 1000
    health.tell(*(DeviceHealth(pool="node-a", device=f"gpu-{n}", healthy=True, message=long) for n in range(2000)))
    with grpc.insecure_channel(f"unix:{server.service_socket}") as channel:
        call = channel.unary_stream(WATCH, v1.NodeWatchResourcesRequest.SerializeToString, None)
        calls = [call(v1.NodeWatchResourcesRequest()) for _ in range(count)]
        assert until(lambda: server.health_streams == count)
        seen = [-1]

        def stuck() -> bool:
            seen.append(health.asked)
            return seen[-1] == seen[-2]  # none was made although twenty had been due

        assert until(stuck, 10, 20 * SOON_S)
        yield calls


def test_streams_that_nobody_reads_make_room(make_health_server, watch, health):
    server = make_health_server(resend_s=SOON_S)
    with open_deaf(server, health, MOST_STREAMS):
        health.tell(WELL)
        reports = [watch(server).wait_for(2) for _ in range(2 * MOST_STREAMS)]
    assert [report[1] for report in reports] == [(WELL,)] * 2 * MOST_STREAMS


def test_streams_begin_while_every_worker_prepares(make_health_server, watch, node_service):
    server = make_health_server()
    node_service.gate.clear()
    uids = [f"uid-{n}" for n in range(20)]
    node_service.devices = dict.fromkeys(uids, ())
    with PluginClient(server.registrar_socket) as kubelet, ThreadPoolExecutor(len(uids)) as pods:
        kubelet.register()
        calls = [pods.submit(kubelet.prepare, [claim(uid)]) for uid in uids]
        assert until(lambda: len(node_service.calls) == 16)
        reports = watch(server).wait_for(1)
        node_service.gate.set()
        assert all(call.result() for call in calls)
    assert reports[0] == (WELL,)


def test_a_stop_ends_every_stream_at_once(make_health_server, watch):
    server = make_health_server(resend_s=600.0)
    watchers = [watch(server) for _ in range(MOST_STREAMS)]
    for watcher in watchers:
        watcher.wait_for(1)
    began_s = time.monotonic()
    assert server.stop(grace_s=30.0)
    assert time.monotonic() - began_s < 5
    assert [(watcher.ended.wait(5), watcher.problem) for watcher in watchers] == [(True, None)] * MOST_STREAMS


def test_a_stop_does_not_wait_for_a_stream_that_nobody_reads(make_health_server, health):
    server = make_health_server(resend_s=SOON_S)
    with open_deaf(server, health, 1):
        began_s = time.monotonic()
        assert server.stop(grace_s=30.0)
    assert time.monotonic() - began_s < 5


def test_a_driver_that_comes_back_is_watched_anew(make_health_server, watch, health):
    first = make_health_server()
    watch(first).wait_for(1)
    first.stop()
    health.tell(SICK)
    assert watch(make_health_server()).wait_for(1)[0] == (SICK,)


def test_no_stream_is_open_before_a_kubelet_asks(make_health_server):
    assert make_health_server().health_streams == 0


def test_a_report_that_fails_ends_its_stream_alone(make_health_server, watch, health):
    server = make_health_server()
    health.problem = RuntimeError("a fault of ours")
    broken = watch(server)
    assert broken.ended.wait(10)
    health.problem = None
    assert (str(broken.problem)[:28], watch(server).wait_for(1)) == ("NodeWatchResources: UNKNOWN:", [(WELL,)])


def test_a_promise_that_is_not_kept_is_not_asked_for_again(make_server):
    server = make_server()
    server._registration.promise(HEALTH_SERVICES)
    server.start()
    with PluginClient(server.registrar_socket) as kubelet:
        kubelet.register()
        reports = iter(kubelet.watch_health())
        with pytest.raises(StateError, match="does not have"):
            next(reports)


def test_a_driver_without_health_has_none_to_watch(client):
    with pytest.raises(TryAgain, match="promised no health"):
        client.watch_health()
