"""The shape of the table of named calls: one row per NVML function, with its target, its arguments and its rule.

The rows themselves stand next to their rules, in the `named_*` modules and `telemetry`; `named` collects them. Rules
that ask no GPU are here: the same number from all, or a refusal by all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tesela.edge.nvml import codes
from tesela.edge.simulator.refused import Refused
from tesela.edge.simulator.targets import Asked, NamedAnswer, NamedRequest, TargetKind

if TYPE_CHECKING:
    from tesela.edge.simulator.machine import Machine

NodeRule: TypeAlias = "Callable[[Machine, NamedRequest], NamedAnswer]"
GpuRule: TypeAlias = Callable[[Asked], NamedAnswer]
NO_ANSWER = NamedAnswer()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A function of the whole machine, or of two GPUs: `rule` takes the locks that it needs, one after the other.

    `takes_gpu`: the request names a GPU, and faults of that GPU concern the call.
    """

    function: str
    rule: NodeRule
    numbers: int = 0
    takes_gpu: bool = False
    takes_text: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """A function of one GPU or what is in it: `rule` runs under that GPU's lock; `changes`: it is no mere reading."""

    function: str
    target: TargetKind
    rule: GpuRule
    numbers: int = 0
    changes: bool = False


Row: TypeAlias = NodeRow | GpuRow


def number(value: int) -> NamedAnswer:
    """An answer of one number."""
    return NamedAnswer(numbers=(value,))


def words(value: str) -> NamedAnswer:
    """An answer of one text."""
    return NamedAnswer(text=value)


def always(value: int) -> GpuRule:
    """The rule of a fact that is one for all simulated GPUs."""
    return lambda _asked: number(value)


def not_supported(_asked: Asked) -> NamedAnswer:
    """The rule of what nobody published for these boards, or what these boards and Linux lack."""
    raise Refused(codes.NOT_SUPPORTED)
