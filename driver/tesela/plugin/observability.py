"""Joins what the driver tells of itself with those who ask: builds metrics and traces as asked for, serves the probes.

It stands before NVML is there, so that a node that waits for its GPU driver is alive, says that it is not ready, and
why. Whatever fails in here is told and goes no further: watching must not end what is watched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

from tesela.core.errors import TeselaError
from tesela.edge.http.server import Answer, HttpServer, SingleFlight
from tesela.edge.telemetry.port import SILENT, Telemetry
from tesela.edge.telemetry.recorder import Recorder
from tesela.edge.telemetry.snapshot import Snapshot
from tesela.plugin.config import PluginConfig

if TYPE_CHECKING:
    from tesela.edge.telemetry.metrics import Metrics
    from tesela.edge.telemetry.traces import Traces

log = logging.getLogger(__name__)

_SCRAPE_S: Final = 8.0
"""Below Prometheus' own limit of ten seconds."""
TEXT: Final = "text/plain"
OPEN_METRICS: Final = "application/openmetrics-text"
_STARTING: Final = (
    "the driver is starting: it waits for the API server or the GPU driver, or looks at the GPUs for the first time"
)


class Fallible(Protocol):
    """A part that knows when it has stopped working for good."""

    def find_fault(self) -> str | None:
        """What is wrong, as a sentence; None while all is well, before the start and after the stop."""
        ...


class Observability:
    """What was asked for of metrics, traces and probes. `telemetry` is for those who have something to tell.

    StartError: the port is taken, or OpenTelemetry is not installed.
    """

    def __init__(self, config: PluginConfig) -> None:
        self._metrics: Metrics | None = None
        self._traces: Traces | None = None
        self._server: HttpServer | None = None
        self._parts: tuple[Fallible, ...] = ()
        self._waiting = _STARTING
        self._list_unready: Callable[[], Iterable[str]] = lambda: (self._waiting,)
        if config.metrics_port is not None:
            from tesela.edge.telemetry.metrics import Metrics  # noqa: PLC0415 -- a megabyte that others save

            self._metrics = metrics = Metrics()
            self._server = HttpServer(config.metrics_address, config.metrics_port, self._list_routes(metrics))
        if config.traces:
            from tesela.edge.telemetry.traces import Traces  # noqa: PLC0415 -- an extra, and megabytes

            self._traces = Traces(config.node_name)
        quiet = self._metrics is None and self._traces is None
        self.telemetry: Telemetry = SILENT if quiet else Recorder(self._metrics, self._traces)

    @property
    def port(self) -> int | None:
        """Where metrics and probes are served; None where nobody asked for them."""
        return None if self._server is None else self._server.port

    def start(self) -> None:
        """Serve. Until `attach` the process is alive and not ready."""
        if self._server is not None:
            self._server.start()
            log.info("metrics and probes are served on port %d", self._server.port)

    def tell_waiting(self, sentence: str) -> None:
        """What the start waits for, until `attach`."""
        self._waiting = sentence

    def attach(
        self,
        *,
        parts: Iterable[Fallible],
        read_snapshot: Callable[[], Snapshot],
        list_unready: Callable[[], Iterable[str]],
    ) -> None:
        """The node program is there: show `read_snapshot`, ask `parts` for their faults.

        `list_unready` are sentences about what keeps it from being ready.
        """
        self._parts = tuple(parts)
        self._list_unready = list_unready
        if self._metrics is not None:
            self._metrics.watch(read_snapshot)

    def close(self) -> None:
        """Serve no more; send the spans that are left, for a few seconds at most."""
        if self._server is not None:
            self._server.close()
        if self._traces is not None and not self._traces.close():
            log.warning("the last traces could not be sent in time")

    def _list_routes(self, metrics: Metrics) -> dict[str, Callable[[str], Answer]]:
        scrapes = SingleFlight(metrics.render, _SCRAPE_S)
        return {
            "/metrics": lambda accept: _scrape(scrapes, accept),
            "/healthz": lambda _accept: _probe(fault for part in self._parts if (fault := part.find_fault())),
            "/readyz": lambda _accept: _probe(self._list_unready()),
        }


def _scrape(scrapes: SingleFlight[tuple[str, bytes]], accept: str) -> Answer:
    try:
        content_type, body = scrapes.get(OPEN_METRICS if OPEN_METRICS in accept else TEXT)
    except TimeoutError:
        sentence = f"no answer within {_SCRAPE_S:g} s: the disk with the driver's state does not answer"
    except TeselaError as error:
        sentence = str(error)
    else:
        return Answer(HTTPStatus.OK, body, content_type)
    log.warning("metrics cannot be read: %s", sentence)
    return Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{sentence}\n".encode())


def _probe(problems: Iterable[str]) -> Answer:
    found = tuple(problems)
    if not found:
        return Answer(HTTPStatus.OK, b"ok\n")
    return Answer(HTTPStatus.SERVICE_UNAVAILABLE, "".join(f"{problem}\n" for problem in found).encode())
