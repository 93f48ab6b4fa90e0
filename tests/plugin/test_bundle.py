"""`tesela bundle`: what is in the archive, what is left out of it, and that a broken node still yields one."""

from __future__ import annotations

import argparse
import io
import json
import os
import tarfile
from pathlib import Path

import pytest
from release_desk import ASKED
from tesela.cli.bundle import add_arguments, collect, pack
from tesela.cli.bundle_nvml import collect_nvml
from tesela.cli.bundle_parts import (
    Part,
    Places,
    attempt,
    collect_about,
    collect_api,
    collect_cdi,
    collect_locks,
    collect_state,
)
from tesela.cli.main import main
from tesela.core.errors import ApiError, ApiUnavailable, NvmlError
from tesela.core.released import Source
from tesela.edge.kube.port import NODES, RESOURCE_SLICES
from tesela.edge.nvml import codes
from tesela.edge.simulator.faults import Hang
from tesela.edge.simulator.machine import build_machine
from tesela.edge.simulator.nvml import SimulatedNvml
from tesela.edge.store.locks import FileLocks, hold
from tesela.edge.store.released import ReleasedStore

TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzYSJ9.c2lnbmF0dXJl"


def places_of(world, **changes):
    known = {
        "state_dir": world.state_dir,
        "cdi_dir": world.cdi_dir,
        "proc_root": Path("/proc"),
        "node_name": "node-1",
        "logs": (),
        "metrics_url": "",
    }
    return Places(**{**known, **changes})


def document(part, path):
    return json.loads(part.files[path])


@pytest.fixture
def held(world):
    """A world with one prepared claim; its reference."""
    ref = world.claim("one", world.partition(0, "1g.5gb", 0))
    world.serve(ref)
    return ref


# Files


def test_the_drivers_documents_are_in_it(world, held):
    part = collect_state(places_of(world))

    assert {"state/roster.json", f"state/claims/{held.uid}.json", "state/listing.json"} <= set(part.files)


def test_a_document_is_as_it_lies_there(world, held):
    part = collect_state(places_of(world))

    assert part.files["state/roster.json"] == (world.state_dir / "roster.json").read_bytes()


def test_a_damaged_record_is_put_in_as_it_is(world, held):
    noise = bytes(range(256))
    path = world.record_path(held)
    whole = path.read_bytes()
    path.write_bytes(noise)

    part = collect_state(places_of(world))
    path.write_bytes(whole)

    assert part.files[f"state/claims/{held.uid}.json"] == noise


def test_a_pipe_costs_its_own_line(world):
    pipe = world.state_dir / "claims" / "pipe.json"
    pipe.parent.mkdir(exist_ok=True)
    os.mkfifo(pipe)

    part = collect_state(places_of(world))
    pipe.unlink()

    assert ("no regular file" in part.missing["state/claims/pipe.json"], "state/roster.json" in part.files) == (
        True,
        True,
    )


def test_what_was_set_aside_is_in_it(world):
    aside = world.state_dir / "aside"
    aside.mkdir()
    (aside / "x.1.json").write_text("{")

    assert collect_state(places_of(world)).files["state/aside/x.1.json"] == b"{"


def test_a_folder_that_is_not_there_is_missing_with_a_hint(world, tmp_path):
    part = collect_state(places_of(world, state_dir=tmp_path / "no"))

    assert "--plugins-dir" in part.missing["state"]


def test_a_file_that_cannot_be_read_is_missing_and_the_others_are_there(world, held):
    folder = world.state_dir / "health.json"
    folder.mkdir()

    part = collect_state(places_of(world))
    folder.rmdir()

    assert ("state/health.json" in part.missing, "state/roster.json" in part.files) == (True, True)


def test_our_cdi_files_are_in_it_and_no_others(world, held):
    (world.cdi_dir / "someone-else.json").write_text("{}")

    part = collect_cdi(places_of(world))

    assert set(part.files) == {f"cdi/{world.cdi_path(held).name}", "cdi/listing.json"}


def test_a_lock_that_is_held_shows_with_its_holder(world):
    lock = FileLocks(world.state_dir).gpu_lock(world.uuid(0))
    with hold(lock, 5, "GPU"):
        shown = {one["lock"]: one for one in document(collect_locks(places_of(world)), "locks.json")}

    assert (shown[lock.path.name]["held"], shown[lock.path.name]["last_holder"].split()[0]) == (True, "process")


