"""The kubelet's knowledge of prepared claims: which pods use which claim, and what each driver answered.

Rules: pkg/kubelet/cm/dra of Kubernetes 1.37. The entries survive `restart` (the kubelet's checkpoint), whether a claim
is prepared does not. Calls no driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import RLock

from tesela.core.errors import TryAgain
from tesela.core.model import ClaimRef, PreparedDevice
from tesela.edge.kube.port import Json


@dataclass(slots=True, kw_only=True)
class CachedClaim:
    """A claim on this node. `answers` is by driver; a driver without an answer was not asked with success yet."""

    ref: ClaimRef
    drivers: tuple[str, ...]
    pods: set[str] = field(default_factory=set)
    answers: dict[str, tuple[PreparedDevice, ...]] = field(default_factory=dict)
    prepared: bool = False
    unpreparing: bool = False


class ClaimCache:
    """Claims by UID. Thread safe; entries are changed by the worker that holds their pod."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._claims: dict[str, CachedClaim] = {}

    def use(self, claim: Json, pod_uid: str) -> CachedClaim:
        """The entry of an allocated claim, with the pod among its users. TryAgain while an older one is in the way."""
        metadata = claim["metadata"]
        ref = ClaimRef(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])
        with self._lock:
            for other in self._claims.values():
                same_name = (other.ref.namespace, other.ref.name) == (ref.namespace, ref.name)
                if same_name and other.ref.uid != ref.uid:
                    text = f"old ResourceClaim with same name {ref.name} and different UID {other.ref.uid} still exists"
                    raise TryAgain(text)
            results = claim["status"]["allocation"]["devices"].get("results", [])
            drivers = tuple(dict.fromkeys(result["driver"] for result in results))
            entry = self._claims.setdefault(ref.uid, CachedClaim(ref=ref, drivers=drivers))
            if entry.unpreparing:
                raise TryAgain(f"ResourceClaim {ref.name} is being unprepared")
            entry.pods.add(pod_uid)
            return entry

    def used_by(self, pod_uid: str) -> dict[tuple[str, str], CachedClaim]:
        """The claims that a pod uses, by namespace and name."""
        with self._lock:
            used = (entry for entry in self._claims.values() if pod_uid in entry.pods)
            return {(entry.ref.namespace, entry.ref.name): entry for entry in used}

    def last_of(self, pod_uid: str) -> list[CachedClaim]:
        """Claims whose only user is this pod, now marked as being unprepared; other claims just lose the user."""
        with self._lock:
            used = [entry for entry in self._claims.values() if pod_uid in entry.pods]
            last = [entry for entry in used if entry.pods == {pod_uid}]
            for entry in used:
                if entry in last:
                    entry.unpreparing = True
                else:
                    entry.pods.discard(pod_uid)
            return last

    def drop(self, entries: Sequence[CachedClaim]) -> None:
        """Forgets claims that every driver unprepared."""
        with self._lock:
            for entry in entries:
                self._claims.pop(entry.ref.uid, None)

    def restart(self) -> None:
        """What a restarted kubelet knows: the entries, but neither who is prepared nor what was under way."""
        with self._lock:
            for entry in self._claims.values():
                entry.prepared = entry.unpreparing = False

    def pod_uids(self) -> frozenset[str]:
        """Pods that use a claim."""
        with self._lock:
            return frozenset(uid for entry in self._claims.values() for uid in entry.pods)
