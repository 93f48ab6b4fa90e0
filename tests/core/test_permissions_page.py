"""docs/permissions.md names every right and every host path that is shipped, with code that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "permissions.md").read_text()
DAEMONSET = ROOT / "daemonset"
ACCOUNT = "tesela-node-plugin"
CODE = re.compile(r"`(?P<file>[\w/]+\.py)`: `(?P<text>[^`]+)`")


def _list_rows(columns: int) -> list[list[str]]:
    """Rows of every table that has so many columns, heads and lines left out."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("|")]
    return [row for row in rows if len(row) == columns and row[0].startswith("`")]


def _load(path: str) -> list[dict]:
    return [one for one in yaml.safe_load_all((DAEMONSET / path).read_text()) if one]


RIGHTS = _list_rows(4)
PATHS = _list_rows(5)
RULES = [
    (resource, verb)
    for one in _load("base/permissions/node-plugin-rbac.yaml")
    if one["kind"] in {"ClusterRole", "Role"}
    for rule in one["rules"]
    for resource in rule["resources"]
    for verb in rule["verbs"]
]
MANIFESTS = ("base/node-plugin/daemonset.yaml", "overlays/production/node-plugin.yaml",
             "overlays/simulated/node-plugin.yaml")  # fmt: skip


def _list_mounts(path: str) -> dict[str, tuple[str, str]]:
    """Volumes of the host by name: path there, and in the container with what is said of it."""
    (daemonset,) = _load(path)
    pod = daemonset["spec"]["template"]["spec"]
    seen = {
        mount["name"]: mount["mountPath"] + (", read-only" if mount.get("readOnly") else "")
        for container in pod["containers"]
        for mount in container["volumeMounts"]
    }
    return {one["name"]: (one["hostPath"]["path"], seen[one["name"]]) for one in pod["volumes"] if "hostPath" in one}


def test_every_right_stands_on_the_page_and_no_other():
    assert sorted((row[0].strip("`"), row[1].strip("`")) for row in RIGHTS) == sorted(RULES)


@pytest.mark.parametrize("component", ["admission-webhook", "uninstall-check"])
def test_an_optional_part_may_list_what_the_page_says_and_nothing_else(component):
    role = next(one for one in _load(f"components/{component}/permissions.yaml") if one["kind"] == "ClusterRole")
    row = next(row for row in _list_rows(3) if row[0] == f"`{role['metadata']['name']}`")
    rights = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}

    assert rights == {(resource, "list") for resource in re.findall(r"`(\w+)`", row[1])}


def test_every_host_path_stands_on_the_page_and_no_other():
    shipped = {name: mount for path in MANIFESTS for name, mount in _list_mounts(path).items()}
    named = {
        row[0].strip("`"): (row[1].strip("`"), row[2].replace("`", "").replace("same", row[1].strip("`")))
        for row in PATHS
    }  # fmt: skip

    assert named == shipped


@pytest.mark.parametrize("row", [*RIGHTS, *PATHS], ids=lambda row: f"{row[0]} {row[1]}".replace("`", ""))
def test_the_code_that_needs_it_is_there(row):
    found = [CODE.search(cell) for cell in row]
    (code,) = [one for one in found if one]

    assert code["text"] in (ROOT / "driver" / "tesela" / code["file"]).read_text()


@pytest.mark.parametrize("path", MANIFESTS)
def test_each_host_path_is_explained_in_its_manifest_by_code_that_is_there(path):
    text = (DAEMONSET / path).read_text()
    for name in _list_mounts(path):
        block = re.search(rf"((?:^ *#.*\n)+) *- name: {re.escape(name)}\n *hostPath", text, re.MULTILINE)
        assert block, f"{path}: volume {name} has no comment"
        files = re.findall(r"([\w/]+\.py)", block[1])
        assert name == "sim" or files, f"{path}: volume {name} names no file"
        assert all(list((ROOT / "driver" / "tesela").rglob(file)) for file in files), files
