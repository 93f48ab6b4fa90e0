"""Performs planned writes of ResourceSlices and reads back what the API server kept of each.

A server whose gate is off drops counters or taints without a word. Devices that exclude each other must not be offered
without their counters, so counters are written first and the rest only once they were seen to be kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from tesela.core.errors import ApiNotFound, TeselaError
from tesela.core.publication import (
    CreateSlice,
    DeleteSlice,
    ReplaceSlice,
    SliceAction,
    lost_counters,
    lost_taints,
)
from tesela.edge.kube.port import RESOURCE_SLICES, Json, Kube
from tesela.edge.telemetry.port import SILENT, Telemetry

_REMEMBERED = 256  # more than one round of the largest node writes


class FieldsDroppedError(TeselaError):
    """The API server stored a slice without its counters, or without its taints."""

    def __init__(self, *, counters: bool, taints: bool) -> None:
        fields = " and ".join(name for name, lost in (("counters", counters), ("taints", taints)) if lost)
        super().__init__(f"the API server drops {fields} of ResourceSlices")
        self.counters = counters
        self.taints = taints


class SliceWriter:
    """Writes slices. `written` holds (name, resource version) of what it wrote, so that a watch can tell its echo."""

    def __init__(self, kube: Kube, telemetry: Telemetry = SILENT) -> None:
        self._kube = kube
        self._telemetry = telemetry
        self._counters_kept = False
        self.written: dict[tuple[str, str], None] = {}

    def write(self, actions: Iterable[SliceAction]) -> None:
        """Performs `actions` in order. Raises FieldsDroppedError after the write that lost something, else ApiError."""
        for action in actions:
            match action:
                case DeleteSlice():
                    self._delete(action)
                case CreateSlice(obj=obj):
                    self._put(obj, proves=True)
                case ReplaceSlice(obj=obj, had_counters=had_counters):
                    self._put(obj, proves=not had_counters)

    def is_echo(self, name: str, resource_version: str) -> bool:
        """Whether this state of a slice is one that `write` left."""
        return (name, resource_version) in self.written or (name, "") in self.written

    def forget_abilities(self) -> None:
        """Counters are tried anew at the next write."""
        self._counters_kept = False

    def _delete(self, action: DeleteSlice) -> None:
        self._note(action.name, "")
        with contextlib.suppress(ApiNotFound):  # gone already is what was wanted
            self._kube.delete(
                RESOURCE_SLICES,
                action.name,
                uid=action.uid or None,
                resource_version=action.resource_version or None,
            )
            self._telemetry.count_slice_write()

    def _put(self, obj: Json, *, proves: bool) -> None:
        """`proves`: that counters are kept here shows that they are kept everywhere."""
        spec = obj["spec"]
        if proves and spec.get("sharedCounters") and spec.get("devices") and not self._counters_kept:
            # Below 1.35 both stand in one slice: try the counters alone before any device names them.
            alone = {key: value for key, value in spec.items() if key != "devices"}
            kept = self._send({**obj, "spec": alone})
            obj = {**kept, "spec": spec}
        self._send(obj)
        if proves and spec.get("sharedCounters"):
            self._counters_kept = True

    def _send(self, obj: Json) -> Json:
        if obj["metadata"].get("resourceVersion"):
            kept = self._kube.replace(RESOURCE_SLICES, obj)
        else:
            kept = self._kube.create(RESOURCE_SLICES, obj)
        self._telemetry.count_slice_write()
        self._note(kept["metadata"]["name"], kept["metadata"]["resourceVersion"])
        counters, taints = lost_counters(obj, kept), lost_taints(obj, kept)
        if counters or taints:
            raise FieldsDroppedError(counters=counters, taints=taints)
        return kept

    def _note(self, name: str, resource_version: str) -> None:
        self.written[name, resource_version] = None
        while len(self.written) > _REMEMBERED:
            del self.written[next(iter(self.written))]
