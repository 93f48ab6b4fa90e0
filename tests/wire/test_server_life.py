"""Start, stop, takeover: what the kubelet and the next driver process find on disk."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from polling import until
from tesela.core.errors import StartError, TryAgain
from tesela.edge.kubelet.client import PluginClient
from wire.kubelet_fakes import FakeNodeService, claim, device

OLD_POD, NEW_POD = "11111111-2222-3333-4444-555555555555", "66666666-7777-8888-9999-000000000000"


def leave_dead_socket(path, age_s=60.0):
    """What a killed process leaves: a socket file without a listener."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    os.utime(path, (time.time() - age_s,) * 2)


def prepare(server, uid):
    with PluginClient(server.registrar_socket) as kubelet:
        kubelet.register()
        return kubelet.prepare([claim(uid)])


def test_a_running_driver_has_two_sockets(server, kubelet):
    assert kubelet.sockets() == {"gpu.nvidia.com-reg.sock", "dra.sock"}


def test_sockets_are_for_their_owner_alone(server):
    assert {oct(path.stat().st_mode & 0o777) for path in (server.service_socket, server.registrar_socket)} == {"0o600"}


def test_a_stopped_driver_leaves_no_socket(server, kubelet):
    server.stop()
    assert kubelet.sockets() == set()


def test_stopping_twice_is_stopping_once(server):
    server.stop()
    assert server.stop()


def test_a_driver_that_never_started_can_be_stopped(make_server):
    assert make_server().stop()


def test_the_registrar_goes_first_and_calls_under_way_end(server, client, kubelet, node_service):
    node_service.gate.clear()
    node_service.devices = {"u1": (device(),)}
    with ThreadPoolExecutor(2) as threads:
        call = threads.submit(client.prepare, [claim("u1")])
        assert node_service.entered.acquire(timeout=10)
        stop = threads.submit(server.stop)
        registrar_gone = until(lambda: "gpu.nvidia.com-reg.sock" not in kubelet.sockets())
        node_service.gate.set()
        answer = call.result()
    assert registrar_gone
    assert stop.result()
    assert answer == {"u1": (device(),)}


def test_a_call_that_does_not_end_holds_stop_no_longer_than_its_grace(server, client, node_service):
    node_service.gate.clear()
    with ThreadPoolExecutor(1) as pod:
        call = pod.submit(client.prepare, [claim("u1")])
        assert node_service.entered.acquire(timeout=10)
        begin = time.monotonic()
        ended = server.stop(grace_s=0.2)
        elapsed_s = time.monotonic() - begin
        node_service.gate.set()
        with pytest.raises(TryAgain):
            call.result()
    assert elapsed_s < 5
    assert not ended


def test_wait_tells_whether_the_server_ended(server):
    assert not server.wait(0)
    server.stop()
    assert server.wait(0)


@pytest.mark.parametrize("role", ["registrar_socket", "service_socket"])
def test_sockets_of_a_killed_process_are_taken_over(make_server, node_service, role):
    node_service.devices = {"u1": ()}
    server = make_server()
    leave_dead_socket(getattr(server, role))
    server.start()
    assert prepare(server, "u1") == {"u1": ()}


DRIVER_PROCESS = """
import pathlib, sys, time
from tesela.edge.kubelet.server import KubeletServer
root = pathlib.Path(sys.argv[1])
server = KubeletServer(
    driver_name="gpu.nvidia.com", service=None, plugins_dir=root / "plugins", registry_dir=root / "plugins_registry"
)
server.start()
print("serving", flush=True)
time.sleep(60)
"""


def test_a_driver_that_was_killed_is_succeeded(make_server, kubelet, node_service):
    node_service.devices = {"u1": ()}
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER_PROCESS, str(kubelet.root)], stdout=subprocess.PIPE, text=True
    ) as killed:
        assert killed.stdout.readline() == "serving\n"
        killed.kill()
    server = make_server()
    server.start()
    assert prepare(server, "u1") == {"u1": ()}


@pytest.mark.parametrize(("first", "role"), [("dra.sock", "plugins"), ("gpu.nvidia.com-reg.sock", "registry")])
def test_a_socket_that_somebody_serves_is_refused(make_server, kubelet, first, role):
    path = (kubelet.plugins_dir / "gpu.nvidia.com" if role == "plugins" else kubelet.registry_dir) / first
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(StartError, match="in use"):
            make_server().start()
        assert kubelet.sockets() == {first}


def test_the_driver_that_was_there_first_serves_on(server, make_server, node_service):
    node_service.devices = {"u1": ()}
    second = make_server()
    with pytest.raises(StartError):
        second.start()
    second.stop()
    assert prepare(server, "u1") == {"u1": ()}


