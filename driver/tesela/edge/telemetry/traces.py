"""OpenTelemetry spans of the work on claims: one per call and claim, one per phase inside it.

Imported only where traces were asked for: `opentelemetry` is an extra (`pip install 'tesela[traces]'`). Where spans go
and how often is OpenTelemetry's own to configure (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, ...); they leave in
the background, and a collector that is away costs a claim nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from tesela.core.errors import StartError

try:
    from opentelemetry import context as spans_context
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
    from opentelemetry.trace import Span, Status, StatusCode, set_span_in_context
except ImportError as missing:
    raise StartError(
        f"traces were asked for and OpenTelemetry is not installed ({missing}): install tesela[traces], or leave "
        "--traces and OTEL_EXPORTER_OTLP_ENDPOINT out"
    ) from missing

from tesela import __version__
from tesela.edge.telemetry.port import Result
from tesela.edge.telemetry.work import Work

_CLOSE_S: Final = 3.0
_SELDOM_S: Final = 600.0
_MOST_SENTENCES: Final = 64
_CHATTY: Final = ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk._shared_internal")


class Seldom(logging.Filter):
    """Lets a sentence of a logger through once in `_SELDOM_S`: a collector that is away is told of at every try."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._said_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now_s, sentence = self._clock(), str(record.msg)
        if now_s - self._said_s.get(sentence, float("-inf")) < _SELDOM_S:
            return False
        others = self._said_s if len(self._said_s) < _MOST_SENTENCES else {}
        self._said_s = {**others, sentence: now_s}
        return True


_SELDOM: Final = Seldom()


class Discreet(logging.Filter):
    """OpenTelemetry logs a header that it cannot read as it is, which may be a collector's password."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = "a header in OTEL_EXPORTER_OTLP_HEADERS is not NAME=VALUE, URL-encoded", ()
        return True


_DISCREET: Final = Discreet()


class OpenSpan:
    """A span that has begun and is this thread's current one."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._token = spans_context.attach(set_span_in_context(span))

    def end(self, result: Result, error: BaseException | None) -> None:
        """Ends it, in the thread where it began."""
        spans_context.detach(self._token)
        self._span.set_attribute("tesela.result", result)
        if error is not None:
            self._span.set_status(Status(StatusCode.ERROR, str(error)))
        self._span.end()


class Traces:
    """Makes spans and sends them by `exporter`; None: by OTLP over HTTP, as the environment says."""

    def __init__(self, node_name: str, exporter: SpanExporter | None = None) -> None:
        """StartError: OpenTelemetry refuses its settings."""
        for name in _CHATTY:
            logging.getLogger(name).addFilter(_SELDOM)  # a filter holds for its own logger, not for those below it
        resource = Resource.create(
            {"service.name": "tesela", "service.version": __version__, "k8s.node.name": node_name}
        )
        logging.getLogger("opentelemetry.util.re").addFilter(_DISCREET)
        try:
            self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
            self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter() if exporter is None else exporter))
        except ValueError as error:
            raise StartError(f"traces cannot be sent: {error} Look at the variables that begin with OTEL_") from error
        self._tracer = self._provider.get_tracer("tesela", __version__)

    def begin(self, work: Work, phase: str | None) -> OpenSpan:
        """A span of this thread: of the whole work (its verb is the name), or of a phase of it."""
        attributes = {"tesela.verb": work.verb, "tesela.claim.uid": work.claim.uid}
        if phase is None:
            attributes |= {"k8s.namespace.name": work.claim.namespace, "tesela.claim.name": work.claim.name}
        return OpenSpan(self._tracer.start_span(phase or work.verb, attributes=attributes))

    def close(self, timeout_s: float = _CLOSE_S) -> bool:
        """Sends what is left, for `timeout_s` at most; whether all of it went."""
        sender = threading.Thread(target=self._provider.shutdown, name="traces-close", daemon=True)
        sender.start()
        sender.join(timeout_s)
        return not sender.is_alive()
