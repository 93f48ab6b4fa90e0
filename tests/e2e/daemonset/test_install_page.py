"""The five minutes of docs/install.md, typed as they stand there; the image is on the node already."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.harness import images
from e2e.harness.cluster import NODE, Cluster
from e2e.harness.processes import wait_until

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "install.md"
TITLE = "## In five minutes, on the simulator\n"


def read_blocks() -> list[str]:
    """The commands of each step, of a node and an image that are here."""
    section = PAGE.read_text().split(TITLE)[1].split("\n## ")[0]
    blocks = re.findall(r"^   ```\n(.*?)^   ```$", section, re.MULTILINE | re.DOTALL)
    lines = ["\n".join(line.removeprefix("   ") for line in block.splitlines()) for block in blocks]
    return [text.replace("NODE", NODE).replace("image: busybox", f"image: {images.BUSYBOX}") for text in lines]


IMPORT, APPLY, USE, BREAK, REMOVE = read_blocks()


class Person:
    """Who types commands in the checkout, as administrator."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._environment = {
            "KUBECONFIG": str(cluster.certificates.path("admin.kubeconfig")),
            "PATH": f"{cluster.binaries}:{os.environ.get('PATH', '')}",
        }

    def type(self, commands: str) -> str:
        """What they print, until the first that fails."""
        settings = [f"{name}={value}" for name, value in self._environment.items()]
        script = f"set -e; cd {shlex.quote(str(ROOT))}\n{commands}"
        return self._cluster.run(["env", *settings, "sh", "-c", script], timeout_s=150)


@pytest.fixture(scope="module")
def person(cluster: Cluster) -> Iterator[Person]:
    person = Person(cluster)
    person.type(APPLY)
    yield person
    person.type(REMOVE)


def test_the_first_step_gives_the_node_the_image() -> None:
    assert IMPORT == "ctr -n k8s.io images import tesela-0.1.0-amd64.tar"


def test_a_pod_gets_a_partition_and_says_so(person: Person) -> None:
    person.type(USE)
    (look,) = [line for line in USE.splitlines() if line.startswith("kubectl logs ")]

    wait_until("the pod has listed its devices", lambda: "/dev/nvidiactl" in person.type(look), timeout_s=30)
    assert "TESELA_GPU_GPU_PROFILES=1g.5gb" in person.type(look)


def test_what_is_broken_shows(person: Person) -> None:
    person.type(BREAK)
    look, events = BREAK.splitlines()[-2:]

    wait_until("the GPU's fault is listed", lambda: "xid-79" in person.type(look), timeout_s=30)
    wait_until("an Event tells of it", lambda: "gpu-2" in person.type(events), timeout_s=30)
