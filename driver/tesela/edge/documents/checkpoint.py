"""`checkpoint.json` of NVIDIA's DRA driver, read as leniently as can be without guessing what was prepared.

Its form (the driver's releases up to 0.5): an object of twins, `v1` and `v2`, of which the newer one counts; each has
`preparedClaims` by claim UID, with the claim's whole status and groups of prepared devices. Go writes it without
spaces, and its checksum (the kubelet's checkpoint manager: FNV-1a, 32 bits, over a printed form of the bytes) covers
the bytes of the twin that counts, so a damaged file shows. A file that somebody laid out anew counts as it reads.
Fields that we do not know are left alone; an entry that cannot be read harms its claim alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from tesela.core.checkpoint import Checkpoint, TheirClaim, TheirDevice, TheirKind
from tesela.core.claim import AllocatedClaim
from tesela.core.errors import ClaimRefused, DocumentError, StateError
from tesela.edge.documents.claim import decode_claim

_Object: TypeAlias = Mapping[str, Any]

_COMPLETED: Final = "PrepareCompleted"
_SUM: Final = rb'"checksum":(\d+)'
_V2: Final = '"v2":{"checksum":'
LARGEST_BYTES: Final = 8 << 20
"""A claim takes 3 kB of it, twice, and a node of 16 GPUs has at most 112 partitions."""
_LARGEST_ID: Final = 1 << 31
_FNV_OFFSET, _FNV_PRIME, _FNV_MASK = 2166136261, 16777619, 0xFFFFFFFF


def decode_checkpoint(data: bytes) -> Checkpoint:
    """What is in `data`. StateError, without the file's name, where it is not what their driver wrote."""
    if len(data) > LARGEST_BYTES:
        raise StateError(f"it has over {LARGEST_BYTES >> 20} MiB, which no node's claims take")
    try:
        body = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise StateError(f"it is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise StateError("it holds no object")
    version = next((body[key] for key in ("v2", "v1") if isinstance(body.get(key), dict)), None)
    if version is None:
        raise StateError(f"it holds neither v2 nor v1, but {', '.join(sorted(body)) or 'nothing'}")
    _check_sum(data)
    claims = version.get("preparedClaims") or {}
    if not isinstance(claims, dict):
        raise StateError("its preparedClaims are no object")
    return Checkpoint(
        boot_id=str(version.get("nodeBootID") or ""),
        claims=tuple(_decode_claim(uid, claims[uid], is_v1=version is body.get("v1")) for uid in sorted(claims)),
    )


def _check_sum(data: bytes) -> None:
    covered = _find_covered(data)
    found = re.search(_SUM, covered) if covered is not None else None
    if covered is None or found is None:
        return
    if _hash_printed(re.sub(_SUM, b'"checksum":0', covered, count=1)) != int(found[1]):
        raise StateError("its checksum does not match, so the disk or a hand has changed it")


def _find_covered(data: bytes) -> bytes | None:
    """The bytes that the checksum inside them covers; None where the file is not laid out as Go does it."""
    text = data.decode().strip()
    at = text.find(_V2)
    if at >= 0:
        start = at + len('"v2":')
        _, end = json.JSONDecoder().raw_decode(text, start)
        return text[start:end].encode()
    return text.encode() if re.match(r'\{"checksum":\d+,"v1":\{', text) and '"v2"' not in text else None


def _hash_printed(covered: bytes) -> int:
    """Of `([]uint8)[123 34]`, number by number: all of it at once takes a hundred times the room of the file."""
    numbers = tuple(b" %d" % byte for byte in range(256))
    value = _hash(b"([]uint8)[" + b"%d" % covered[0], _FNV_OFFSET)
    for byte in covered[1:]:
        value = _hash(numbers[byte], value)
    return _hash(b"]", value)


def _hash(data: bytes, value: int) -> int:
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & _FNV_MASK
    return value


def _decode_claim(key: str, entry: object, *, is_v1: bool) -> TheirClaim:
    uid = key if key.isprintable() else ascii(key)
    try:
        body = _check(entry, dict, "the entry")
        completed = is_v1 or body.get("checkpointState") == _COMPLETED
        return TheirClaim(
            uid=uid,
            name=_get_or(body, "name"),
            namespace=_get_or(body, "namespace"),
            completed=completed,
            devices=tuple(_decode_groups(body)) if completed else (),
            allocation=_decode_allocation(uid, body),
        )
    except StateError as error:
        return TheirClaim(uid=uid, problem=str(error))


def _decode_allocation(uid: str, body: _Object) -> AllocatedClaim | None:
    metadata = {"name": body.get("name") or "", "namespace": body.get("namespace") or "", "uid": uid}
    try:
        allocation = decode_claim({"metadata": metadata, "status": body.get("status")})
    except (ClaimRefused, DocumentError):
        return None
    return allocation if all(one.request.isprintable() for one in allocation.results) else None


def _decode_groups(body: _Object) -> Iterator[TheirDevice]:
    for group in _list(body, "preparedDevices"):
        state = _check(_check(group, dict, "a group").get("configState") or {}, dict, "configState")
        for device in _list(group, "devices"):
            yield _decode_device(_check(device, dict, "a device"), state)


def _decode_device(device: _Object, state: _Object) -> TheirDevice:
    kind = next((one for one in TheirKind if device.get(one) is not None), None)
    if kind is None:
        raise StateError(f"a device is of no kind that is known, but has {', '.join(sorted(device)) or 'nothing'}")
    body = _check(device[kind], dict, kind)
    given = _check(body.get("device"), dict, f"{kind}.device")
    facts = _check(body.get("concrete") or body.get("info"), dict, f"{kind}.info")
    is_mig = kind is TheirKind.MIG
    daemon = _get_or(state, "mpsControlDaemonID") or ("unnamed" if state.get("mpsApplied") else "")
    requests = _list(given, "Requests") or _list(given, "request_names")
    return TheirDevice(
        kind=kind,
        pool=_get(given, str, "PoolName", "pool_name"),
        device=_get(given, str, "DeviceName", "device_name"),
        requests=tuple(_check(one, str, "a request") for one in requests),
        gpu_uuid=_get(facts, str, *(("parentUUID",) if is_mig else ("uuid",))),
        share_id=_get_or(given, "ShareID") or None,
        gi_id=_get(facts, int, "giId") if is_mig else None,
        ci_id=_get(facts, int, "ciId") if is_mig else None,
        mig_uuid=_get(facts, str, "migUUID", "uuid") if is_mig else None,
        mps_daemon=daemon,
        time_slice_applied=state.get("timeSliceApplied"),
    )


def _list(body: _Object, field: str) -> list[Any]:
    found: list[Any] = _check(body.get(field) or [], list, field)
    return found


def _get_or(body: _Object, field: str) -> str:
    """A text, empty where the field is missing."""
    return str(_check(body.get(field) or "", str, field))


def _get(body: _Object, kind: type[Any], *fields: str) -> Any:
    """The first of these fields, which releases called differently."""
    found = next((body[field] for field in fields if body.get(field) is not None), None)
    return _check(found, kind, fields[0])


def _check(value: object, kind: type[Any], what: str) -> Any:
    """It goes into records, the log and terminals, so a text with signs that cannot be printed is none either."""
    fits = isinstance(value, kind)
    if isinstance(value, str):
        fits = fits and value.isprintable()
    elif kind is int and isinstance(value, int):
        fits = not isinstance(value, bool) and 0 <= value < _LARGEST_ID
    if not fits:
        raise StateError(f"{what} is {'missing' if value is None else f'not what it should be: {value!r:.80}'}")
    return value
