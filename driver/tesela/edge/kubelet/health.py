"""The services DRAResourceHealth v1 and v1alpha1: one stream per kubelet, told at once of what changes.

Facts (pkg/kubelet/cm/dra of Kubernetes 1.37): the kubelet opens one stream after it registered the driver, and another
5 s after one ended; with the stream's end it forgets all health of the driver, what another stream told included. So
where two processes overlap in an update, the one that stays says everything anew once the other has gone. An entry
holds for the seconds that it says itself, so everything is sent again well before that, though nothing changed. A
report names every device, so that a stream that begins needs no history. `last_updated_time` is overwritten by the
kubelet: a clock that jumps harms nothing, and time is measured here by a monotonic clock alone.

A stream holds a thread as long as it lives. The threads are the streams' own, and the number of streams is bounded, so
that no prepare ever waits for one: whoever opens one too many ends the oldest, which is the one most likely forgotten.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import grpc

from tesela.edge.kubelet import health_wire
from tesela.edge.kubelet.port import DeviceHealth, HealthSource
from tesela.pb.dra_health.v1 import api_pb2 as v1
from tesela.pb.dra_health.v1 import api_pb2_grpc as v1_grpc
from tesela.pb.dra_health.v1alpha1 import api_pb2 as v1alpha1
from tesela.pb.dra_health.v1alpha1 import api_pb2_grpc as v1alpha1_grpc

RESEND_S = 10.0
"""A third of what an entry holds (`health_wire.HOLDS_S`): two sendings may be late."""
MIN_GAP_S = 0.1
"""Changes that come faster are sent together: the kubelet writes a file for each report that differs."""
MOST_STREAMS = 4
"""A kubelet has one, and for a moment two, when it reconnects."""

_log = logging.getLogger(__name__)
_Message = TypeVar("_Message")


@dataclass(slots=True, eq=False)
class _Stream:
    """One open stream. `waiting`: its thread is in `_wait`, so that a notification is enough to end it."""

    context: grpc.ServicerContext
    seen: int = 0
    looked_s: float = 0.0
    sent_s: float = 0.0
    again: bool = False
    ended: bool = False
    waiting: bool = False


class HealthStreams:
    """All open streams of one driver instance, from the first call to `close`."""

    def __init__(self, source: HealthSource, *, resend_s: float = RESEND_S) -> None:
        self._source = source
        self._resend_s = resend_s
        self._changed = threading.Condition()
        self._changes = 1
        self._streams: list[_Stream] = []
        self._closed = False
        # Twice: those that are to end get a moment in which to do so while their successors begin.
        self.pool = ThreadPoolExecutor(2 * MOST_STREAMS, thread_name_prefix="health-stream")
        source.listen(self._note_change)

    @property
    def open_streams(self) -> int:
        """Streams that are being served now."""
        with self._changed:
            return len(self._streams)

    def serve(
        self, context: grpc.ServicerContext, render: Callable[[tuple[DeviceHealth, ...]], _Message]
    ) -> Iterator[_Message]:
        """The messages of one stream, until its caller goes, it is one too many, or `close`."""
        stream = self._admit(context)
        if stream is None:
            return
        _log.info("a stream of device health began")
        try:
            last: tuple[DeviceHealth, ...] | None = None
            while True:
                stream.looked_s = now_s = time.monotonic()
                report = self._source.get_report()
                if report != last or stream.again or now_s - stream.sent_s >= self._resend_s:
                    last, stream.sent_s, stream.again = report, now_s, False
                    yield render(report)
                if not self._wait(stream):
                    break
        finally:
            self._forget(stream)
            _log.info("a stream of device health ended")

    def send_again(self) -> None:
        """Has every stream say everything now, though nothing changed."""
        with self._changed:
            for stream in self._streams:
                stream.again = True
        self._note_change()

    def close(self) -> None:
        """Ends every stream now; one that still comes ends at once. The pool is the server's to shut down."""
        with self._changed:
            self._closed = True
            for stream in self._streams:
                self._end(stream)

    def _admit(self, context: grpc.ServicerContext) -> _Stream | None:
        stream = _Stream(context=context)
        if not context.add_callback(lambda: self._forget(stream)):
            return None  # it was over before a thread was free
        with self._changed:
            if self._closed:
                return None
            while len(self._streams) >= MOST_STREAMS:
                self._end(self._streams.pop(0))
            stream.seen = self._changes
            self._streams.append(stream)
        return stream

    def _end(self, stream: _Stream) -> None:
        """Called with the lock. A stream whose reader does not read is inside gRPC, which only a cancellation ends."""
        stream.ended = True
        if stream.waiting:
            self._changed.notify_all()
        else:
            stream.context.cancel()  # type: ignore[no-untyped-call]

    def _forget(self, stream: _Stream) -> None:
        with self._changed:
            stream.ended = True
            if stream in self._streams:
                self._streams.remove(stream)
            self._changed.notify_all()

    def _wait(self, stream: _Stream) -> bool:
        """Until something may have changed or all has to be sent again; False once the stream has to end."""
        with self._changed:
            stream.waiting = True
            try:
                gap_s = stream.looked_s + MIN_GAP_S - time.monotonic()
                self._changed.wait_for(lambda: stream.ended, timeout=max(0.0, gap_s))
                left_s = stream.sent_s + self._resend_s - time.monotonic()
                self._changed.wait_for(lambda: stream.ended or stream.seen != self._changes, timeout=max(0.0, left_s))
                stream.seen = self._changes
                return not stream.ended
            finally:
                stream.waiting = False

    def _note_change(self) -> None:
        with self._changed:
            self._changes += 1
            self._changed.notify_all()


class HealthV1(v1_grpc.DRAResourceHealthServicer):
    """v1.DRAResourceHealth."""

    def __init__(self, streams: HealthStreams) -> None:
        self._streams = streams

    def NodeWatchResources(  # noqa: N802 - the protocol's name
        self, request: v1.NodeWatchResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[v1.NodeWatchResourcesResponse]:
        """Every device at once, then whenever something changes, and at least every `RESEND_S`."""
        del request
        return self._streams.serve(context, health_wire.render_report_v1)


class HealthV1alpha1(v1alpha1_grpc.DRAResourceHealthServicer):
    """v1alpha1.DRAResourceHealth, which kubelets before 1.37 speak."""

    def __init__(self, streams: HealthStreams) -> None:
        self._streams = streams

    def NodeWatchResources(  # noqa: N802 - the protocol's name
        self, request: v1alpha1.NodeWatchResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[v1alpha1.NodeWatchResourcesResponse]:
        """Every device at once, then whenever something changes, and at least every `RESEND_S`."""
        del request
        return self._streams.serve(context, health_wire.render_report_v1alpha1)
