"""The services DRAPlugin v1 and v1beta1: every claim of a call gets an answer, whatever happens behind the port."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import grpc

from tesela.core.errors import TeselaError
from tesela.core.model import ClaimRef, Refusal
from tesela.edge.kubelet import wire
from tesela.edge.kubelet.port import NodeService, PrepareResult
from tesela.edge.kubelet.wire import ClaimMessage
from tesela.pb.dra.v1 import api_pb2 as v1
from tesela.pb.dra.v1 import api_pb2_grpc as v1_grpc
from tesela.pb.dra.v1beta1 import api_pb2 as v1beta1
from tesela.pb.dra.v1beta1 import api_pb2_grpc as v1beta1_grpc

_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


class Calls:
    """What both versions do: check the claims, hand them to the node service, make its answer complete."""

    def __init__(self, service: NodeService) -> None:
        self._service = service
        self._lock = threading.Lock()
        self._under_way = 0

    @property
    def under_way(self) -> int:
        """Calls that are inside the node service now, cancelled ones too."""
        with self._lock:
            return self._under_way

    def prepare(self, messages: Iterable[ClaimMessage], context: grpc.ServicerContext) -> dict[str, PrepareResult]:
        """By claim UID, one entry for each claim asked for and no other; never raises for a claim's sake."""
        with self._counted():
            answers = _answer("prepare", messages, context, self._service.prepare, lambda text: Refusal(message=text))
        return dict(answers)

    def unprepare(self, messages: Iterable[ClaimMessage], context: grpc.ServicerContext) -> dict[str, str | None]:
        """By claim UID, one entry for each claim asked for: None for success."""
        with self._counted():
            return _answer("unprepare", messages, context, self._service.unprepare, lambda text: text)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        with self._lock:
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1


class DraV1(v1_grpc.DRAPluginServicer):
    """v1.DRAPlugin."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def NodePrepareResources(  # noqa: N802 - the protocol's name
        self, request: v1.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> v1.NodePrepareResourcesResponse:
        """Answers for every claim of the request."""
        return wire.render_prepared_v1(self._calls.prepare(request.claims, context))

    def NodeUnprepareResources(  # noqa: N802 - the protocol's name
        self, request: v1.NodeUnprepareResourcesRequest, context: grpc.ServicerContext
    ) -> v1.NodeUnprepareResourcesResponse:
        """Answers for every claim of the request."""
        return wire.render_unprepared_v1(self._calls.unprepare(request.claims, context))


class DraV1beta1(v1beta1_grpc.DRAPluginServicer):
    """v1beta1.DRAPlugin."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def NodePrepareResources(  # noqa: N802 - the protocol's name
        self, request: v1beta1.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> v1beta1.NodePrepareResourcesResponse:
        """Answers for every claim of the request."""
        return wire.render_prepared_v1beta1(self._calls.prepare(request.claims, context))

    def NodeUnprepareResources(  # noqa: N802 - the protocol's name
        self, request: v1beta1.NodeUnprepareResourcesRequest, context: grpc.ServicerContext
    ) -> v1beta1.NodeUnprepareResourcesResponse:
        """Answers for every claim of the request."""
        return wire.render_unprepared_v1beta1(self._calls.unprepare(request.claims, context))


def _answer(
    verb: str,
    messages: Iterable[ClaimMessage],
    context: grpc.ServicerContext,
    serve: Callable[[Sequence[ClaimRef], float], Mapping[str, _Answer]],
    refuse: Callable[[str], _Answer],
) -> dict[str, _Answer]:
    if not context.is_active():
        # The call waited for a thread until its caller gave up; the kubelet will repeat it.
        context.abort(grpc.StatusCode.CANCELLED, f"{verb} was not begun: the caller has gone")
    claims, malformed = wire.parse_claims(messages)
    answers = {uid: refuse(text) for uid, text in malformed.items()}
    if claims:
        answers.update(_serve_all(verb, claims, wire.plan_deadline(context.time_remaining()), serve, refuse))
    return answers


def _serve_all(
    verb: str,
    claims: Sequence[ClaimRef],
    deadline_s: float,
    serve: Callable[[Sequence[ClaimRef], float], Mapping[str, _Answer]],
    refuse: Callable[[str], _Answer],
) -> dict[str, _Answer]:
    """Whatever the node service does, the result has one entry for each of `claims` and no other."""
    try:
        served = serve(claims, deadline_s)
    except TeselaError as error:
        _log.warning("%s of %s failed: %s", verb, ", ".join(map(str, claims)), error)
        return {claim.uid: refuse(f"claim {claim}: {error}") for claim in claims}
    except Exception as error:  # noqa: BLE001 - the last frame before gRPC: one call must not end the driver
        _log.exception("%s of %s failed unexpectedly", verb, ", ".join(map(str, claims)))
        # The exception's text stays in the log: the answer becomes an event that tenants read.
        cause = f"{verb} failed inside the driver ({type(error).__name__}); its log on this node has the traceback"
        return {claim.uid: refuse(f"claim {claim}: {cause}; it is tried again") for claim in claims}
    for uid in served.keys() - {claim.uid for claim in claims}:
        _log.error("%s answered for claim UID %s, which nobody asked for; dropped", verb, uid)
    silent = "the driver gave no answer for this claim, which is a fault of the driver; it is tried again"
    return {
        claim.uid: served[claim.uid] if claim.uid in served else refuse(f"claim {claim}: {silent}") for claim in claims
    }
