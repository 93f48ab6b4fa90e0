"""The kubelet's calls on the node program: each claim on its own, each failure a sentence on its pod."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from tesela.core.errors import TeselaError
from tesela.core.model import ClaimRef, Refusal
from tesela.edge.kubelet.port import PrepareResult
from tesela.plugin.deadline import Deadline
from tesela.plugin.node import Node
from tesela.plugin.prepare import prepare_claim
from tesela.plugin.unprepare import unprepare_claim

log = logging.getLogger(__name__)


class ClaimService:
    """Implements `edge.kubelet.port.NodeService`. The claims of one call belong to one pod and run one by one."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def prepare(self, claims: Sequence[ClaimRef], deadline_s: float) -> Mapping[str, PrepareResult]:
        deadline = Deadline.after(deadline_s)
        return {ref.uid: self._prepare(ref, deadline) for ref in claims}

    def unprepare(self, claims: Sequence[ClaimRef], deadline_s: float) -> Mapping[str, str | None]:
        deadline = Deadline.after(deadline_s)
        return {ref.uid: self._unprepare(ref, deadline) for ref in claims}

    def _prepare(self, ref: ClaimRef, deadline: Deadline) -> PrepareResult:
        try:
            return prepare_claim(self._node, ref, deadline)
        except TeselaError as error:
            message = _sentence(ref, error)
            log.warning("prepare refused: %s", message)
            return Refusal(message=message)

    def _unprepare(self, ref: ClaimRef, deadline: Deadline) -> str | None:
        try:
            unprepare_claim(self._node, ref, deadline)
        except TeselaError as error:
            message = _sentence(ref, error)
            log.warning("unprepare failed: %s", message)
            return message
        return None


def _sentence(ref: ClaimRef, error: TeselaError) -> str:
    """The error's text, made to name the claim where it does not yet."""
    text, name = str(error), f"{ref.namespace}/{ref.name}"
    return text if name in text else f"claim {name}: {text}"
