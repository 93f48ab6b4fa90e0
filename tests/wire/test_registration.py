"""The registrar socket as the kubelet meets it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from polling import until
from tesela.core.errors import TryAgain
from tesela.edge.kubelet.client import PluginClient
from wire.kubelet_fakes import claim


def test_the_driver_says_who_it_is(server):
    with PluginClient(server.registrar_socket) as kubelet:
        info = kubelet.register()
    assert (info.name, info.endpoint, info.versions) == (
        "gpu.nvidia.com",
        str(server.service_socket),
        ("v1.DRAPlugin", "v1beta1.DRAPlugin"),
    )


def test_the_driver_hears_that_it_is_registered(client, kubelet):
    assert kubelet.registered == [(True, "")]


def test_the_driver_hears_why_it_is_not_registered(server, kubelet):
    with PluginClient(server.registrar_socket, known_versions=["v2.DRAPlugin"]) as other, pytest.raises(TryAgain):
        other.register()
    assert kubelet.registered == [
        (False, "none of the services ['v1.DRAPlugin', 'v1beta1.DRAPlugin'] is supported"),
    ]


def test_a_restarted_kubelet_registers_again(client, server, kubelet):
    with PluginClient(server.registrar_socket) as restarted:
        restarted.register()
    assert kubelet.registered == [(True, ""), (True, "")]


def test_a_failing_callback_does_not_undo_the_registration(make_server):
    def fail(ok, error):
        raise RuntimeError("publisher")

    server = make_server(on_registered=fail)
    server.start()
    with PluginClient(server.registrar_socket) as kubelet:
        assert kubelet.register().name == "gpu.nvidia.com"


def test_health_is_not_promised_where_nobody_knows_it(client, server):
    assert client.health_service is None


def test_get_info_answers_while_every_worker_prepares(server, client, node_service):
    node_service.gate.clear()
    uids = [f"uid-{n}" for n in range(20)]
    node_service.devices = dict.fromkeys(uids, ())
    with ThreadPoolExecutor(len(uids)) as pods:
        calls = [pods.submit(client.prepare, [claim(uid)]) for uid in uids]
        assert until(lambda: len(node_service.calls) == 16)
        with PluginClient(server.registrar_socket) as other:
            info = other.register()
        node_service.gate.set()
        assert all(call.result() for call in calls)
    assert info.name == "gpu.nvidia.com"


def test_a_registrar_that_nobody_serves_is_a_try_again(kubelet):
    with PluginClient(kubelet.registry_dir / "gone-reg.sock") as nobody, pytest.raises(TryAgain, match="UNAVAILABLE"):
        nobody.register()
