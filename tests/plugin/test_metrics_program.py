"""The metrics of a running driver, read as Prometheus reads them."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from polling import until
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families
from tesela.core.model import Refusal
from tesela.core.sweep import Found, Mismatch, MismatchKind, Outcome, SweepReport
from tesela.edge.nvml import codes
from tesela.edge.simulator.admin import perform_admin
from tesela.edge.telemetry.catalogue import METRICS, Kind
from tesela.plugin.service import ClaimService
from tesela.plugin.snapshot import count_orphans
from watched_program import Watched

A100, H100 = "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"
PREFIX = "tesela_"


@pytest.fixture
def program(short_path):
    """One A100-40GB in MIG mode and one H100-80GB."""
    program = Watched(short_path, "a100-40gb:mig,h100-80gb")
    program.start()
    yield program
    program.close()


@pytest.fixture(scope="module")
def idle():
    """The same, for tests that change nothing."""
    with tempfile.TemporaryDirectory(prefix="tesela-") as folder:
        program = Watched(Path(folder), "a100-40gb:mig,h100-80gb")
        program.start()
        yield program
        program.close()


def partition(program):
    return program.world.partition(0, "1g.5gb", 0)


def sim(program, **request):
    answer = json.loads(perform_admin(program.world.machine, json.dumps(request)))
    assert "error" not in answer, answer


# The exposition


def test_every_metric_of_the_catalogue_is_announced_and_no_other(idle):
    _, _, text = idle.get("/metrics")
    announced = {family.name for family in text_string_to_metric_families(text)}

    ours = {name for name in announced if name.startswith(PREFIX)}

    assert ours == {metric.name.removesuffix("_total") for metric in METRICS}


def test_types_and_help_are_those_of_the_catalogue(idle):
    _, _, text = idle.get("/metrics")
    families = {family.name: family for family in text_string_to_metric_families(text)}

    told = {metric.name: families[metric.name.removesuffix("_total")] for metric in METRICS}
    shown = {name: (family.type, family.documentation) for name, family in told.items()}

    assert shown == {metric.name: (metric.kind, metric.help) for metric in METRICS}


def test_labels_are_those_of_the_catalogue(program):
    program.register()
    program.prepare("one", partition(program))
    known = {metric.name: set(metric.labels) for metric in METRICS}
    for metric in METRICS:
        if metric.kind is Kind.HISTOGRAM:
            known |= {f"{metric.name}_{part}": set(metric.labels) for part in ("sum", "count")}
            known[f"{metric.name}_bucket"] = {*metric.labels, "le"}

    wrong = {name for name, labels, _ in program.scrape() if name.startswith(PREFIX) and set(labels) != known[name]}

    assert wrong == set()


def test_openmetrics_is_served_to_who_asks_for_it(idle):
    _, content_type, text = idle.get("/metrics", accept="application/openmetrics-text;version=1.0.0")

    names = {family.name for family in parse_open_metrics(text)}

    assert (content_type.split(";")[0], "tesela_gpus" in names) == ("application/openmetrics-text", True)


def test_names_follow_the_conventions():
    broken = [
        metric.name
        for metric in METRICS
        if not re.fullmatch(r"tesela_[a-z0-9_]+", metric.name)
        or metric.name.endswith("_total") != (metric.kind is Kind.COUNTER)
        or (metric.kind is Kind.HISTOGRAM and not metric.name.endswith("_seconds"))
        or not metric.help.endswith(".")
    ]

    assert broken == []


# What is counted


def test_a_prepare_is_timed_by_phase(program):
    program.prepare("one", partition(program))

    phases = {labels[1] for labels in program.values("tesela_claim_operation_seconds_count") if labels[0] == "prepare"}

    assert phases >= {"total", "claim_lock", "read_claim", "gpu_lock", "look", "plan", "record", "create", "files"}


def test_an_unprepare_is_timed_by_phase(program):
    program.give_back(program.prepare("one", partition(program)))

    counts = program.values("tesela_claim_operation_seconds_count")

    phases = {labels[1] for labels in counts if labels[0] == "unprepare"}
    assert phases >= {"total", "claim_lock", "read_record", "gpu_lock", "destroy"}


def test_a_mode_switch_is_a_phase(program):
    program.prepare("one", program.world.partition(1, "1g.10gb", 0))

    assert program.values("tesela_claim_operation_seconds_count")["prepare", "mode", "ok"] == 1


def test_a_refusal_is_a_result_and_a_cause(program):
    assert isinstance(program.ask(program.world.claim("one", "gpu-77")), Refusal)

    counts = program.values("tesela_claim_operation_seconds_count")

    assert (
        counts["prepare", "total", "refused"],
        program.values("tesela_claim_failures_total")["prepare", "refused"],
    ) == (1, 1)


def test_a_failure_of_nvml_is_counted_by_its_cause(program):
    sim(program, op="fail", function="create_gpu_instance", code=codes.INSUFFICIENT_RESOURCES)
    assert isinstance(program.ask(program.world.claim("one", partition(program))), Refusal)

    counts = program.values("tesela_claim_failures_total")

    assert {labels: count for labels, count in counts.items() if count} == {("prepare", "nvml_no_room"): 1}


def test_a_partition_in_use_is_the_cause_of_an_unprepare_that_fails(program):
    ref = program.prepare("one", partition(program))
    sim(program, op="fail", function="destroy_compute_instance", code=codes.IN_USE)
    sim(program, op="fail", function="destroy_gpu_instance", code=codes.IN_USE)
    program.world.node = replace(program.world.node, in_use_retry_s=0.0)

    ClaimService(program.world.node).unprepare([ref], 20)
    failures = program.values("tesela_claim_failures_total")
    sim(program, op="release")
    program.give_back(ref)

    assert {labels for labels, count in failures.items() if count} == {("unprepare", "nvml_in_use")}


def test_a_mode_that_is_held_is_the_cause_of_a_prepare_that_fails(program):
    sim(program, op="fail", function="set_mig_mode", code=codes.IN_USE)
    program.ask(program.world.claim("one", program.world.partition(1, "1g.10gb", 0)))

    counts = program.values("tesela_claim_failures_total")

    assert {labels: count for labels, count in counts.items() if count} == {("prepare", "nvml_in_use"): 1}


def test_every_cause_is_counted_from_zero_on(program):
    assert set(program.values("tesela_claim_failures_total").values()) == {0}


def test_nvml_calls_are_timed_by_function_and_code(program):
    program.prepare("one", partition(program))

    assert program.values("tesela_nvml_call_seconds_count")["nvmlDeviceCreateGpuInstanceWithPlacement", "ok"] == 1


def test_waits_for_locks_are_timed_by_kind(program):
    program.prepare("one", partition(program))

    assert {("claim",), ("gpu",), ("roster",), ("publisher",)} <= set(program.values("tesela_lock_wait_seconds_count"))


def test_writes_of_slices_are_counted(idle):
    assert idle.values("tesela_slice_writes_total")[()] >= idle.values("tesela_slices_published")[()] > 0


def test_a_record_that_was_set_aside_is_counted(program):
    ref = program.prepare("one", partition(program))
    program.plugin.node.records.path(ref.uid).write_bytes(b"noise")
    program.give_back(ref)

    assert program.values("tesela_records_set_aside_total") == {(): 1}


def test_xids_are_counted_by_gpu_and_number(program):
    assert program.becomes("tesela_event_set_open", (), 1)
    sim(program, op="xid", gpu="1", xid=31)

    assert program.becomes("tesela_xids_total", ("gpu-1", "31"), 1)


# What is there


def test_gpus_are_counted_by_model_and_state(idle):
    assert idle.values("tesela_gpus") == {(A100, "healthy"): 1, (H100, "healthy"): 1}


def test_a_free_gpu_has_free_devices_of_each_profile(idle):
    counts = idle.values("tesela_devices")

    assert {labels[2] for labels in counts} == {"free"}


def test_what_is_allocated_excludes_what_it_overlaps(program):
    program.prepare("one", "gpu-1")

    states = {labels[2] for labels in program.values("tesela_devices") if labels[0] == H100}

    assert states == {"allocated", "excluded"}


def test_the_version_of_everything_is_told(idle):
    (labels,) = idle.values("tesela_build_info")

    assert labels == ("0.1.0", "580.95.05", "13.0.0")


def test_the_source_of_the_drivers_libraries_is_told(idle):
    assert idle.becomes("tesela_driver_libraries", ("none", "580.95.05"), 1)


def test_prepared_claims_are_counted(program):
    program.prepare("one", partition(program))

    assert program.values("tesela_claims_prepared") == {(): 1}


def test_a_registration_shows(program):
    before = program.values("tesela_kubelet_registered")
    program.register()

    assert (before, program.values("tesela_kubelet_registered")) == ({(): 0}, {(): 1})


def test_the_room_that_is_left_shrinks(program):
    before = program.values("tesela_largest_profile_memory_bytes")
    program.prepare("one", partition(program))

    after = program.values("tesela_largest_profile_memory_bytes")

    assert (set(before), set(after)) == (
        {("gpu-0", "7g.40gb"), ("gpu-1", "7g.80gb")},
        {("gpu-0", "3g.20gb"), ("gpu-1", "7g.80gb")},
    )


def test_a_hung_call_shows_and_the_scrape_goes_on(short_path):
    program = Watched(short_path, "h100-80gb*2", nvml_timeout_s=1.0)
    try:
        program.start()
        sim(program, op="hang", function="get_mig_mode", gpu="0")
        program.ask(program.world.claim("one", "gpu-0"))

        assert program.becomes("tesela_nvml_wedged", ("gpu-0",), 1)
    finally:
        program.close()


# What claims use


def test_memory_of_a_whole_gpu_is_labelled_by_its_claim(program):
    program.prepare("one", "gpu-1")

    def list_used():  # a scrape waits for NVML for a second, and tells nothing then
        return set(program.values("tesela_partition_memory_used_bytes"))

    assert until(lambda: list_used() == {("gpu-1", program.world.uuid(1), "", "default", "one")})


def test_an_ended_claim_leaves_no_series(program):
    program.give_back(program.prepare("one", "gpu-1"))

    assert [labels for _, labels, _ in program.scrape() if labels.get("claim") == "one"] == []


def test_a_sweep_that_could_not_compare_everything_tells_of_no_zero():
    file = Mismatch(kind=MismatchKind.STRANGE_FILE, message="a file")
    stray = Found(mismatch=file, outcome=Outcome.REPORTED)
    report = SweepReport(began_s=0, took_s=0.0, found=(stray,), unknown=("the API does not tell of all claims",))

    assert (count_orphans(report), count_orphans(None)) == ({"strange-file": 1}, {})


def test_what_is_unknown_has_no_series(program):
    program.prepare("one", "gpu-1")

    assert program.values("tesela_sm_activity_ratio") == {}
