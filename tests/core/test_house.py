"""The rules of CONTRIBUTING.md that neither ruff nor import-linter knows, each as a list of those that break it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
WRITTEN = {".py", ".go", ".proto", ".md", ".yaml", ".toml"}

# "About 400" and "about 40": what a reader forgives, and no more.
MOST_LINES = 420
MOST_FUNCTION_LINES = 45

PURE = {
    *("__future__", "collections", "dataclasses", "enum", "fnmatch", "fractions", "functools", "hashlib", "heapq"),
    *("itertools", "json", "math", "operator", "re", "string", "types", "typing", "unicodedata", "uuid"),
}
"""What core may import: modules that neither touch the world nor ask the time. `uuid` is for `uuid5` alone."""
IMPURE_NAMES = {"open", "print", "input", "eval", "exec", "__import__", "uuid1", "uuid4"}
CEL = {"cel_expr_python", "google.protobuf"}

BROAD = {
    "edge/kubelet/calls.py _serve_all": "the last frame before gRPC",
    "edge/kubelet/registration.py NotifyRegistrationStatus": "the last frame before gRPC",
    "edge/embedded/kubelet.py _work": "the top of a worker; `close` raises it",
    "edge/embedded/loop.py _run": "the top of a thread; `close` raises it",
    "edge/nvml/worker.py _tell": "a listener's fault must not end the thread that calls NVML; it is logged",
    "edge/nvml/worker.py _work": "the top of a thread; the caller raises it",
    "edge/http/server.py _ask": "the last frame before a client's socket; logged, and the client is told",
    "edge/http/server.py _run": "the top of a thread; raised again in the thread of each that waits for it",
    "edge/simulator/server.py _answer": "the last frame before a client's socket; logged, and the client is told",
    "edge/simulator/server.py _admit": "one connection's fault must not end the thread that takes them; logged",
    "plugin/loop.py _attempt": "the top of a thread; logged and tried again",
    "plugin/side_by_side.py _work": "the top of a thread; the caller raises it",
    "plugin/inventory.py _look_at": "one GPU's fault must not hide the others; logged",
    "plugin/service.py _serve": "one claim's fault must not fail the other claims of its pod; logged",
    "plugin/recover.py recover_claim": "one claim's fault must not keep the others of its GPU from recovery; logged",
    "plugin/publish.py _publish_until_stopped": "the top of a thread; logged and tried again",
    "cli/bundle_parts.py attempt": "one part's fault must not lose the others; it stands in the manifest",
    "cli/demo_node.py call": "the top of a thread; the caller raises it",
    "edge/kube/config.py _load_file": "the official loader lets anything out of a malformed file; raised as one error",
}
"""Where everything is caught, and why that is the last place that can."""


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _list_written() -> list[Path]:
    """Files that people write: no stubs, locks or caches."""
    folders = [ROOT / name for name in ("driver", "tests", "proto", "docs", "deviceclasses", "daemonset")]
    files = [*ROOT.glob("*"), *(path for folder in folders for path in folder.rglob("*"))]
    return [path for path in files if path.suffix in WRITTEN and not {"pb", "__pycache__"} & set(path.parts)]


@cache
def _parse(folder: str) -> dict[str, ast.Module]:
    return {
        _name(path): ast.parse(path.read_text())
        for path in _list_written()
        if path.suffix == ".py" and path.is_relative_to(ROOT / folder)
    }


def _walk(folder: str) -> Iterator[tuple[str, ast.AST]]:
    return ((name, node) for name, tree in _parse(folder).items() for node in ast.walk(tree))


def _list_imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def _is_in(module: str, allowed: set[str]) -> bool:
    parts = module.split(".")
    return any(".".join(parts[:length]) in allowed for length in range(1, len(parts) + 1))


def _count_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """From `def` to the end, docstring left out."""
    docstring = ast.get_docstring(function, clean=False)
    first = function.body[0]
    of_docstring = first.end_lineno - first.lineno + 1 if docstring is not None else 0
    return function.end_lineno - function.lineno + 1 - of_docstring


def test_no_file_is_too_long():
    lines = {_name(path): len(path.read_text().splitlines()) for path in _list_written()}

    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def test_no_function_is_too_long():
    functions = [pair for pair in _walk("") if isinstance(pair[1], ast.FunctionDef | ast.AsyncFunctionDef)]
    counts = {f"{name}:{node.lineno} {node.name}": _count_lines(node) for name, node in functions}

    assert {name: count for name, count in counts.items() if count > MOST_FUNCTION_LINES} == {}


def test_core_imports_only_what_is_pure():
    allowed = {*PURE, "tesela.core"}
    found = [
        f"{name}: {module}"
        for name, node in _walk("driver/tesela/core")
        for module in _list_imports(node)
        if not _is_in(module, allowed | CEL if "/core/selector/" in name else allowed)
    ]

    assert found == []


def test_core_calls_nothing_that_touches_the_world():
    found = [
        f"{name}:{node.lineno} {node.id}"
        for name, node in _walk("driver/tesela/core")
        if isinstance(node, ast.Name) and node.id in IMPURE_NAMES
    ]

    assert found == []


def _list_broad_handlers(tree: ast.Module, function: str = "") -> Iterator[tuple[str, ast.ExceptHandler]]:
    for node in ast.iter_child_nodes(tree):
        inner = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if isinstance(node, ast.ExceptHandler) and _is_broad(node):
            yield function, node
        yield from _list_broad_handlers(node, inner)


def _is_broad(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    return any(isinstance(one, ast.Name) and one.id in {"Exception", "BaseException"} for one in ast.walk(handler.type))


def _is_passed_on(handler: ast.ExceptHandler) -> bool:
    """A cleanup that ends in a bare `raise` swallows nothing."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def test_only_the_last_frames_catch_everything():
    found = {
        f"{name.removeprefix('driver/tesela/')} {function}"
        for folder in ("driver", "tests", "proto")
        for name, tree in _parse(folder).items()
        for function, handler in _list_broad_handlers(tree)
        if not _is_passed_on(handler)
    }

    assert found == set(BROAD)


def test_no_test_replaces_a_part_of_another_object():
    found = [
        f"{name}:{node.lineno}"
        for name, node in _walk("tests")
        if isinstance(node, ast.Attribute) and node.attr in {"setattr", "delattr", "setitem"}
        if isinstance(node.value, ast.Name)
    ]

    assert found == []


def test_no_test_asserts_a_constant():
    found = [
        f"{name}:{node.lineno}"
        for name, node in _walk("tests")
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant)
    ]

    assert found == []
