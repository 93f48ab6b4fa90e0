"""The selectors of the cluster's DeviceClasses, kept for seconds: a review must not cost a request each time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from tesela.core.errors import ApiError, DocumentError, TryAgain
from tesela.edge.documents.admission import parse_class
from tesela.edge.kube.port import DEVICE_CLASSES, Kube

log = logging.getLogger(__name__)

KEPT_S: Final = 10.0
UNREAD_S: Final = 2.0
Selectors: TypeAlias = Mapping[str, tuple[str, ...]]


class Classes:
    """Reads them all at once, one reader at a time; who comes meanwhile gets what that one finds.

    After a failure nobody asks again for two seconds, so that reviews do not queue behind an API server that hangs.
    """

    def __init__(self, kube: Kube, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._clock = clock
        self._guard = threading.Lock()
        self._selectors: Selectors = {}
        self._read_at_s = float("-inf")
        self._failed_at_s = float("-inf")

    def read(self) -> Selectors:
        """By name, ten seconds old at most. TryAgain: they cannot be read now."""
        return self._read_since(self._clock() - KEPT_S)

    def read_anew(self) -> Selectors:
        """By name, as they are now. TryAgain: they cannot be read now."""
        return self._read_since(self._clock())

    def _read_since(self, oldest_s: float) -> Selectors:
        with self._guard:
            if self._read_at_s < oldest_s:
                self._refresh()
            return self._selectors

    def _refresh(self) -> None:
        began_s = self._clock()
        if began_s - self._failed_at_s < UNREAD_S:
            raise TryAgain("the DeviceClasses could not be read a moment ago")
        try:
            documents = self._kube.list(DEVICE_CLASSES).items
            self._selectors = dict(parse_class(document) for document in documents)
        except (ApiError, DocumentError) as error:
            self._failed_at_s = self._clock()
            log.warning("the DeviceClasses cannot be read, so kinds of configs go unchecked: %s", error)
            raise TryAgain(f"the DeviceClasses cannot be read: {error}") from error
        self._read_at_s = began_s
