# ruff: noqa: INP001 - a program beside its data, no package
"""Writes what the chart has from elsewhere: values.yaml and docs/values.md from its schema, and copies of manifests.

`--check` changes nothing, says which files differ from what it would write, and exits 1. A chart can read no file
outside its own folder; hence the copies, which its templates fit to the release. What is a template, and equal to the
kustomization's manifests by a test, is not written here.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
CHART = HERE / "tesela"
ROOT = HERE.parents[1]
PERMISSIONS = ("node-plugin-rbac", "node-plugin-admission", "roles", "config-admission")
WIDTH = 120
HEAD = """\
# The chart's values. Written by daemonset/chart/generate.py from values.schema.json, which holds what you give to it;
# docs/values.md is the same as a table.

"""
PAGE = """# Which values does the chart take?

```
helm install tesela daemonset/chart/tesela --namespace tesela --create-namespace --wait \\
  --set image.repository=registry.example.com/gpu/tesela --set 'deviceClasses.families={h100-80gb}'
helm install tesela daemonset/chart/tesela --namespace tesela --create-namespace --wait --set gpus=simulated
```

The first is for real GPUs, the second for [simulated ones](install.md). A value that is not here, or of another type,
is refused before anything is made, by its path: the chart has a schema. So is a value that is missing, as those of a
newer chart are after `--reuse-values`: use `--reset-then-reuse-values`. With the defaults it makes what
`kubectl apply -k daemonset/overlays/production` makes, with `gpus: simulated` what the overlay `simulated` does: a test
compares them. The namespace is Helm's, so nothing labels it for Pod Security; the notes say how, where the label is
missing. A cluster has one release, whose objects have the same names whatever it is called. Update, rollback, removal:
[upgrade](upgrade.md).

`daemonset/chart/generate.py` writes this page from `values.schema.json`.

| value | default | meaning |
|---|---|---|
"""

Json = dict[str, Any]


def list_values(schema: Json, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Json]]:
    """Every group and every value below it, in the schema's order. What has a default is a value."""
    for name, node in schema["properties"].items():
        if "description" not in node:  # `global`, which Helm adds
            continue
        yield (*path, name), node
        if "default" not in node:
            yield from list_values(node, (*path, name))


def render_values(schema: Json) -> str:
    """values.yaml."""
    parts = [HEAD]
    for path, node in list_values(schema):
        indent = "  " * (len(path) - 1)
        comment = textwrap.wrap(node["description"].replace("`", ""), WIDTH - len(indent) - 2, break_on_hyphens=False)
        lines = [*(f"# {line}" for line in comment)]
        if "default" in node:
            lines += _dump({path[-1]: node["default"]}).splitlines()
        else:
            lines.append(f"{path[-1]}:")
        parts.append(
            ("\n" if len(path) == 1 and len(parts) > 1 else "") + "".join(f"{indent}{line}\n" for line in lines)
        )
    return "".join(parts)


def _dump(value: object) -> str:
    return yaml.safe_dump(value, sort_keys=False, default_flow_style=False, width=WIDTH)


def render_page(schema: Json) -> str:
    """docs/values.md."""
    rows = []
    for path, node in list_values(schema):
        default = f"`{_shorten(node['default'])}`" if "default" in node else ""
        allowed = _render_allowed(node)
        rows.append(f"| `{'.'.join(path)}` | {default} | {node['description']}{allowed} |\n")
    return PAGE + "".join(rows)


def _shorten(default: object) -> str:
    text = default if isinstance(default, str) and default else json.dumps(default)
    return text if len(text) <= 60 else "see values.yaml"


def _render_allowed(node: Json) -> str:
    names = node.get("enum") or node.get("items", {}).get("enum")
    if not names:
        return ""
    listed = ", ".join(f"`{name}`" for name in names)
    return f" One of {listed}." if "enum" in node else f" Of {listed}."


def render_files() -> dict[Path, str]:
    """Every file that is generated, by its path."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    return {
        CHART / "values.yaml": render_values(schema),
        ROOT / "docs" / "values.md": render_page(schema),
        **{CHART / "files" / name: path.read_text() for name, path in list_copied().items()},
    }


def list_copied() -> dict[str, Path]:
    """What is copied: the name below the chart's `files/`, and where it comes from."""
    permissions = ROOT / "daemonset" / "base" / "permissions"
    components = ROOT / "daemonset" / "components"
    names = ("uninstall-check", "admission-webhook", "admission-webhook-cert-manager")
    classes = ROOT / "deviceclasses"
    sources = [*classes.glob("*.yaml"), *(classes / "profiles").glob("*.yaml")]
    sources += [path for name in names for path in (components / name).glob("*.yaml")]
    return {
        **{f"permissions/{name}.yaml": permissions / f"{name}.yaml" for name in PERMISSIONS},
        **{
            str(path.relative_to(ROOT)).removeprefix("daemonset/"): path
            for path in sources
            if path.stem != "kustomization"
        },
    }


def main() -> int:
    """Writes or checks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a file has drifted")
    check = parser.parse_args().check
    texts = render_files()
    drifted = {path for path, text in texts.items() if not path.exists() or path.read_text() != text}
    drifted |= {path for path in (CHART / "files").rglob("*") if path.is_file()} - set(texts)
    for path in sorted(drifted):
        if check:
            shown = path.relative_to(ROOT)
            sys.stderr.write(f"{shown} is not what daemonset/chart/generate.py writes; run `make catalogue`\n")
        elif path in texts:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(texts[path])
        else:
            path.unlink()
    return 1 if check and drifted else 0


if __name__ == "__main__":
    sys.exit(main())
