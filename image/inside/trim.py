"""What the wheels bring and the driver never runs. An end-to-end test imports each of its modules in the result."""

from __future__ import annotations

import shutil
from pathlib import Path

UNUSED_DISTRIBUTIONS = (
    # of the Kubernetes client's asyncio half, which goes too
    *("aiohttp", "aiohttp-retry", "aiosignal", "aiohappyeyeballs", "attrs", "frozenlist", "multidict", "propcache"),
    "yarl",
    *("Pygments", "markdown-it-py", "mdurl"),  # rich renders no source code and no Markdown here
    "tzdata",  # times are UTC
)
"""Named in the lock, since others declare to need them, and not installed."""

_UNUSED = (
    "kubernetes/aio",
    "kubernetes/client/api/*_api.py",  # loaded at first use; the driver speaks JSON through the client's transport
    "kubernetes/client/models/*_*.py",
    "cel_expr_python/ext/ext_encoders.*",
    "cel_expr_python/ext/ext_math.*",
    "cel_expr_python/ext/ext_proto.*",
    "google/api",
    "google/cloud",
    "google/longrunning",
    "*/tests",
)


def trim(packages: Path) -> list[str]:
    """Removes them, and returns the patterns that fitted nothing: a new release has its files elsewhere."""
    idle = []
    for pattern in _UNUSED:
        paths = list(packages.glob(pattern))
        if not paths:
            idle.append(pattern)
        for path in paths:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    return idle
