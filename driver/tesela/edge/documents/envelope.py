"""The form of every state file of ours: one JSON object of a version, one value in camelCase, and a checksum.

A state file is read by the driver that wrote it, by the next release and, after a rollback, by the one before. So the
version stands in front, an unknown one is refused rather than guessed at, and no field is ever ignored. The checksum
stands last and covers every byte before it: one bit that flips in a UUID leaves a file that reads well and names
nothing that lives, and what it named would be nobody's.
"""

from __future__ import annotations

import functools
import json
import re
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from tesela.core.errors import OtherRelease, StateError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

T = TypeVar("T")

_CHECKSUM: Final = re.compile(rb',"checksum":"([0-9a-f]{8})"\}\n\Z')


class Envelope(Generic[T]):
    """Encodes and decodes `value_type` under the key `key`, as in `{"version": 1, "record": {...}, "checksum": "..."}`.

    pydantic is imported and the schema compiled at first use: verbs of the command that read no state do not pay.
    """

    def __init__(
        self, key: str, value_type: type[T], *, version: int, what: str, also_reads: Sequence[int] = ()
    ) -> None:
        """`also_reads` are older versions of which every field is still there and every newer one has a default."""
        self._key = key
        self._value_type = value_type
        self._version = version
        self._reads = (version, *also_reads)
        self._what = what

    def encode(self, value: T) -> bytes:
        """The bytes of a state file, ending with a line feed."""
        body = self._model.model_construct(None, version=self._version, **{self._key: value})
        covered = body.model_dump_json(by_alias=True, exclude={"checksum"}).encode().removesuffix(b"}")
        return covered + b',"checksum":"%08x"}\n' % zlib.crc32(covered)

    def decode(self, data: bytes) -> T:
        """The value in `data`. OtherRelease names the unknown version, StateError the first field that is wrong.

        A file without checksum, or one that somebody laid out anew with all that is in it, counts as it reads.
        """
        from pydantic import ValidationError  # noqa: PLC0415 -- see the class docstring

        found = _CHECKSUM.search(data)
        if found is not None and zlib.crc32(data[: found.start()]) != int(found[1], 16):
            raise StateError(
                f"{self._what} is not as it was written: its checksum does not match, so the disk or a hand has "
                "changed it"
            )
        try:
            body = self._model.model_validate_json(data)
        except ValidationError as error:
            self._refuse_other_version(_peek_version(data))
            raise StateError(_explain(self._what, error)) from error
        self._refuse_other_version(getattr(body, "version", None))
        value: T = getattr(body, self._key)
        return value

    @functools.cached_property
    def _model(self) -> type[BaseModel]:
        from pydantic import ConfigDict, create_model  # noqa: PLC0415 -- see the class docstring
        from pydantic.alias_generators import to_camel  # noqa: PLC0415 -- likewise

        config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)
        fields: dict[str, Any] = {
            "version": (int, ...),
            self._key: (self._value_type, ...),
            "checksum": (str | None, None),
        }
        return create_model(f"{self._key.title()}Envelope", __config__=config, **fields)

    def _refuse_other_version(self, version: object) -> None:
        if isinstance(version, int) and version not in self._reads:
            read = " and ".join(str(one) for one in sorted(self._reads))
            raise OtherRelease(
                f"{self._what} is written in version {version} and this release reads version {read}: "
                "run the release of tesela that wrote it, or a later one"
            )


def _peek_version(data: bytes) -> object:
    try:
        body = json.loads(data)
    except ValueError:
        return None
    return body.get("version") if isinstance(body, dict) else None


def _explain(what: str, error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field = ".".join(str(part) for part in first["loc"])
    return f"{what} is unreadable: {field}: {first['msg']}" if field else f"{what} is unreadable: {first['msg']}"