def test_a_lock_that_is_free_shows_so(world, held):
    shown = {one["lock"]: one["held"] for one in document(collect_locks(places_of(world)), "locks.json")}

    assert shown["roster.lock"] is False


# NVML


def test_every_gpu_is_in_it_with_its_instances(world, held):
    part = collect_nvml(world.state_dir, lambda: world.admin, call_timeout_s=5, timeout_s=5)

    instances = document(part, "nvml.json")["gpus"][0]["instances"]
    assert [(one["profile"], len(one["compute_instances"])) for one in instances] == [("1g.5gb", 1)]


def test_a_hung_call_costs_its_own_line(tmp_path):
    machine = build_machine("h100-80gb*2")
    machine.inject(Hang(function="get_mig_mode", gpu="0", after=0, times=1))

    part = collect_nvml(tmp_path, lambda: SimulatedNvml(machine), call_timeout_s=1.0, timeout_s=10)
    machine.release()

    gpus = document(part, "nvml.json")["gpus"]
    assert ("error" in gpus[0]["mig_mode"], "error" in gpus[1]["mig_mode"], "nvml in part" in part.missing) == (
        True,
        False,
        True,
    )


def test_a_dead_driver_is_a_reason(tmp_path):
    class Dead(SimulatedNvml):
        def init(self):
            raise NvmlError(codes.DRIVER_NOT_LOADED, "nvmlInitWithFlags", "Driver Not Loaded")

    machine = build_machine("h100-80gb")
    part = attempt("nvml", lambda: collect_nvml(tmp_path, lambda: Dead(machine), call_timeout_s=1, timeout_s=1))

    assert "Driver Not Loaded" in part.missing["nvml"]


def collect_simulated(state_dir):
    return collect_nvml(state_dir, lambda: SimulatedNvml(build_machine("h100-80gb")), call_timeout_s=1, timeout_s=1)


def test_nvml_that_is_released_is_not_opened(tmp_path):
    ReleasedStore(tmp_path).write(ASKED)

    part = attempt("nvml", lambda: collect_simulated(tmp_path))

    assert (part.files, "released for maintenance" in part.missing["nvml"]) == ({}, True)


def test_nvml_is_not_opened_beside_a_request_that_cannot_be_read(tmp_path):
    (tmp_path / "released.json").write_text("{}")

    part = attempt("nvml", lambda: collect_simulated(tmp_path))

    assert (part.files, "released for maintenance" in part.missing["nvml"]) == ({}, True)


def test_nvml_that_waits_for_a_driver_to_open_it_again_is_looked_at(tmp_path):
    ReleasedStore(tmp_path).write(ASKED.without_until_open(Source.COMMAND))

    assert "nvml.json" in collect_simulated(tmp_path).files


# The API


def test_slices_and_claims_of_ours_are_in_it(world, held):
    world.kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}})
    world.allocate("another", [{"request": "r0", "driver": "other.example.com", "pool": "p", "device": "d"}])

    part = collect_api(places_of(world), lambda: world.kube)

    assert ([one["metadata"]["name"] for one in document(part, "api/resourceclaims.json")], part.missing) == (
        ["one"],
        {},
    )


class _Forbidding:
    """The API as the driver's own account sees it: claims can be got, not listed."""

    def __init__(self, kube):
        self._kube = kube

    def __getattr__(self, name):
        return getattr(self._kube, name)

    def list(self, resource, *args, **kwargs):
        if resource is not RESOURCE_SLICES:
            raise ApiError(403, "Forbidden", f"cannot list {resource.plural}")
        return self._kube.list(resource, *args, **kwargs)


def test_claims_that_cannot_be_listed_are_read_one_by_one(world, held):
    part = collect_api(places_of(world), lambda: _Forbidding(world.kube))

    assert [one["metadata"]["uid"] for one in document(part, "api/resourceclaims.json")] == [held.uid]


def test_an_api_that_does_not_answer_is_asked_once(world):
    class Away:
        asked = 0

        def get_server_version(self):
            self.asked += 1
            raise ApiUnavailable(0, "", "no answer")

        def list(self, *args, **kwargs):
            self.asked += 1

    away = Away()
    part = collect_api(places_of(world), lambda: away)

    assert (away.asked, "no answer" in part.missing["api/version"]) == (1, True)


