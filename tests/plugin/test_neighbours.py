"""What else is on the node: said once, shown for as long as it is so, and no claim gets what a device plugin offers."""

from __future__ import annotations

import dataclasses
import logging
import time
from contextlib import closing

import pytest
from health_program import Running
from namesake import Namesake
from node_program import POOL, make_program
from polling import until
from tesela.core.errors import ApiUnavailable
from tesela.core.trouble import Trouble
from tesela.edge.kube.port import EVENTS, NODES
from tesela.plugin.neighbours import RETRY_S, Neighbours, Registration, describe_refusal, describe_silence
from tesela.plugin.offer import Offer
from watched_program import Watched

GPU = "nvidia.com/gpu"


class Node:
    """An API server with one Node; `error` is what it answers instead."""

    def __init__(self):
        self.allocatable = {}
        self.error = None

    def get(self, resource, name, namespace=None):
        if self.error is not None:
            raise self.error
        return {"metadata": {"name": name}, "status": {"allocatable": self.allocatable}}


class Told:
    def __init__(self):
        self.said = []

    def announce_trouble(self, trouble, sentence, *, over):
        self.said.append((trouble, over))


@pytest.fixture
def config(short_path):
    world, config = make_program(short_path, "a30")
    yield config
    world.kube.close()


@pytest.fixture
def kube():
    return Node()


@pytest.fixture
def told():
    return Told()


@pytest.fixture
def woken():
    return []


@pytest.fixture
def build(config, kube, told, woken):
    def build(registration=None, linger_s=0, uptime_s=86400, **settings):
        return Neighbours(
            dataclasses.replace(config, **settings),
            kube,
            told,
            registration=registration or Registration(registered=True),
            own_socket=config.registry_dir / "gpu.nvidia.com-own-reg.sock",
            on_change=woken.append,
            offer=Offer(linger_s=linger_s, get_uptime_s=lambda: uptime_s),
        )

    return build


def test_a_node_of_its_own_has_no_trouble(build, told):
    neighbours = build()
    neighbours.look()

    assert (neighbours.standing, told.said) == ({}, [])


# A device plugin


def test_what_a_device_plugin_offers_is_known_and_wakes_the_publisher(build, kube, woken):
    kube.allocatable = {GPU: "8"}
    neighbours = build()
    neighbours.look()

    assert (neighbours.get_offered(), len(woken)) == ((GPU,), 1)


def test_a_device_plugin_is_told_once_and_when_it_is_over(build, kube, told):
    neighbours = build()
    for count in ("8", "8", "0", "0"):
        kube.allocatable = {GPU: count}
        neighbours.look()

    assert told.said == [(Trouble.DEVICE_PLUGIN, False), (Trouble.DEVICE_PLUGIN, True)]


def test_a_device_plugin_that_the_kubelet_s_restart_hides_for_a_while_is_not_over(build, kube, told, woken):
    neighbours = build(linger_s=3600)
    for count in ("8", "0", "8", "0"):
        kube.allocatable = {GPU: count}
        neighbours.look()

    assert (neighbours.get_offered(), len(told.said), len(woken)) == ((GPU,), 1, 1)


def test_each_time_that_it_is_away_is_counted_from_its_own_beginning(build, kube):
    neighbours = build(linger_s=0.2)
    for count in ("8", "0", "8"):
        kube.allocatable = {GPU: count}
        neighbours.look()
    began = until(lambda: time.monotonic() - neighbours.registration.since_s > 0.3)  # longer than the first time lasts
    neighbours.offer.linger_s = 3600
    kube.allocatable = {GPU: "0"}
    neighbours.look()

    assert (began, neighbours.get_offered()) == (True, (GPU,))


def test_after_a_boot_a_device_plugin_that_the_node_knew_has_time_to_come_back(build, kube):
    kube.allocatable = {GPU: "0"}

    offered = build(linger_s=3600, uptime_s=40).get_offered()

    assert offered == (GPU,)


def test_a_device_plugin_that_does_not_come_back_after_a_boot_is_over(build, kube, told):
    kube.allocatable = {GPU: "0"}
    neighbours = build(linger_s=0.05, uptime_s=40)

    over = until(lambda: neighbours.look() and told.said[-1:] == [(Trouble.DEVICE_PLUGIN, True)])

    assert (over, neighbours.get_offered()) == (True, ())


def test_long_after_a_boot_a_device_plugin_that_the_node_knew_has_gone(build, kube):
    kube.allocatable = {GPU: "0"}

    assert build(linger_s=3600).get_offered() == ()


def test_a_node_without_a_device_plugin_has_none_after_a_boot_either(build):
    assert build(linger_s=3600, uptime_s=40).get_offered() == ()


def test_the_sentence_names_the_resource_and_both_ways_out(build, kube):
    kube.allocatable = {GPU: "8"}
    neighbours = build()
    neighbours.look()

    sentence = neighbours.standing[Trouble.DEVICE_PLUGIN]
    assert (GPU in sentence, "take the device plugin off" in sentence, "--beside-device-plugin" in sentence) == (
        True,
        True,
        True,
    )


def test_where_both_may_share_the_node_nothing_is_asked(build, kube):
    kube.allocatable = {GPU: "8"}
    neighbours = build(beside_device_plugin=True)
    neighbours.look()

    assert (neighbours.get_offered(), neighbours.standing) == ((), {})


def test_an_api_server_that_is_away_takes_nothing_back_and_is_asked_again_soon(build, kube):
    kube.allocatable = {GPU: "8"}
    neighbours = build()
    neighbours.look()
    kube.error = ApiUnavailable(0, "", "no answer")

    assert (neighbours.look(), neighbours.get_offered()) == (RETRY_S, (GPU,))


