"""What `tesela gpu cordon`, `drain` and `uncordon` do to the API, and what they print.

Every write may be repeated: a command that was interrupted is run again and goes on from there.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Event
from typing import Any, Final, TypeVar

from tesela.core.cordon import (
    Target,
    Use,
    find_rules,
    find_targets,
    find_uses,
    plan_rule,
    render_rule,
    render_taint,
)
from tesela.core.errors import ApiConflict, ApiNotFound, StateError, TryAgain
from tesela.core.model import DRIVER_NAME
from tesela.core.taint_rules import NO_EXECUTE
from tesela.edge.kube.port import DEVICE_TAINT_RULES, RESOURCE_CLAIMS, RESOURCE_SLICES, Json, Kube
from tesela.edge.kube.retry import with_retries

T = TypeVar("T")
_RETRY_S: Final = 30.0
_LOOK_S: Final = 0.5
_COUNT_TIMEOUT_S: Final = 15.0
_FIRST_WORD_S: Final = 2.0
_NEXT_WORD_S: Final = 10.0
_TRIES: Final = 5
_SHOWN: Final = 4
"""So many names stand in a line; `-o json` has all."""
_WOULD_BE: Final = re.compile(r"(\d+) pods? would be evicted")


def cordon(kube: Kube, args: argparse.Namespace) -> int:
    """No new claim gets the devices."""
    targets, uses = _look(kube, args, "NoSchedule")
    if not args.dry_run:
        for target in targets:
            _write(kube, target, "NoSchedule", args.reason)
    done = "would be cordoned" if args.dry_run else "cordoned"
    _print(args, targets, uses, f"{_count(targets)} {done}; pods that use them stay")
    return 0


def drain(kube: Kube, args: argparse.Namespace) -> int:
    """No new claim gets the devices, and the pods that use them are deleted. The dry run comes first, always."""
    targets, uses = _look(kube, args, NO_EXECUTE)
    said = _ask_control_plane(
        kube, [one for one in targets if any(use.device == one.device for use in uses)], args.reason
    )
    pods = sorted({pod for use in uses if use.bears_s is not None for pod in use.pods})
    if args.dry_run or not args.yes:
        _print(args, targets, uses, f"{_count(targets)} would be drained; {_count(pods, 'pod')} would be deleted", said)
        if args.dry_run:
            return 0
        raise TryAgain(f"nothing was changed: run it again with --yes to delete {', '.join(pods) or 'no pod'}")
    for target in targets:
        _write(kube, target, NO_EXECUTE, args.reason)
    _wait_until_free(kube, targets, render_taint(NO_EXECUTE, args.reason), args.timeout)
    bearing = sum(use.bears_s is None for use in uses)
    stay = "claim bears the taint and stays" if bearing == 1 else "claims bear the taint and stay"
    left = f"{bearing} {stay}" if bearing else "no claim holds them"
    _print(args, targets, uses, f"{_count(targets)} drained; {left}", said)
    return 0


def uncordon(kube: Kube, args: argparse.Namespace) -> int:
    """Removes the rules of a cordon or a drain."""
    slices = _list(kube, RESOURCE_SLICES)
    try:
        targets = find_targets(slices, args.gpu, args.node)
    except StateError:
        targets = ()  # a GPU that is published no longer may still be cordoned
    rules = find_rules(_list(kube, DEVICE_TAINT_RULES), args.gpu, args.node, targets)
    if not rules:
        raise StateError(f"{args.gpu!r} is not cordoned; `kubectl get devicetaintrules` shows every rule there is")
    for rule in rules if not args.dry_run else ():
        _delete(kube, rule)
    names = [str(rule["metadata"]["name"]) for rule in rules]
    if args.output == "json":
        print(json.dumps({"dryRun": args.dry_run, "rules": names}, indent=2))
        return 0
    print(f"{_count(names, 'rule')} {'would be ' if args.dry_run else ''}removed: {_summarize(names)}")
    return 0


def _look(kube: Kube, args: argparse.Namespace, effect: str) -> tuple[tuple[Target, ...], tuple[Use, ...]]:
    targets = find_targets(_list(kube, RESOURCE_SLICES), args.gpu, args.node)
    _list(kube, DEVICE_TAINT_RULES)  # before anything is promised: an older API server has none
    return targets, find_uses(targets, _list(kube, RESOURCE_CLAIMS), render_taint(effect, args.reason))


def _list(kube: Kube, resource: Any) -> tuple[Json, ...]:
    return _retried(lambda: kube.list(resource)).items


def _write(kube: Kube, target: Target, effect: str, reason: str) -> None:
    """Makes the device's rule, or changes it; again where somebody else wrote in between."""
    for _ in range(_TRIES):
        existing = _find(kube, target.rule_name)
        planned = plan_rule(existing, target, effect, reason)
        if planned is None:
            return
        try:
            _put(kube, planned, new=existing is None)
        except (ApiConflict, ApiNotFound):
            continue
        return
    raise TryAgain(f"DeviceTaintRule {target.rule_name} changes as fast as it is read: run the same command again")


def _put(kube: Kube, rule: Json, *, new: bool) -> None:
    _retried(lambda: kube.create(DEVICE_TAINT_RULES, rule) if new else kube.replace(DEVICE_TAINT_RULES, rule))