# This process


def test_the_arguments_of_a_running_driver_are_in_it(world, tmp_path):
    for pid, argv in {"7": "/usr/bin/python3\0/usr/bin/tesela\0plugin\0--node-name=n\0", "8": "sh\0"}.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_text(argv)

    about = json.loads(collect_about(places_of(world, proc_root=tmp_path)).files["about.json"])

    arguments = ["/usr/bin/python3", "/usr/bin/tesela", "plugin", "--node-name=n"]
    assert about["drivers"] == [{"pid": 7, "arguments": arguments}]


def test_the_environment_is_left_out_but_for_the_drivers_own(world, monkeypatch):
    monkeypatch.setenv("SOME_PASSWORD", "hunter2hunter2")
    monkeypatch.setenv("TESELA_LOG_LEVEL", "debug")

    about = json.loads(collect_about(places_of(world)).files["about.json"])

    assert about["settings"].get("TESELA_LOG_LEVEL") == "debug"
    assert "hunter2hunter2" not in json.dumps(about)


# The archive and the command


def unpack(data):
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive.getmembers()}


def test_the_manifest_tells_what_is_in_it_and_what_is_not():
    files = unpack(pack("b", {"a.txt": b"12"}, {"nvml": "it hangs"}, created_s=0))

    manifest = json.loads(files["b/manifest.json"])
    assert (manifest["files"], manifest["missing"], manifest["created"]) == (
        {"a.txt": 2},
        {"nvml": "it hangs"},
        "1970-01-01T00:00:00Z",
    )


KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: u, user: {token: SECRET}}]
"""


def arguments(*argv):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args([*argv])


def command(world, *more):
    return [
        "bundle",
        "--nvml=simulated:h100-80gb",
        f"--plugins-dir={world.root / 'plugins'}",
        f"--cdi-dir={world.cdi_dir}",
        "--kubeconfig=/nonexistent",
        "--node-name=node-1",
        *more,
    ]


def test_a_part_that_does_not_answer_costs_its_own_line(world, tmp_path):
    os.mkfifo(tmp_path / "silent.log")  # nobody ever writes to it
    args = arguments(*command(world, "--timeout=2", "--log", str(tmp_path / "silent.log"))[1:])

    files, missing = collect(args)

    assert ("2 s" in missing["logs"], "about.json" in files) == (True, True)


def test_the_command_writes_one_archive_that_only_its_owner_reads(world, held, tmp_path, capsys):
    path = tmp_path / "b.tar.gz"

    code = main(command(world, "-o", str(path)))

    names = {name.partition("/")[2] for name in unpack(path.read_bytes())}
    assert (code, path.stat().st_mode & 0o777, {"manifest.json", "nvml.json", "state/roster.json"} <= names) == (
        0,
        0o600,
        True,
    )


def test_what_the_kubeconfig_holds_is_nowhere_in_it(world, held, tmp_path):
    secret = "correct-horse-battery-staple"
    kubeconfig, path = tmp_path / "admin.conf", tmp_path / "b.tar.gz"
    kubeconfig.write_text(KUBECONFIG.replace("SECRET", secret))
    main(command(world, f"--kubeconfig={kubeconfig}", "-o", str(path)))

    files = unpack(path.read_bytes())
    assert [name for name, data in files.items() if secret.encode() in data] == []


def test_the_command_says_what_is_missing(world, tmp_path, capsys):
    main(command(world, "-o", str(tmp_path / "b.tar.gz")))

    assert "not in it: api: " in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_one_line(world, capsys):
    code = main(command(world, "-o", "/proc/b.tar.gz"))

    assert (code, capsys.readouterr().err.splitlines()[-1].startswith("tesela bundle: ")) == (1, True)


def test_to_stdout_goes_the_archive_alone(world, capfdbinary):
    code = main(command(world, "-o", "-"))

    assert (code, "about.json" in {name.partition("/")[2] for name in unpack(capfdbinary.readouterr().out)}) == (
        0,
        True,
    )


def test_a_fault_of_ours_is_a_reason():
    def fail():
        raise KeyError("x")

    assert attempt("part", fail) == Part(missing={"part": "a fault of tesela: KeyError: 'x'"})


def test_a_timeout_out_of_range_is_refused(world, capsys):
    assert main(command(world, "--timeout=0")) == 1
