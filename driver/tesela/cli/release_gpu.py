"""`tesela release-gpu`: has this node's driver close NVML for an upgrade of the GPU driver or a reset, and open it.

Run it on the node, as the user of the driver: it works on the driver's own folder, asks there, and waits for the driver
to do it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tesela.cli.node_arguments import add_output, add_plugins_dir, get_state_dir, get_user, parse_reason
from tesela.core.errors import StateError, TryAgain
from tesela.core.released import NOT_RELEASED, RELEASE_LABEL, Released, Request, Source, render_askers
from tesela.edge.kube.times import render_time
from tesela.edge.store.locks import FileLocks, hold
from tesela.edge.store.released import OpenMark, ReleasedStore

_LOCK_TIMEOUT_S: Final = 10.0
_LOOK_S: Final = 0.1
_FIRST_WORD_S: Final = 2.0
_NEXT_WORD_S: Final = 10.0
_EPILOG: Final = f"""\
While NVML is released the driver stays registered and its devices stay published, tainted gpu.nvidia.com/released
(NoSchedule). Pods that run keep running. No claim is prepared or given back: new pods wait, and pods that are deleted
stay until NVML is open again. So end the pods that use the GPU before, not after: see docs/maintenance.md.
The label {RELEASE_LABEL}=true on the node asks for the same, within half a minute.

exit codes:
  0    done: NVML is closed, or open again
  1    not yet: one line on stderr says what it waits for; what was asked stands
  2    wrong usage
  130  interrupted; what was asked stands

examples:
  kubectl exec -n NAMESPACE POD -- tesela release-gpu --reason "driver 590"
  tesela release-gpu --status -o json
  tesela release-gpu --resume"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares what is asked for and where the driver keeps its state."""
    parser.epilog = _EPILOG
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--resume", action="store_true", help="open NVML again")
    what.add_argument("--status", action="store_true", help="show who asked and how far it is; changes nothing")
    parser.add_argument("--reason", default="maintenance", help="shown on pods that wait (default: %(default)s)")
    parser.add_argument(
        "--timeout", type=float, default=120.0, metavar="S", help="seconds to wait for the driver (default: 120)"
    )
    add_output(parser)
    add_plugins_dir(parser)


def run(args: argparse.Namespace) -> int:
    """Asks, and waits. StateError or TryAgain says why not, or why not yet."""
    state_dir = get_state_dir(args)
    if not state_dir.is_dir():
        raise StateError(f"{state_dir} does not exist: no driver ever ran here, or --plugins-dir is another folder")
    reason = parse_reason(args)
    desk = _Desk(state_dir, timeout_s=args.timeout)
    if args.status:
        _show(desk, args.output)
        return 0
    stands = "the request stands" if not args.resume else "the request is withdrawn"
    try:
        done = desk.resume() if args.resume else desk.release(reason)
    except KeyboardInterrupt:
        print(f"tesela release-gpu: interrupted; {stands}", file=sys.stderr)
        raise
    if args.output == "json":
        _show(desk, args.output)
    else:
        print(done)
    return 0


class _Desk:
    """The file by which the driver is asked, and the mark that tells whether NVML is open."""

    def __init__(self, state_dir: Path, *, timeout_s: float) -> None:
        self.store = ReleasedStore(state_dir)
        self._locks = FileLocks(state_dir)
        self.mark = OpenMark(self._locks.folder)
        self._timeout_s = timeout_s

    def release(self, reason: str) -> str:
        """Asks for NVML to be closed, and waits until no process has it open."""
        asked = Request(source=Source.COMMAND, reason=reason, requested_by=get_user(), since_s=int(time.time()))
        self._change(lambda released: released.with_request(asked))
        self._wait(lambda: not self.mark.is_held(), "the driver to close NVML", "the request stands")
        return (
            "NVML is closed on this node. Upgrade the GPU driver or reset the GPU now, then run "
            "`tesela release-gpu --resume`"
        )

    def resume(self) -> str:
        """Withdraws the command's request, and waits until a process has NVML open and prepares claims with it."""
        left = self._change(lambda released: released.without_until_open(Source.COMMAND))
        if left.is_wanted:
            raise TryAgain(
                f"the node's label still asks for NVML to be released: `kubectl label node NODE {RELEASE_LABEL}-` "
                "withdraws that"
            )
        self._wait(self._is_over, "the driver to open NVML", "the request is withdrawn")
        return "NVML is open again; claims are prepared as before"

    def _is_over(self) -> bool:
        """The mark alone would not do: a driver holds it before it opens NVML, which may fail or take long."""
        now = self._read()
        if now.is_wanted:
            raise TryAgain(f"NVML is released again by {render_askers(now)}; what you asked for is withdrawn")
        return now == NOT_RELEASED and self.mark.is_held()

    def _change(self, edit: Callable[[Released], Released]) -> Released:
        with hold(self._locks.released_lock(), _LOCK_TIMEOUT_S, "the request to release NVML"):
            try:
                before = self.store.read()
            except StateError as error:
                print(f"tesela release-gpu: {error}; kept as {self.store.set_aside()}", file=sys.stderr)
                before = Released(problem=str(error))
            after = edit(before)
            self.store.write_or_remove(after)
        return after

    def _wait(self, is_done: Callable[[], bool], what: str, otherwise: str) -> None:
        began_s = time.monotonic()
        next_word_s = began_s + _FIRST_WORD_S
        while not is_done():
            now_s = time.monotonic()
            problem = self._read().problem
            if now_s - began_s > self._timeout_s:
                hint = problem or "is `tesela plugin` running on this node? Look at its log"
                raise TryAgain(f"waited {self._timeout_s:.0f} s for {what}: {hint}; {otherwise}")
            if now_s >= next_word_s:
                next_word_s = now_s + _NEXT_WORD_S
                why = f": {problem}" if problem else ""
                print(f"waiting for {what}, {now_s - began_s:.0f} s so far{why}", file=sys.stderr, flush=True)
            time.sleep(_LOOK_S)

    def _read(self) -> Released:
        try:
            return self.store.read()
        except StateError as error:
            return Released(problem=str(error))  # the driver sets a damaged file aside, and says so too


def _show(desk: _Desk, output: str) -> None:
    released, is_open = desk.store.read(), desk.mark.is_held()
    if output == "json":
        print(json.dumps({"nvmlOpen": is_open, **_render(released)}, indent=2))
        return
    print(f"NVML is {'open' if is_open else 'closed'}")
    for one in released.requests:
        print(f"released since {render_time(one.since_s)} by {one.requested_by} ({one.source}): {one.reason}")
    if released.problem:
        print(f"waits for: {released.problem}")


def _render(released: Released) -> dict[str, Any]:
    requests = [
        {
            "source": one.source.value,
            "reason": one.reason,
            "requestedBy": one.requested_by,
            "since": render_time(one.since_s),
        }
        for one in released.requests
    ]
    closed = render_time(released.closed_s) if released.closed_by else None
    return {
        "requests": requests,
        "closedBy": released.closed_by or None,
        "closed": closed,
        "problem": released.problem or None,
    }
