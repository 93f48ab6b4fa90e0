"""The kubelet's calls on the node program: each claim on its own, each failure a sentence on its pod."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from tesela.core.errors import TeselaError
from tesela.core.model import ClaimRef, Refusal
from tesela.edge.kubelet.port import PrepareResult
from tesela.edge.telemetry.work import Verb, working_on
from tesela.plugin.deadline import Deadline
from tesela.plugin.node import Node
from tesela.plugin.prepare import prepare_claim
from tesela.plugin.unprepare import unprepare_claim

log = logging.getLogger(__name__)

T = TypeVar("T")


class ClaimService:
    """Implements `edge.kubelet.port.NodeService`. The claims of one call belong to one pod and run one by one.

    `use` stands around the work on each claim; it raises a TeselaError where none may begin now.
    """

    def __init__(self, node: Node, use: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self._node = node
        self._use = use

    def prepare(self, claims: Sequence[ClaimRef], deadline_s: float) -> Mapping[str, PrepareResult]:
        deadline = Deadline.after(deadline_s)
        return {ref.uid: self._attempt(Verb.PREPARE, ref, deadline, prepare_claim) for ref in claims}

    def unprepare(self, claims: Sequence[ClaimRef], deadline_s: float) -> Mapping[str, str | None]:
        deadline = Deadline.after(deadline_s)
        outcomes = {ref.uid: self._attempt(Verb.UNPREPARE, ref, deadline, unprepare_claim) for ref in claims}
        return {uid: outcome.message if isinstance(outcome, Refusal) else None for uid, outcome in outcomes.items()}

    def _attempt(
        self, verb: Verb, ref: ClaimRef, deadline: Deadline, act: Callable[[Node, ClaimRef, Deadline], T]
    ) -> T | Refusal:
        """One claim's fault is its own, a fault of ours too: the pod's other claims are served all the same."""
        with working_on(verb, ref):
            return self._serve(verb, ref, deadline, act)

    def _serve(
        self, verb: Verb, ref: ClaimRef, deadline: Deadline, act: Callable[[Node, ClaimRef, Deadline], T]
    ) -> T | Refusal:
        try:
            with self._node.telemetry.operation(), self._use():
                return act(self._node, ref, deadline)
        except TeselaError as error:
            message = _sentence(ref, error)
            log.warning("%s refused: %s", verb, message)
        except Exception as error:
            log.exception("%s of claim %s failed unexpectedly", verb, ref)
            message = (
                f"claim {ref.namespace}/{ref.name}: {verb} failed inside the driver ({type(error).__name__}); its log "
                "on this node has the traceback: report it, the kubelet tries again by itself"
            )
        return Refusal(message=message)


def _sentence(ref: ClaimRef, error: TeselaError) -> str:
    """The error's text, made to name the claim where it does not yet."""
    text, name = str(error), f"{ref.namespace}/{ref.name}"
    return text if name in text else f"claim {name}: {text}"
