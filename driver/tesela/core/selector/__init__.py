"""CEL device selectors with Kubernetes' semantics; the only place that knows a CEL runtime.

`evaluate_selector` answers as the scheduler would: match, no match, an error that ends its cycle, or *undecided* for a
function of Kubernetes that is not here. Nothing here knows claims, pools or allocation.
"""

from __future__ import annotations

from tesela.core.selector.attributes import SCALAR_KINDS, Attribute, AttributeKind
from tesela.core.selector.evaluate import SelectorDevice, evaluate_selector
from tesela.core.selector.outcome import (
    CompileError,
    Match,
    NoMatch,
    Outcome,
    SelectorRuntimeError,
    SelectorUndecided,
)
from tesela.core.selector.possible import may_select

__all__ = [
    "SCALAR_KINDS",
    "Attribute",
    "AttributeKind",
    "CompileError",
    "Match",
    "NoMatch",
    "Outcome",
    "SelectorDevice",
    "SelectorRuntimeError",
    "SelectorUndecided",
    "evaluate_selector",
    "may_select",
]
