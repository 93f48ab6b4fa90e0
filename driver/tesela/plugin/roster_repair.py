"""A roster that cannot be read must not end the driver for good: without it no claim could even be given back.

The damaged file is set aside and its copy put in its place. Where that is damaged too, the roster is rebuilt from this
node's slices and records. It is refused where records exist and nothing tells which GPUs they are on, since device
names would be dealt anew under claims that hold them.
"""

from __future__ import annotations

import logging

from tesela.core.errors import ApiError, OtherRelease, StartError, StateError, TryAgain
from tesela.core.model import DRIVER_NAME
from tesela.core.roster import EMPTY_ROSTER, Roster
from tesela.core.roster_rebuild import names_all, rebuild_roster, renew_generations
from tesela.edge.kube.port import RESOURCE_SLICES, Kube
from tesela.edge.store.locks import FileLocks, hold
from tesela.edge.store.records import RecordStore
from tesela.edge.store.roster import RosterStore
from tesela.plugin.announce import UNHEARD, Announces
from tesela.plugin.newer_files import refuse_newer_files

log = logging.getLogger(__name__)

_LOCK_TIMEOUT_S = 10.0


def repair_roster(
    store: RosterStore,
    records: RecordStore,
    locks: FileLocks,
    kube: Kube,
    node_name: str,
    announcer: Announces = UNHEARD,
) -> None:
    """Put the roster back where it is damaged, or gone under claims. StartError says what to do where that cannot be.

    A copy that differs from a roster that is whole is written anew, so that it is the last one when it is needed. So is
    a roster that an older release wrote: by its version that release, rolled back to, refuses to start, before it takes
    what else we write for damage.
    """
    refuse_newer_files(store, records)
    with hold(locks.roster_lock(), _LOCK_TIMEOUT_S, "the roster of GPUs"):
        try:
            roster = _check(store, records)
        except OtherRelease as error:
            raise StartError(str(error)) from error
        except StateError as error:
            announcer.announce_set_aside(
                _restore(store, records, node_name, error) or _rebuild(store, records, kube, node_name, error)
            )
        else:
            _renew_copy(store, roster)


def _check(store: RosterStore, records: RecordStore) -> Roster:
    """The roster. StateError where it is unreadable, or gone while there are records of claims that hang on it."""
    roster = store.read_roster()
    if roster == EMPTY_ROSTER:
        listing = records.list()
        if listing.records or listing.unreadable:
            raise StateError(f"{store.path} is gone, and there are records of claims")
    return roster


def _renew_copy(store: RosterStore, roster: Roster) -> None:
    """It lags where a process died between the two writes, was damaged itself, or a release without copies ran."""
    if roster == EMPTY_ROSTER or (roster == store.read_copy() and store.is_of_today(roster)):
        return
    try:
        store.write_roster(roster)
    except TryAgain as error:
        log.warning("the roster of GPUs has no copy of today: %s", error)


def _restore(store: RosterStore, records: RecordStore, node_name: str, damage: StateError) -> str | None:
    """What was done, as a sentence; None where the copy is of no use."""
    copy, recorded = store.read_copy(), records.list().records
    if copy is None or copy == EMPTY_ROSTER or not names_all(copy, recorded, node_name):
        return None
    log.error("%s", damage)
    roster = renew_generations(copy, recorded)
    return _replace(store, roster, f"the roster of GPUs was damaged and is put back from its copy: {_describe(roster)}")


def _rebuild(store: RosterStore, records: RecordStore, kube: Kube, node_name: str, damage: StateError) -> str:
    """What was done, as a sentence."""
    log.error("%s", damage)
    listing = records.list()
    selector = f"spec.driver={DRIVER_NAME},spec.nodeName={node_name}"
    try:
        slices = kube.list(RESOURCE_SLICES, field_selector=selector).items
        roster = rebuild_roster(slices, listing.records, node_name)
    except ApiError as error:
        raise StartError(
            f"{damage}; it is rebuilt from this node's ResourceSlices, which cannot be read now: {error}; see to the "
            "API server, then start the driver again"
        ) from error
    except StateError as error:
        raise _refuse(store, damage, str(error)) from error
    if not roster.gpus and (listing.records or listing.unreadable):
        raise _refuse(store, damage, "there are records of claims, and neither they nor a ResourceSlice name a GPU")
    return _replace(store, roster, f"the roster of GPUs was damaged and is rebuilt: {_describe(roster)}")


def _replace(store: RosterStore, roster: Roster, sentence: str) -> str:
    aside = store.set_aside()
    store.write_roster(roster)
    kept = f"the old file is kept as {aside}" if aside is not None else "there was no file"
    sentence = f"{sentence}; {kept}"
    log.warning("%s", sentence)
    return sentence


def _refuse(store: RosterStore, damage: StateError, cause: str) -> StartError:
    return StartError(
        f"{damage}; it cannot be rebuilt: {cause}; drain the node, remove {store.path} and the folder "
        f"{store.path.parent / 'claims'}, destroy what `nvidia-smi mig -lgi` shows, then start the driver again"
    )


def _describe(roster: Roster) -> str:
    return ", ".join(f"{known.name} is {known.gpu.uuid}" for known in roster.gpus) or "this node is as one never seen"
