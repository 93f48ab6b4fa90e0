"""`tesela demo`: it ends well on every model, shows what the driver recorded and published, and leaves nothing."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from tesela.cli.demo import plan_demo_spec
from tesela.cli.demo_bridge import WHOLE_GPU, plan_bridge_profiles, plan_job_profiles, render_bridge
from tesela.cli.demo_node import DemoNode
from tesela.cli.demo_steps import STEPS, Story
from tesela.cli.main import main
from tesela.edge.kube.port import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tesela.edge.simulator.models import load_model

REPOSITORY = Path(__file__).parents[2]
ATTRIBUTES = ("profile", "placementStart", "placementSize")
# A shell that starts tests in the background makes its children ignore Ctrl-C.
COMMAND = """\
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from tesela.cli.main import main
sys.exit(main(["demo", *sys.argv[1:]]))
"""
LIMIT_S = 60


@pytest.fixture(scope="module")
def busy():
    """A node of two A100s and one H100 with the bridge and six jobs, one of which holds the H100 whole."""
    with DemoNode(plan_demo_spec("a100-40gb*2,h100-80gb")) as node:
        story = Story(node)
        for _ in story.begin():
            pass
        for number, profile in enumerate(["3g.20gb", "2g.10gb", WHOLE_GPU], start=1):
            job = story.create_job(number, profile)
            node.wait_for(f"start {job}", lambda job=job: story.pods.runs(job), lambda job=job: story.pods.why(job))
        yield node


@pytest.fixture
def temporary():
    """A folder short enough for sockets, where a demo of another process puts its files."""
    folder = tempfile.mkdtemp(prefix="t-", dir="/tmp")
    yield Path(folder)
    shutil.rmtree(folder)


def start_demo(temporary, *arguments, stdout=subprocess.PIPE):
    environment = {**os.environ, "TMPDIR": str(temporary), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    environment.pop("NO_COLOR", None)
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env=environment,
        text=stdout == subprocess.PIPE,
    )


def interrupt_after(demo, beginning, number=signal.SIGINT):
    """Sends the signal once a line with `beginning` was printed; the rest of its output."""
    line = next((line for line in demo.stdout if beginning in line), None)
    assert line is not None, demo.stderr.read()
    demo.send_signal(number)
    return demo.communicate(timeout=LIMIT_S)


def on_terminal(temporary, *arguments):
    """What the demo writes to a terminal."""
    ours, theirs = pty.openpty()
    demo = start_demo(temporary, *arguments, stdout=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # Linux says EIO once nobody has the other end open
            break
        shown += piece
        if not piece:
            break
    os.close(ours)
    demo.communicate(timeout=LIMIT_S)
    return shown.decode()


def documents(*paths):
    return [one for path in paths for one in yaml.safe_load_all((REPOSITORY / path).read_text(encoding="utf-8"))]


def test_the_bridge_is_the_one_that_the_repository_ships():
    shipped = documents("deviceclasses/enterprise.yaml", "deviceclasses/examples/bridge.yaml")

    assert [document for _, document in render_bridge()] == shipped


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("a100-40gb", ("1g.5gb", "3g.20gb")),
        ("h100-80gb", ("1g.10gb", "3g.40gb")),
        ("h200-141gb", ("1g.18gb", "3g.71gb")),
        ("a30", ("1g.6gb", "2g.12gb")),
        ("rtx-pro-6000", ("1g.24gb", "2g.48gb")),
    ],
)
def test_every_model_has_names_of_its_own_for_the_bridge(model, names):
    (chosen,) = plan_bridge_profiles([load_model(model)] * 2)

    assert (chosen.small, chosen.big) == names


def test_jobs_ask_for_every_plain_profile_middle_sizes_first():
    assert plan_job_profiles([load_model("a30")] * 2) == ("2g.12gb", "1g.6gb", "4g.24gb")


def test_jobs_ask_for_whole_gpus_where_the_mode_changes_by_itself():
    assert plan_job_profiles([load_model("h100-80gb")])[-1] == WHOLE_GPU


@pytest.mark.parametrize(
    ("node", "modes"),
    [
        ("a100-40gb*2", [True, True]),
        ("h100-80gb", [False]),
        ("a100-40gb,h100-80gb", [True, False]),
        ("a100-40gb:mig,a100-40gb", [True, False]),
    ],
)
def test_mig_mode_is_on_at_start_where_only_a_reset_changes_it(node, modes):
    assert [gpu.mig for gpu in plan_demo_spec(node).gpus] == modes


def test_the_map_shows_what_the_records_say(busy):
    names = {known.name: known.gpu.uuid for known in busy.plugin.node.lookout.roster.gpus}
    shown = {(names[row.name], block.profile, block.placement) for row in busy.map_rows() for block in row.blocks}

    recorded = {
        (device.gpu_uuid, partition.profile, partition.placement)
        for record in busy.records()
        for device in record.devices
        for partition in device.partitions
    }
    assert shown == recorded


def test_the_map_shows_the_devices_that_were_allocated_as_their_slices_describe_them(busy):
    shown = {
        (row.name, block.profile, block.placement.start, block.placement.size)
        for row in busy.map_rows()
        for block in row.blocks
    } | {(row.name, "", 0, row.memory_slices) for row in busy.map_rows() if row.whole_holder}

    published = {
        device["name"]: device["attributes"]
        for found in busy.cluster.list(RESOURCE_SLICES).items
        for device in found["spec"].get("devices", [])
    }
    allocated = {
        (result["device"].partition("-mig-")[0], *(_value(published[result["device"]][name]) for name in ATTRIBUTES))
        for claim in busy.cluster.list(RESOURCE_CLAIMS).items
        for result in claim["status"]["allocation"]["devices"]["results"]
    }
    assert shown == allocated


def test_the_map_names_the_pod_that_holds_each_piece(busy):
    holders = sorted(
        holder
        for row in busy.map_rows()
        for holder in (*(block.holder for block in row.blocks), row.whole_holder)
        if holder
    )

    assert holders == sorted(pod["metadata"]["name"] for pod in busy.cluster.list(PODS).items)


def test_a_partition_of_nobody_is_shown_without_a_holder():
    with DemoNode(plan_demo_spec("a30")) as node:
        node.start()
        gpu_uuid = node.machine_state().gpus[0].uuid
        nvml = node.plugin.node.nvml
        placement = nvml.get_gpu_instance_possible_placements(gpu_uuid, 14)[0]
        nvml.create_gpu_instance(gpu_uuid, 14, placement)

        (row,) = node.map_rows()

    assert [(block.profile, block.holder) for block in row.blocks] == [("1g.6gb", None)]


@pytest.mark.parametrize("node", ["a100-40gb*8", "h100-80gb*2", "a30", "rtx-pro-6000*2", "a100-80gb,h200-141gb"])
def test_it_ends_well_and_gives_everything_back(node, capsys):
    code = main(["demo", "--node", node, "-o", "json"])

    steps = json.loads(capsys.readouterr().out)
    assert (code, [step["step"] for step in steps], steps[-1]["restored"]) == (0, list(STEPS), True)


def test_an_empty_node_can_hand_out_every_device_it_publishes(capsys):
    main(["demo", "--node", "a100-40gb,h100-80gb,rtx-pro-6000", "--claims", "0", "-o", "json"])

    published = json.loads(capsys.readouterr().out)[1]
    assert published["offers"] == published["devices"]


def test_claims_without_room_wait_and_say_why(capsys):
    main(["demo", "--node", "a30", "--claims", "9", "-o", "json"])

    jobs = next(step for step in json.loads(capsys.readouterr().out) if step["step"] == "jobs")
    waiting = {one["profile"]: "cannot allocate all claims" in one["why"] for one in jobs["waiting"]}
    assert waiting == {"2g.12gb": True, "1g.6gb": True, "4g.24gb": True}


def test_claims_of_a_profile_that_is_waited_for_are_not_applied(capsys):
    main(["demo", "--node", "a30", "--claims", "9", "-o", "json"])

    jobs = next(step for step in json.loads(capsys.readouterr().out) if step["step"] == "jobs")
    assert len(jobs["running"]) - 1 + len(jobs["waiting"]) + jobs["not_applied"] == 9


def test_people_read_the_same_without_colours(capsys):
    main(["demo", "--node", "a30", "--claims", "2"])

    out = capsys.readouterr().out
    assert ("\x1b" not in out, max(map(len, out.splitlines())) <= 100, "the capacity came back" in out) == (True,) * 3


def test_a_picture_needs_nothing_from_the_network(temporary, capsys):
    main(["demo", "--node", "a30", "--claims", "2", "--svg", str(temporary / "map.svg")])

    picture = (temporary / "map.svg").read_text(encoding="utf-8")
    assert ("job-1" in picture, "url(http" in picture) == (True, False)


def test_it_leaves_no_file(temporary):
    demo = start_demo(temporary, "--node", "a30", "--claims", "1")

    _, errors = demo.communicate(timeout=LIMIT_S)
    assert (demo.returncode, errors, list(temporary.iterdir())) == (0, "", [])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_no_file(temporary, number, code):
    demo = start_demo(temporary, "--claims", "64")

    _, errors = interrupt_after(demo, "discover", number)
    assert (demo.returncode, errors, list(temporary.iterdir())) == (code, "", [])


def test_an_interrupt_ends_a_watch_well(temporary):
    demo = start_demo(temporary, "--node", "a30*2", "--claims", "3", "--watch")

    shown, errors = interrupt_after(demo, "job-2")
    assert (demo.returncode, errors, "the capacity came back" in shown, list(temporary.iterdir())) == (0, "", True, [])


def test_a_terminal_gets_colours(temporary):
    assert "\x1b[1;38;2;" in on_terminal(temporary, "--node", "a30", "--claims", "1")


def test_no_color_takes_them_away(temporary):
    assert "\x1b[1;38;2;" not in on_terminal(temporary, "--node", "a30", "--claims", "1", "--no-color")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--node", "b300"],
        ["--node", "a30*99"],
        ["--claims", "-1"],
        ["--watch", "-o", "json"],
        ["--watch", "--svg", "a.svg"],
    ],
)
def test_wrong_usage_is_told_apart(arguments, capsys):
    try:
        code = main(["demo", *arguments])
    except SystemExit as left:
        code = left.code

    assert (code, "tesela demo: " in capsys.readouterr().err) == (2, True)


def _value(attribute):
    return next(iter(attribute.values()))
