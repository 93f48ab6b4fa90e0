"""What the wheels bring that the driver never runs. A test imports every module of the driver in the result."""

from __future__ import annotations

import shutil
from pathlib import Path

UNUSED_DISTRIBUTIONS = (
    *("aiohttp", "aiohttp-retry", "aiosignal", "aiohappyeyeballs", "attrs", "frozenlist", "multidict", "propcache"),
    "yarl",
)
"""Needed by the Kubernetes client's asyncio half alone, which is left out below."""

UNUSED_FOLDERS = (
    "kubernetes/aio",
    "kubernetes/client/api",
    "kubernetes/client/models",
    "cel_expr_python/ext",
    "google/api",
)
"""Loaded at first use by those who use them. The driver speaks to the API in JSON, with the client's transport."""


def trim(packages: Path) -> None:
    """Removes the folders; what others import at start stays, as a package that has nothing in it."""
    for name in UNUSED_FOLDERS:
        folder = packages / name
        keep = folder / "__init__.py"
        text = keep.read_text() if keep.exists() else None
        shutil.rmtree(folder, ignore_errors=True)
        if text is not None and name.startswith("kubernetes/client"):
            folder.mkdir()
            keep.write_text(text)
    for folder in [path for path in packages.rglob("*") if path.is_dir() and path.name in {"tests", "testing"}]:
        shutil.rmtree(folder)
