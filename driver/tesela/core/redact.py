"""What is left out of a bundle: secrets, and what is nobody's business but its owner's.

Objects of the API are cut down to what explains a GPU claim. Text is searched for what looks like a credential: a
search finds what it knows, so nothing that is known to hold secrets is put in to begin with.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

Json: TypeAlias = dict[str, Any]

LEFT_OUT: Final = "(left-out)"
_KEPT_ANNOTATIONS: Final = ("gpu.nvidia.com/", "resource.kubernetes.io/")
_CREDENTIALS: Final = (
    re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}(?:\.[A-Za-z0-9_-]*)?"),
    re.compile(r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
    re.compile(r"\b(?:AKIA[0-9A-Z]{16}|(?:gh[a-z]_|github_pat_|glpat-|xox[a-z]-|hf_|nvapi-)[A-Za-z0-9_-]{16,})"),
)
_HEADER: Final = re.compile(r"""(?i)((?:authorization|cookie)\\*["']?\s*[=:]\s*\\*["']?)[^"'\\\r\n]+""")
_NAMED: Final = re.compile(
    r"""(?ix)
    ((?:password|passwd|passphrase|secret|credentials?|(?<!module)(?<!module_)token|api[-_]?key|access[-_]?key
    |private[-_]?key|key-data) \\*["']? \s*[=:]\s*)
    (?: (?P<quote>\\*["']) [^\r\n]{1,4096}? (?P=quote) | (?!(?:true|false|null|\d+)\b) [^\s"',;&}\]\[{\\]{4,} )"""
)
"""No part of it may be tried at every place of a long word: a search holds up the whole process while it runs.

Numbers and truth values are no secrets, and `moduleToken` tells one load of the kernel module from the next.
"""


def redact_text(text: str) -> str:
    """The text without what looks like a token, a key, or a password; also where JSON lies in the strings of JSON."""
    for pattern in _CREDENTIALS:
        text = pattern.sub(LEFT_OUT, text)
    text = _HEADER.sub(lambda found: found[1] + LEFT_OUT, text)
    return _NAMED.sub(lambda found: f"{found[1]}{found['quote'] or ''}{LEFT_OUT}{found['quote'] or ''}", text)


def redact_bytes(data: bytes) -> bytes:
    """The same for what may be no text at all; bytes that are no part of a secret stay as they are."""
    return redact_text(data.decode("latin-1")).encode("latin-1")


def redact_object(obj: Json, driver: str) -> Json:
    """An API object without managed fields, without foreign annotations, and with the parameters of `driver` alone.

    kubectl's last-applied-configuration, which repeats all of an object, is such an annotation. Parameters addressed to
    this driver explain what it did with a claim; those of other drivers are theirs.
    """
    metadata = {key: value for key, value in obj.get("metadata", {}).items() if key != "managedFields"}
    annotations = metadata.pop("annotations", None) or {}
    kept = {key: value for key, value in annotations.items() if key.startswith(_KEPT_ANNOTATIONS)}
    if kept:
        metadata["annotations"] = kept
    rest = {key: _redact_parameters(value, driver) for key, value in obj.items() if key != "metadata"}
    return {**rest, "metadata": metadata}


def _redact_parameters(value: Any, driver: str) -> Any:
    if isinstance(value, list):
        return [_redact_parameters(one, driver) for one in value]
    if not isinstance(value, dict):
        return value
    if "parameters" in value and "driver" in value and value["driver"] != driver:
        return {**value, "parameters": LEFT_OUT}
    return {key: _redact_parameters(one, driver) for key, one in value.items()}