def _find(kube: Kube, name: str) -> Json | None:
    try:
        return _retried(lambda: kube.get(DEVICE_TAINT_RULES, name))
    except ApiNotFound:
        return None


def _delete(kube: Kube, rule: Mapping[str, Any]) -> None:
    metadata = rule["metadata"]
    try:
        _retried(lambda: kube.delete(DEVICE_TAINT_RULES, metadata["name"], uid=metadata.get("uid")))
    except ApiNotFound:
        return  # gone already


def _ask_control_plane(kube: Kube, targets: Sequence[Target], reason: str) -> dict[str, str]:
    """What kube-controller-manager says of each device that is held, by rules of effect None that go again."""
    made = []
    try:
        for target in targets:
            rule = render_rule(target, NO_EXECUTE, reason, dry_run=True)
            if (old := _find(kube, target.dry_run_name)) is not None:
                _delete(kube, old)  # left by one that was killed; its count is old
            made.append(_retried(lambda rule=rule: kube.create(DEVICE_TAINT_RULES, rule)))  # type: ignore[misc]
        said: dict[str, str] = {}

        def has_all() -> bool:
            for target in targets:
                if target.device not in said and (text := _read_count(_find(kube, target.dry_run_name))):
                    said[target.device] = text
            return len(said) == len(targets)

        try:
            _wait(has_all, "the control plane's count", _COUNT_TIMEOUT_S)
        except TryAgain as error:
            print(f"tesela gpu: {error}; the count from the claims stands", file=sys.stderr)
        return said
    finally:
        for rule in made:
            _delete(kube, rule)


def _read_count(rule: Json | None) -> str:
    conditions = ((rule or {}).get("status") or {}).get("conditions") or ()
    messages = [one.get("message", "") for one in conditions if one.get("reason") == "NoEffect"]
    return next((str(text) for text in messages if _WOULD_BE.search(text)), "")


def _wait_until_free(kube: Kube, targets: Iterable[Target], taint: Json, timeout_s: float) -> None:
    """Until no claim holds a target, but those that bear the taint for ever."""
    left: list[str] = []

    def is_free() -> bool:
        uses = find_uses(targets, _list(kube, RESOURCE_CLAIMS), taint)
        held = [use for use in uses if use.bears_s is not None]
        left[:] = [f"{use.device} by {', '.join(use.pods) or f'claim {use.claim}'}" for use in held]
        return not left

    _wait(is_free, "the pods to end", timeout_s, lambda: f"still held: {'; '.join(left)}")


def _wait(is_done: Callable[[], bool], what: str, timeout_s: float, state: Callable[[], str] = lambda: "") -> None:
    began_s = time.monotonic()
    next_word_s = began_s + _FIRST_WORD_S
    while not is_done():
        now_s = time.monotonic()
        hint = f"; {state()}" if state() else ""
        if now_s - began_s > timeout_s:
            raise TryAgain(f"waited {timeout_s:.0f} s for {what}{hint}")
        if now_s >= next_word_s:
            next_word_s = now_s + _NEXT_WORD_S
            print(f"waiting for {what}, {now_s - began_s:.0f} s so far{hint}", file=sys.stderr, flush=True)
        time.sleep(_LOOK_S)


def _print(
    args: argparse.Namespace,
    targets: Sequence[Target],
    uses: Sequence[Use],
    done: str,
    said: dict[str, str] | None = None,
) -> None:
    if args.output == "json":
        document = {
            "dryRun": args.dry_run or (args.op == "drain" and not args.yes),
            "driver": DRIVER_NAME,
            "devices": [_render_target(one) for one in targets],
            "uses": [_render_use(one) for one in uses],
            "controlPlane": said or {},
        }
        print(json.dumps(document, indent=2))
        return
    print(f"{targets[0].pool}: {_summarize([one.device for one in targets])}")
    for use in uses:
        stays = {None: " (bears the taint for ever)", 0: ""}.get(use.bears_s, f" (bears the taint for {use.bears_s} s)")
        print(f"  {use.device} is held by claim {use.claim}, pods {', '.join(use.pods) or 'none'}{stays}")
    for device, text in sorted((said or {}).items()):
        print(f"  {device}, kube-controller-manager: {text.partition(' This information')[0]}")
    print(done)


def _summarize(names: Sequence[str]) -> str:
    """All of a few, the first and the last of the many partitions that a GPU can be cut into."""
    return ", ".join(names) if len(names) <= _SHOWN else f"{names[0]}, {names[1]} … {names[-1]}"


def _render_target(one: Target) -> Json:
    return {"pool": one.pool, "device": one.device, "gpuUUID": one.gpu_uuid, "rule": one.rule_name}


def _render_use(one: Use) -> Json:
    """`tolerationSeconds` as in a pod's toleration: null where it bears the taint for ever."""
    return {
        "device": one.device,
        "claim": one.claim,
        "pods": list(one.pods),
        "tolerationSeconds": one.bears_s,
    }


def _count(some: Sequence[object], what: str = "device") -> str:
    return f"{len(some)} {what}" if len(some) == 1 else f"{len(some)} {what}s"


def _retried(call: Callable[[], T]) -> T:
    return with_retries(call, Event(), _RETRY_S)
