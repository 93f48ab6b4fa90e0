"""What evaluating a selector answers: a closed union."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Match:
    """The device is selected."""


@dataclass(frozen=True, slots=True)
class NoMatch:
    """The device is not selected."""


@dataclass(frozen=True, slots=True)
class CompileError:
    """The expression is wrong for every device; the scheduler ends its cycle."""

    text: str


@dataclass(frozen=True, slots=True)
class SelectorRuntimeError:
    """Evaluation failed on this device, for instance `no such key: profile`; the scheduler ends its cycle."""

    text: str


@dataclass(frozen=True, slots=True)
class SelectorUndecided:
    """The expression uses `what`, which Kubernetes knows and we do not evaluate."""

    what: str


Outcome = Match | NoMatch | CompileError | SelectorRuntimeError | SelectorUndecided
