"""Spans of the work on claims, as an exporter gets them."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from tesela.edge.telemetry.recorder import Recorder
from tesela.edge.telemetry.traces import Seldom, Traces


class _Traced:
    def __init__(self, build):
        self.exporter = InMemorySpanExporter()
        self.traces = Traces("node-1", self.exporter)
        self.world = build("a100-40gb:mig")
        self.world.start(telemetry=Recorder(traces=self.traces))

    def finish(self):
        """All spans, once sent."""
        assert self.traces.close()
        return self.exporter.get_finished_spans()


@pytest.fixture
def traced(build):
    return _Traced(build)


def roots(spans):
    return [span for span in spans if span.parent is None]


def test_a_prepare_is_one_trace_with_a_span_per_phase(traced):
    traced.world.serve(traced.world.claim("one", traced.world.partition(0, "1g.5gb", 0)))
    spans = traced.finish()

    (root,) = roots(spans)
    names = {span.name for span in spans if span.parent is not None and span.parent.span_id == root.context.span_id}

    assert names >= {"claim_lock", "read_record", "read_claim", "gpu_lock", "look", "plan", "record", "create", "files"}


def test_a_span_names_claim_and_node(traced):
    ref = traced.world.claim("one", traced.world.partition(0, "1g.5gb", 0))
    traced.world.serve(ref)

    (root,) = roots(traced.finish())

    assert (root.name, dict(root.attributes), root.resource.attributes["k8s.node.name"]) == (
        "prepare",
        {
            "tesela.verb": "prepare",
            "tesela.claim.uid": ref.uid,
            "tesela.claim.name": "one",
            "k8s.namespace.name": "default",
            "tesela.result": "ok",
        },
        "node-1",
    )


def test_a_refusal_is_an_error_with_its_sentence(traced):
    sentence = traced.world.refuse(traced.world.claim("one", "gpu-77"))

    (root,) = roots(traced.finish())

    assert (root.status.status_code, root.attributes["tesela.result"], root.status.description in sentence) == (
        StatusCode.ERROR,
        "refused",
        True,
    )


def test_every_call_is_a_trace_of_its_own(traced):
    ref = traced.world.claim("one", traced.world.partition(0, "1g.5gb", 0))
    traced.world.serve(ref)
    assert traced.world.unprepare(ref) is None

    assert [span.name for span in roots(traced.finish())] == ["prepare", "unprepare"]


def test_a_collector_that_is_away_holds_nobody_up(build):
    class Away(InMemorySpanExporter):
        def export(self, spans):
            raise ConnectionError("no collector")

    world = build("a100-40gb:mig")
    traces = Traces("node-1", Away())
    world.start(telemetry=Recorder(traces=traces))
    world.serve(world.claim("one", world.partition(0, "1g.5gb", 0)))

    assert traces.close()


def test_settings_that_opentelemetry_refuses_end_the_start_with_a_sentence():
    program = "from tesela.edge.telemetry.traces import Traces; Traces('node-1')"
    environment = {**os.environ, "OTEL_BSP_MAX_QUEUE_SIZE": "0"}
    told = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)

    assert "StartError: traces cannot be sent: max_queue_size must be" in told.stderr


def test_a_collector_that_is_away_is_told_of_seldom():
    now = [0.0]
    seldom = Seldom(lambda: now[0])

    def passes(message, *args):
        return seldom.filter(logging.LogRecord("otel", logging.WARNING, "", 0, message, args, None))

    passed = [passes("no answer, %d", number) for number in range(3)], passes("refused")
    now[0] = 601.0
    assert (passed, passes("no answer, %d", 4)) == (([True, False, False], True), True)


def test_a_header_that_cannot_be_read_is_not_told():
    program = "from tesela.edge.telemetry.traces import Traces; Traces('node-1').close()"
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_HEADERS": "authorization: Bearer correct-horse"}
    told = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)

    assert ("OTEL_EXPORTER_OTLP_HEADERS is not" in told.stderr, "correct-horse" in told.stderr) == (True, False)
