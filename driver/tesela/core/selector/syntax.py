"""The syntax tree of a parsed CEL expression, as much of cel.expr's ParsedExpr as rewriting selectors needs.

The CEL runtime writes and reads its trees as protobuf bytes but brings no Python classes for them. The messages here
name only the fields that are looked at (numbers from cel/expr/syntax.proto); protobuf keeps all others as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory

Node = Any
"""An Expr message; its classes exist at run time only."""

_PACKAGE = "tesela.cel"
_FIELD = descriptor_pb2.FieldDescriptorProto
_SINGLE, _MANY = _FIELD.LABEL_OPTIONAL, _FIELD.LABEL_REPEATED
_STRING, _BOOL = "string", "bool"
_SCALARS = {_STRING: _FIELD.TYPE_STRING, _BOOL: _FIELD.TYPE_BOOL}
_MESSAGES: dict[str, tuple[tuple[int, str, str, bool], ...]] = {
    "ParsedExpr": ((2, "expr", "Expr", False),),
    "Constant": ((6, "string_value", _STRING, False),),
    "Ident": ((1, "name", _STRING, False),),
    "Select": ((1, "operand", "Expr", False), (2, "field", _STRING, False), (3, "test_only", _BOOL, False)),
    "Call": ((1, "target", "Expr", False), (2, "function", _STRING, False), (3, "args", "Expr", True)),
    "CreateList": ((1, "elements", "Expr", True),),
    "Entry": ((3, "map_key", "Expr", False), (4, "value", "Expr", False)),
    "CreateStruct": ((2, "entries", "Entry", True),),
    "Comprehension": (
        (2, "iter_range", "Expr", False),
        (4, "accu_init", "Expr", False),
        (5, "loop_condition", "Expr", False),
        (6, "loop_step", "Expr", False),
        (7, "result", "Expr", False),
    ),
    "Expr": (
        (3, "const_expr", "Constant", False),
        (4, "ident_expr", "Ident", False),
        (5, "select_expr", "Select", False),
        (6, "call_expr", "Call", False),
        (7, "list_expr", "CreateList", False),
        (8, "struct_expr", "CreateStruct", False),
        (9, "comprehension_expr", "Comprehension", False),
    ),
}


def _parsed_expr_class() -> type[Any]:
    file = descriptor_pb2.FileDescriptorProto(name="tesela/cel/syntax.proto", package=_PACKAGE, syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field_name, message_name, is_list in fields:
            message.field.add(
                name=field_name,
                number=number,
                label=_MANY if is_list else _SINGLE,
                type=_SCALARS.get(message_name, _FIELD.TYPE_MESSAGE),
                type_name=None if message_name in _SCALARS else f".{_PACKAGE}.{message_name}",
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return cast("type[Any]", message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.ParsedExpr")))


_PARSED_EXPR = _parsed_expr_class()


class Tree:
    """A parsed expression that can be looked at, changed in place, and handed back to the runtime."""

    def __init__(self, serialized: bytes) -> None:
        self._envelope = any_pb2.Any.FromString(serialized)
        self._parsed = _PARSED_EXPR.FromString(self._envelope.value)

    @property
    def root(self) -> Node:
        """The outermost expression."""
        return self._parsed.expr

    def serialize(self) -> bytes:
        """The bytes that the runtime deserializes."""
        return any_pb2.Any(type_url=self._envelope.type_url, value=self._parsed.SerializeToString()).SerializeToString()


def children(node: Node) -> Iterator[Node]:
    """The expressions directly inside `node`."""
    if node.HasField("select_expr"):
        yield node.select_expr.operand
    elif node.HasField("call_expr"):
        if node.call_expr.HasField("target"):
            yield node.call_expr.target
        yield from node.call_expr.args
    elif node.HasField("list_expr"):
        yield from node.list_expr.elements
    elif node.HasField("struct_expr"):
        for entry in node.struct_expr.entries:
            if entry.HasField("map_key"):
                yield entry.map_key
            yield entry.value
    elif node.HasField("comprehension_expr"):
        comprehension = node.comprehension_expr
        yield comprehension.iter_range
        yield comprehension.accu_init
        yield comprehension.loop_condition
        yield comprehension.loop_step
        yield comprehension.result


def walk(node: Node) -> Iterator[Node]:
    """`node` and every expression inside it."""
    pending = [node]
    while pending:
        current = pending.pop()
        yield current
        pending.extend(children(current))


def ident_name(node: Node) -> str | None:
    """The name, if `node` is a plain identifier."""
    return str(node.ident_expr.name) if node.HasField("ident_expr") else None


def constant_string(node: Node) -> str | None:
    """The text, if `node` is a string literal."""
    if node.HasField("const_expr") and node.const_expr.HasField("string_value"):
        return str(node.const_expr.string_value)
    return None


def selected_field(node: Node, operand: str) -> str | None:
    """The field, if `node` reads a field of the identifier `operand`, as in `device.driver`."""
    if node.HasField("select_expr") and ident_name(node.select_expr.operand) == operand:
        return str(node.select_expr.field)
    return None
