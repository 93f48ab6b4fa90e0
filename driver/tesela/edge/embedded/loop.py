"""A controller's loop: look at the whole state after every change, and again after a while. Level, not edge.

A step that meets a conflict or an absent object is not an error: the change that caused it has woken the loop already.
Anything else that a step raises is kept and raised again by `close`, so that no failure of a stand-in goes unseen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event, Thread

from tesela.core.errors import ApiConflict, ApiNotFound, ApiUnavailable
from tesela.edge.embedded.cluster import EmbeddedCluster
from tesela.edge.kube.port import Json, Resource

JOIN_TIMEOUT_S = 10.0
STATUS_TRIES = 8

_log = logging.getLogger(__name__)


class Loop:
    """Calls `step` on a thread of its own after each change of `cluster`, and at least every `period_s`."""

    def __init__(self, name: str, cluster: EmbeddedCluster, step: Callable[[], None], period_s: float) -> None:
        self._cluster = cluster
        self._step = step
        self._period_s = period_s
        self._stop = Event()
        self._failure: Exception | None = None
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stops after the step under way, bounded; raises what a step failed with."""
        self._stop.set()
        self._cluster.wake()
        if self._thread.ident is not None:
            self._thread.join(JOIN_TIMEOUT_S)
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        seen = 0
        while not self._stop.is_set():
            # read before the step: a change during the step brings another one
            seen = self._cluster.wait_for_change(seen, self._period_s, self._stop.is_set)
            if self._stop.is_set():
                return
            try:
                self._step()
            except (ApiConflict, ApiNotFound, ApiUnavailable) as error:
                _log.debug("%s: %s; looks again", self._thread.name, error)
            except Exception as error:  # noqa: BLE001 - kept for `close`, which raises it
                _log.exception("%s failed", self._thread.name)
                self._failure = error
                return


def change_status(
    cluster: EmbeddedCluster, resource: Resource, obj: Json, change: Callable[[Json], Json | None]
) -> Json | None:
    """Writes `change(newest object)` as its status, again on a conflict; None where the object is gone or another.

    `change` returns the new status, or None to leave it.
    """
    metadata = obj["metadata"]
    for _ in range(STATUS_TRIES):
        try:
            newest = cluster.get(resource, metadata["name"], metadata.get("namespace"))
            if newest["metadata"]["uid"] != metadata["uid"]:
                return None
            status = change(newest)
            if status is None:
                return newest
            return cluster.replace_status(resource, {**newest, "status": status})
        except ApiNotFound:
            return None
        except ApiConflict:
            continue
    text = f"{resource.kind} {metadata['name']}: its status changed under {STATUS_TRIES} tries to write it"
    raise ApiConflict(409, "Conflict", text)


def with_condition(status: Json, kind: str, value: str, reason: str, message: str, now: str) -> Json:
    """`status` with this condition set; its time stays where the condition was the same already."""
    others = [condition for condition in status.get("conditions", []) if condition["type"] != kind]
    before = next((condition for condition in status.get("conditions", []) if condition["type"] == kind), None)
    condition = {"type": kind, "status": value, "reason": reason, "message": message}
    if before is not None and all(before.get(key) == text for key, text in condition.items()):
        return status
    return {**status, "conditions": [*others, {**condition, "lastTransitionTime": now}]}


def without_condition(status: Json, kind: str) -> Json:
    """`status` without this condition."""
    conditions = [condition for condition in status.get("conditions", []) if condition["type"] != kind]
    return {**{key: value for key, value in status.items() if key != "conditions"}} | (
        {"conditions": conditions} if conditions else {}
    )
