"""The life of one claim as the kubelet drives it: prepare until it is served, use it, unprepare until it is given back.

What the kubelet was told is compared with the GPUs and the files: a difference that no fault explains is a loss.
"""

from __future__ import annotations

import json
import random
import time
from typing import Final

from polling import until
from tesela.core.errors import StateError, TryAgain
from tesela.core.model import ClaimRef, Refusal
from tesela.core.record import ClaimRecord, ClaimState
from tesela.edge.kube.port import RESOURCE_CLAIMS
from tesela.edge.store.cdi_files import CdiFiles
from tesela.edge.store.records import RecordStore

from chaos.book import Book, Offer
from chaos.faults import Faults
from chaos.figures import Figures
from chaos.node import DRIVER, NODE_NAME, ChaosNode

PATIENCE_S: Final = 120.0
"""A claim that is not served or ended by then never is: every fault is over within seconds."""
REPAIR_S: Final = 20.0
"""Files come back within two seconds of a look, and a driver that was killed needs some to come up."""
USE_S: Final = 0.3
CALL_TIMEOUT_S: Final = 20.0


class Claims:
    """Lives claims on `node`; `fault_rate` is how often an operation of the kubelet meets a new fault."""

    def __init__(self, node: ChaosNode, book: Book, faults: Faults, figures: Figures, fault_rate: float) -> None:
        self._node, self._book, self._faults, self._figures = node, book, faults, figures
        self._fault_rate = fault_rate

    def live(self, name: str, choice: random.Random) -> None:
        """One claim from its allocation to its end."""
        with self._book.hold(choice) as offer:
            ref = self._allocate(name, offer)
            self._figures.tell(f"claim {ref} wants {offer.device}")
            epoch = self._faults.epoch_of(offer.gpu_uuid)
            self._disturb(choice)
            if self._insist("prepare", ref):
                self._check(ref, offer, epoch)
                until(lambda: False, choice.uniform(0, USE_S))
                self._check(ref, offer, epoch)
            self._disturb(choice)
            self._insist("unprepare", ref)
            self._node.cluster.delete(RESOURCE_CLAIMS, ref.name, ref.namespace)
            self._figures.count("claims")

    def _disturb(self, choice: random.Random) -> None:
        if choice.random() < self._fault_rate:
            self._faults.inject(choice)

    def _allocate(self, name: str, offer: Offer) -> ClaimRef:
        request = {"name": "r0", "exactly": {"deviceClassName": DRIVER}}
        obj = self._node.cluster.create(
            RESOURCE_CLAIMS,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"devices": {"requests": [request]}},
            },
        )
        result = {"request": "r0", "driver": DRIVER, "pool": NODE_NAME, "device": offer.device}
        obj["status"] = {"allocation": {"devices": {"results": [result]}}}
        self._node.cluster.replace_status(RESOURCE_CLAIMS, obj)
        return ClaimRef(namespace="default", name=name, uid=obj["metadata"]["uid"])

    def _insist(self, verb: str, ref: ClaimRef) -> bool:
        """Asks until the driver says yes, as the kubelet does; a claim that it never says yes to is lost."""
        end_s, sentence = time.monotonic() + PATIENCE_S, ""
        pause_s = 0.02
        while time.monotonic() < end_s:
            if self._figures.failed:  # the run ends with what was lost first
                return False
            self._figures.count(f"{verb}s")
            sentence = self._ask(verb, ref)
            if not sentence:
                return True
            self._figures.refuse(verb, sentence)
            until(lambda: False, pause_s, every_s=pause_s)
            pause_s = min(2 * pause_s, 1.0)
        self._figures.lose(f"claim {ref}: no {verb} for {PATIENCE_S:g} s: {sentence}")
        return False

    def _ask(self, verb: str, ref: ClaimRef) -> str:
        """The driver's sentence; empty for success."""
        try:
            client = self._node.driver.client
            if verb == "prepare":
                answer = client.prepare([ref], CALL_TIMEOUT_S)[ref.uid]
                return answer.message if isinstance(answer, Refusal) else ""
            return client.unprepare([ref], CALL_TIMEOUT_S)[ref.uid] or ""
        except (TryAgain, ValueError) as error:  # ValueError: the connection was closed with its driver
            return f"no answer: {error}"

    def _check(self, ref: ClaimRef, offer: Offer, epoch: int) -> None:
        """What was promised is there, or comes back in time; unless something took it that no driver can undo."""

        def excused() -> bool:
            return self._faults.epoch_of(offer.gpu_uuid) != epoch or ref.uid in self._faults.damaged

        problems: list[str] = []

        def holds() -> bool:
            problems[:] = self._list_problems(ref)
            return not problems or excused()

        if not until(holds, REPAIR_S, every_s=0.1):
            self._figures.lose(f"claim {ref} on {offer.device}: {', '.join(problems)}")

    def _list_problems(self, ref: ClaimRef) -> list[str]:
        try:
            record = RecordStore(self._node.state_dir).read(ref.uid)
            document = CdiFiles(self._node.cdi_dir).read(ref.uid)
        except StateError as error:
            return [str(error)]
        if record is None or record.state is not ClaimState.PREPARED:
            return [f"its record is {record.state if record else 'gone'}"]
        if document is None:
            return ["its CDI file is gone"]
        text = json.dumps(document)
        wanted = [uuid for uuid in _list_uuids(record) if uuid not in text]
        dead = [uuid for uuid in _list_partitions(record) if uuid not in self._list_live()]
        return [*(f"its CDI file names no {uuid}" for uuid in wanted), *(f"{uuid} does not live" for uuid in dead)]

    def _list_live(self) -> set[str]:
        return {
            compute.mig_uuid
            for gpu in self._node.machine.snapshot().gpus
            for instance in gpu.instances
            for compute in instance.compute_instances
        }


def _list_partitions(record: ClaimRecord) -> list[str]:
    return [partition.mig_uuid or "" for device in record.devices for partition in device.partitions]


def _list_uuids(record: ClaimRecord) -> list[str]:
    return _list_partitions(record) or [device.gpu_uuid for device in record.devices]
