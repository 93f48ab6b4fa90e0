"""Fields of an object as the API gives it: there and of its type, or a DocumentError with the field's path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from tesela.core.errors import DocumentError

ApiObject: TypeAlias = Mapping[str, Any]
_T = TypeVar("_T")
_NAMES: Final = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}


def get_field(obj: ApiObject, field: str, kind: type[_T], *, at: str) -> _T:
    """The field, which must be there; `at` is the path of `obj`, "" at the top."""
    value = obj.get(field)
    if value is None:
        raise DocumentError(_join(at, field), "missing")
    return check_type(value, kind, _join(at, field))


def get_field_or(obj: ApiObject, field: str, kind: type[Any], default: Any, *, at: str) -> Any:
    """The field, or `default` where it is not there."""
    value = obj.get(field)
    return default if value is None else check_type(value, kind, _join(at, field))


def list_field(obj: ApiObject, field: str, kind: type[_T], *, at: str) -> Sequence[_T]:
    """The entries of a list, each of `kind`; none where the field is not there."""
    values = get_field_or(obj, field, list, [], at=at)
    return [check_type(value, kind, f"{_join(at, field)}[{index}]") for index, value in enumerate(values)]


def check_type(value: object, kind: type[_T], path: str) -> _T:
    """The value itself."""
    if not isinstance(value, kind):
        raise DocumentError(path, f"must be {_NAMES[kind]}, not {value!r:.80}")
    return value


def _join(at: str, field: str) -> str:
    return f"{at}.{field}" if at else field
