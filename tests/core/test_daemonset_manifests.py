"""What daemonset/ says of images, privilege and policy, by the files themselves; `make e2e-daemonset` applies them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tesela import __version__
from tesela.core.shape import DEFAULT_POLICY, ON_DEMAND
from tesela.edge.documents.policy import read_policy

DAEMONSET = Path(__file__).parents[2] / "daemonset"
BASE, OVERLAYS = DAEMONSET / "base", DAEMONSET / "overlays"
FILES = sorted(path for folder in (BASE, OVERLAYS, DAEMONSET / "components") for path in folder.rglob("*.yaml"))
WORKLOADS = {"DaemonSet", "Deployment", "Job"}


def _load(path: Path) -> list[dict]:
    return [one for one in yaml.safe_load_all(path.read_text()) if isinstance(one, dict)]


def _list_pods() -> dict[str, dict]:
    """Pod templates, whole or a patch of one, by file and name."""
    return {
        f"{path.relative_to(DAEMONSET)} {one['metadata']['name']}": one["spec"]["template"]["spec"]
        for path in FILES
        for one in _load(path)
        if one.get("kind") in WORKLOADS
    }


PODS = _list_pods()
CONTAINERS = {name: container for name, pod in PODS.items() for container in pod["containers"]}
WHOLE = {name: one for name, one in CONTAINERS.items() if "image" in one}


def test_every_image_is_this_release():
    assert {one["image"] for one in WHOLE.values()} == {f"tesela:{__version__}"}


def test_real_gpus_alone_ask_for_privilege():
    privileged = [name for name, one in CONTAINERS.items() if one.get("securityContext", {}).get("privileged")]

    assert privileged == ["overlays/production/node-plugin.yaml tesela-node-plugin"]


@pytest.mark.parametrize("name", WHOLE)
def test_every_container_is_held_to_the_least(name):
    security, resources = WHOLE[name]["securityContext"], WHOLE[name]["resources"]

    held = {key: security.get(key) for key in ("allowPrivilegeEscalation", "readOnlyRootFilesystem")}
    assert (held, security["capabilities"]["drop"], "memory" in resources["limits"]) == (
        {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True},
        ["ALL"],
        True,
    )


def test_the_shipped_policy_is_what_the_driver_does_without_one():
    shipped = read_policy(BASE / "node-plugin" / "policy.yaml")

    assert (shipped.rules, shipped.health) == ((ON_DEMAND,), DEFAULT_POLICY.health)


@pytest.mark.parametrize("overlay", ["production", "simulated"])
def test_where_nvml_is_reaches_also_verbs_that_kubectl_exec_starts(overlay):
    driver = CONTAINERS[f"overlays/{overlay}/node-plugin.yaml tesela-node-plugin"]
    only_the_driver_sees = {arg for arg in driver["args"] if arg.startswith(("--nvml=", "--driver-root-mount="))}

    assert ("TESELA_DRIVER_ROOT_MOUNT" in {one["name"] for one in driver["env"]}, only_the_driver_sees) == (True, set())
