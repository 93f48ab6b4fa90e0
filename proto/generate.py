# ruff: noqa: INP001 - a program beside its data, no package
"""Generates `driver/tesela/pb` from the definitions beside this file; `--check` says what has drifted and exits 1.

The definitions are compiled under the virtual folder `tesela/pb`. That gives every file a name of its own in the
process-wide descriptor pool, and makes protoc write imports that are right for the package, so that nothing has to
rewrite generated code. Versions of protoc and of the gRPC plugin come from the constraints file.
"""

from __future__ import annotations

import argparse
import importlib.resources
import shutil
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]

PROTO = Path(__file__).resolve().parent
DRIVER = PROTO.parent / "driver"
PACKAGE = Path("tesela", "pb")
ROOT_DOCSTRING = (DRIVER / PACKAGE / "__init__.py").read_text(encoding="utf-8")


def list_definitions() -> list[Path]:
    """Every definition, relative to `proto/`, in a fixed order."""
    return sorted(path.relative_to(PROTO) for path in PROTO.glob("*/*/*.proto"))


def write_stubs(target: Path) -> None:
    """Writes the whole package `tesela.pb` below `target`; raises SystemExit with protoc's status on failure."""
    definitions = list_definitions()
    arguments = [
        "protoc",
        f"--proto_path={PACKAGE.as_posix()}={PROTO}",
        f"--proto_path={importlib.resources.files('grpc_tools') / '_proto'}",
        f"--python_out={target}",
        f"--pyi_out={target}",
        f"--grpc_python_out={target}",
        *((PACKAGE / definition).as_posix() for definition in definitions),
    ]
    if status := protoc.main(arguments):
        raise SystemExit(status)
    for definition in definitions:
        for folder in definition.parents[:-1]:
            line = f'"""Generated from `proto/{folder.as_posix()}`."""\n'
            (target / PACKAGE / folder / "__init__.py").write_text(line, encoding="utf-8")
    (target / PACKAGE / "__init__.py").write_text(ROOT_DOCSTRING, encoding="utf-8")


def read_tree(root: Path) -> dict[str, bytes]:
    """Source files below `root` by relative path."""
    files = (path for path in root.rglob("*.py*") if path.suffix in {".py", ".pyi"})
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def find_drift(committed: dict[str, bytes], generated: dict[str, bytes]) -> list[str]:
    """One sentence per file that is missing, left over, or different."""
    drift = [f"{name} is missing" for name in sorted(generated.keys() - committed.keys())]
    drift += [f"{name} has no definition" for name in sorted(committed.keys() - generated.keys())]
    drift += [
        f"{name} differs" for name in sorted(committed.keys() & generated.keys()) if committed[name] != generated[name]
    ]
    return drift


def main() -> int:
    """Exit status: 0 done or equal, 1 drifted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed stubs, write nothing")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as scratch:
        write_stubs(Path(scratch))
        generated, committed = Path(scratch) / PACKAGE, DRIVER / PACKAGE
        if not check:
            shutil.rmtree(committed)
            shutil.copytree(generated, committed)
            return 0
        drift = find_drift(read_tree(committed), read_tree(generated))
    for sentence in drift:
        sys.stderr.write(f"driver/{PACKAGE.as_posix()}/{sentence}; run `make proto`\n")
    return 1 if drift else 0


if __name__ == "__main__":
    sys.exit(main())