def test_an_api_server_that_stays_away_is_asked_ever_later_and_told_of_once(build, kube, caplog):
    kube.error = ApiUnavailable(0, "", "no answer")
    neighbours = build()

    with caplog.at_level(logging.INFO):
        waits = [neighbours.look() for _ in range(6)]

    assert (waits, len(caplog.messages)) == ([2, 4, 8, 16, 30, 30], 1)


def test_a_node_that_was_never_read_is_read_before_anything_is_published(build, kube):
    kube.error = ApiUnavailable(0, "", "no answer")
    neighbours = build()
    neighbours.look()
    kube.error, kube.allocatable = None, {GPU: "8"}

    assert neighbours.get_offered() == (GPU,)


# Another driver


def test_another_driver_that_comes_and_goes_is_told(build, config, told):
    neighbours = build()
    with closing(Namesake(config.registry_dir)):
        neighbours.look()
    neighbours.look()

    assert told.said == [(Trouble.OTHER_DRIVER, False), (Trouble.OTHER_DRIVER, True)]


def test_a_trouble_is_in_the_log_once(build, config, caplog):
    neighbours = build()
    with closing(Namesake(config.registry_dir)), caplog.at_level(logging.ERROR):
        neighbours.look()
        neighbours.look()

    assert len([one for one in caplog.messages if "another driver" in one]) == 1


# The kubelet


def test_a_kubelet_that_has_not_asked_yet_is_given_time(build):
    neighbours = build(Registration())
    neighbours.look()

    assert neighbours.standing == {}


def test_a_kubelet_that_does_not_ask_is_trouble(build):
    neighbours = build(Registration(since_s=-1e6))
    neighbours.look()

    assert set(neighbours.standing) == {Trouble.KUBELET}


def test_a_kubelet_that_registers_after_all_ends_it(build):
    registration = Registration(since_s=-1e6)
    neighbours = build(registration)
    neighbours.look()
    registration.note(registered=True, refused="")
    neighbours.look()

    assert neighbours.standing == {}


def test_a_refusal_is_told_in_the_kubelet_s_words():
    assert describe_refusal("version is too old") == (
        "the kubelet refused to register this driver: version is too old; it asks again by itself"
    )


def test_a_kubelet_without_dra_is_told_by_its_gate():
    refused = "no handler registered for plugin type: DRAPlugin at socket /var/lib/kubelet/plugins_registry/x"

    assert describe_refusal(refused).endswith("turn on the feature gate DynamicResourceAllocation in the kubelet")


def add_kubelet(config, *, root, rootless=False):
    process = config.proc_root / "812"
    process.mkdir()
    (process / "comm").write_text("kubelet\n")
    (process / "cmdline").write_text(f"kubelet\0--root-dir={root}\0")
    (process / "uid_map").write_text("0 100000 65536\n" if rootless else "0 0 4294967295\n")


def test_without_a_kubelet_in_sight_the_flag_is_named(config):
    assert describe_silence(config) == (
        f"no kubelet asks at {config.registry_dir}: is it running, and is that folder in its --root-dir? If not, set "
        "--kubelet-root to that"
    )


def test_a_kubelet_with_another_folder_is_named_with_it(config):
    add_kubelet(config, root="/data/kubelet")

    assert "the kubelet (pid 812) has --root-dir=/data/kubelet; set --kubelet-root to that" in describe_silence(config)


def test_a_rootless_kubelet_is_called_that(config):
    add_kubelet(config, root="/home/me/kubelet", rootless=True)

    assert "has --root-dir=/home/me/kubelet and is rootless" in describe_silence(config)


def test_a_kubelet_with_our_folder_that_does_not_ask_has_a_log(config):
    add_kubelet(config, root=config.registry_dir.parent)

    assert describe_silence(config).endswith("look into the kubelet's log")


# The program


def offer(kube, count):
    node = kube.get(NODES, POOL)
    kube.replace_status(NODES, {**node, "status": {**node.get("status", {}), "allocatable": {GPU: count}}})


def test_while_a_device_plugin_offers_gpus_every_device_is_tainted(short_path):
    node = Running(short_path, "a30*2")
    offer(node.world.kube, "2")
    node.plugin.neighbours.wake()

    tainted = until(lambda: set(node.devices()) == node.tainted("foreign") != set())
    node.plugin.neighbours.offer.linger_s = 0
    offer(node.world.kube, "0")
    node.plugin.neighbours.wake()
    freed = until(lambda: node.tainted("foreign") == set())
    node.close()
    assert (tainted, freed) == (True, True)


@pytest.fixture
def troubled(short_path):
    program = Watched(short_path, "a30*2")
    offer(program.world.kube, "2")
    program.start()
    yield program
    program.close()


def test_the_first_slice_has_the_taints_already(troubled):
    assert troubled.plugin.publisher.last_state.fences != ()


def test_a_trouble_keeps_the_driver_from_being_ready(troubled):
    status, _, text = troubled.get("/readyz")

    assert (status, "a device plugin offers nvidia.com/gpu on this node" in text) == (503, True)


def test_a_trouble_is_a_metric(troubled):
    assert troubled.values("tesela_node_trouble") == {("device-plugin",): 1, ("other-driver",): 0, ("kubelet",): 0}


def test_a_trouble_is_an_event_on_the_node(troubled):
    kube = troubled.world.kube

    assert until(lambda: [one["reason"] for one in kube.list(EVENTS).items] == ["DevicePluginOnNode"])