def test_a_start_that_failed_leaves_nothing(server, make_server, kubelet):
    with pytest.raises(StartError):
        make_server().start()
    assert len(list(kubelet.registry_dir.iterdir())) == 1


def test_a_stopping_driver_does_not_touch_its_successor(make_server, node_service):
    node_service.devices = {"u1": ()}
    old, new = make_server(), make_server()
    old.start()
    old.registrar_socket.unlink()
    old.service_socket.unlink()
    new.start()
    old.stop()
    assert prepare(new, "u1") == {"u1": ()}


def test_two_instances_of_a_rolling_update_serve_side_by_side(make_server):
    services = {OLD_POD: FakeNodeService(devices={"u1": (device("old"),)}), NEW_POD: FakeNodeService()}
    services[NEW_POD].devices = {"u1": (device("new"),)}
    servers = [make_server(pod_uid=pod, service=service) for pod, service in services.items()]
    for server in servers:
        server.start()
    assert [prepare(server, "u1")["u1"][0].device_name for server in servers] == ["old", "new"]


def test_the_old_instance_leaves_the_new_ones_sockets(make_server, kubelet):
    old, new = make_server(pod_uid=OLD_POD), make_server(pod_uid=NEW_POD)
    old.start()
    new.start()
    old.stop()
    assert kubelet.sockets() == {f"gpu.nvidia.com-{NEW_POD}-reg.sock", f"dra-{NEW_POD}.sock"}


def test_the_longest_driver_name_serves(make_server, node_service):
    node_service.devices = {"u1": ()}
    server = make_server(driver_name=f"{'a' * 50}.example.com", pod_uid=NEW_POD)
    server.start()
    assert prepare(server, "u1") == {"u1": ()}


def test_what_killed_pods_left_is_cleared(make_server, kubelet):
    driver_dir = kubelet.plugins_dir / "gpu.nvidia.com"
    leave_dead_socket(kubelet.registry_dir / f"gpu.nvidia.com-{OLD_POD}-reg.sock")
    leave_dead_socket(kubelet.registry_dir / ".dra12ab")
    leave_dead_socket(driver_dir / f"dra-{OLD_POD}.sock")
    make_server(pod_uid=NEW_POD).start()
    assert kubelet.sockets() == {f"gpu.nvidia.com-{NEW_POD}-reg.sock", f"dra-{NEW_POD}.sock"}


def test_dead_sockets_of_others_and_fresh_ones_stay(make_server, kubelet):
    leave_dead_socket(kubelet.registry_dir / "other.example.com-reg.sock")
    leave_dead_socket(kubelet.registry_dir / f"gpu.nvidia.com-{OLD_POD}-reg.sock", age_s=0.0)
    make_server(pod_uid=NEW_POD).start()
    assert kubelet.sockets() > {"other.example.com-reg.sock", f"gpu.nvidia.com-{OLD_POD}-reg.sock"}


def test_a_file_in_the_way_is_named(make_server):
    server = make_server()
    server.service_socket.parent.mkdir(parents=True)
    server.service_socket.write_text("")
    with pytest.raises(StartError, match=r"dra\.sock is not a socket: remove it"):
        server.start()


def test_a_missing_registry_is_named(make_server, kubelet):
    kubelet.registry_dir.rmdir()
    with pytest.raises(StartError, match="plugins_registry is not there"):
        make_server().start()


def test_a_plugins_folder_that_cannot_be_made_is_named(make_server, kubelet):
    kubelet.plugins_dir.write_text("")
    with pytest.raises(StartError, match="cannot create"):
        make_server().start()


@pytest.mark.parametrize("role", ["registrar", "service"])
def test_a_socket_that_vanishes_is_a_failure(server, kubelet, role):
    getattr(server, f"{role}_socket").unlink()
    assert server.wait(10)
    assert f"the {role} socket" in str(server.failure)


def test_a_socket_that_another_takes_is_a_failure(server, kubelet):
    server.service_socket.unlink()
    leave_dead_socket(server.service_socket)
    assert server.wait(10)
    assert "replaced by somebody else" in str(server.failure)


def test_a_grpc_server_that_ends_is_a_failure(server, kubelet):
    server._server.stop(0).wait()
    assert until(lambda: kubelet.failures)
    assert "ended by itself" in str(kubelet.failures[0])


def test_stopping_is_no_failure(server, kubelet):
    server.stop()
    assert kubelet.failures == []


def test_the_service_may_come_up_after_registration(make_server, node_service):
    node_service.devices = {"u1": ()}
    first, second = make_server(), make_server()
    first.start()
    with PluginClient(first.registrar_socket) as kubelet:
        kubelet.register()
        first.stop()
        second.start()
        assert kubelet.prepare([claim("u1")]) == {"u1": ()}
