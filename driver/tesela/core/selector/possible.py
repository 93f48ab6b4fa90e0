"""What a selector can be known to leave out, when only some of a device's attributes are known.

CEL itself has the logic: a missing attribute is an error, an error makes `&&`, `||` and `?:` fail only where the rest
does not decide, and so a plain false is false whatever the missing ones are. That holds while nothing in the expression
sees that an attribute is missing, as `has`, `?.` and macros over keys do; such expressions leave nothing out here.
"""

from __future__ import annotations

from collections.abc import Collection

from tesela.core.selector.compile import BY_DOMAIN, parse_tree
from tesela.core.selector.evaluate import SelectorDevice, evaluate_selector
from tesela.core.selector.outcome import NoMatch
from tesela.core.selector.syntax import Node, children, constant_string, selected_field, walk

_LOOKUPS = frozenset({"_[_]"})
_OPTIONAL_LOOKUPS = frozenset({"_[?_]", "_?._"})
_UNKNOWN = "allowMultipleAllocations"
"""What every device has, and a sketch does not know."""


def may_select(text: str, sketch: SelectorDevice) -> bool:
    """False: `text` selects no device that has the attributes of `sketch`, whatever else it has. True: it may.

    Also true where that cannot be told, and where the expression is wrong, which the API server says.
    """
    if not _is_plain(text, sketch):
        return True
    try:
        return not isinstance(evaluate_selector(text, sketch), NoMatch)
    except RuntimeError:  # the library gives up after some thousand iterations, long before the API's cost limit
        return True


def _is_plain(text: str, sketch: SelectorDevice) -> bool:
    """Whether an attribute that `sketch` lacks can only be met as an error."""
    try:
        tree = parse_tree(text)
    except RuntimeError:
        return False
    nodes = tuple(walk(tree.root))
    if any(selected_field(node, "device") == _UNKNOWN for node in nodes):
        return False
    return all(_reads_plainly(node, child, sketch.attributes) for node in nodes for child in children(node))


def _reads_plainly(node: Node, child: Node, known: Collection[str]) -> bool:
    field = selected_field(child, "device")
    if field in BY_DOMAIN:
        return _looks_up(node, child)
    if _is_domain(child):
        return _looks_up(node, child) or _looked_for(node) in known
    return True


def _is_domain(node: Node) -> bool:
    """Whether it is the map of one domain, as `device.attributes["gpu.nvidia.com"]`."""
    return any(selected_field(child, "device") in BY_DOMAIN and _looks_up(node, child) for child in children(node))


def _looks_up(node: Node, container: Node) -> bool:
    """Whether `node` takes one entry of `container`, and fails where there is none."""
    if node.HasField("select_expr"):
        return node.select_expr.operand is container and not node.select_expr.test_only
    return node.HasField("call_expr") and node.call_expr.function in _LOOKUPS and node.call_expr.args[0] is container


def _looked_for(node: Node) -> str | None:
    """The entry that `node` takes if it is there, or asks for."""
    if node.HasField("select_expr"):
        return str(node.select_expr.field)
    if node.HasField("call_expr") and node.call_expr.function in _OPTIONAL_LOOKUPS:
        return constant_string(node.call_expr.args[1])
    return None
