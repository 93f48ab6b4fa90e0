"""The durable inventory: every GPU this node has ever shown, with the number its device names carry.

Slices are a function of this roster, health and fences alone (invariant 7), so a restart, a lost GPU or shifted minors
never rename a device. The roster is kept on disk by `edge/store`; here is only how one look at the machine changes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tesela.core.errors import StateError, TryAgain
from tesela.core.model import Gpu, Inventory
from tesela.core.record import ClaimRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownGpu:
    """A GPU seen at least once.

    `number` is N of `gpu-N`, bound at first sight. `gpu` is what was seen last. `generation` counts the times that all
    partitions of this GPU were lost together: boot, module reload, GPU gone and back, reset. `epoch` is the boot and
    module load that this number takes account of (`render_epoch`); empty means the roster's.
    """

    number: int
    gpu: Gpu
    present: bool
    generation: int
    epoch: str = ""

    @property
    def name(self) -> str:
        """The device name of the whole GPU."""
        return f"gpu-{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """All known GPUs by number, and what the machine showed when they were last seen.

    `module_token` changes whenever the nvidia kernel module is loaded anew within one boot.
    """

    boot_id: str
    module_token: str
    driver_version: str
    cuda_driver_version: int
    gpus: tuple[KnownGpu, ...]

    @property
    def epoch(self) -> str:
        """The boot and the load of the kernel module that the last look saw."""
        return render_epoch(self.boot_id, self.module_token)

    def epoch_of(self, known: KnownGpu) -> str:
        """The boot and module load that the generation of `known` takes account of."""
        return known.epoch or self.epoch

    def replace_gpu(self, known: KnownGpu) -> Roster:
        """The roster with this entry in place of the one of the same GPU."""
        return replace(self, gpus=tuple(known if one.gpu.uuid == known.gpu.uuid else one for one in self.gpus))

    def find(self, gpu_uuid: str) -> KnownGpu | None:
        """The known GPU with this UUID."""
        return next((known for known in self.gpus if known.gpu.uuid == gpu_uuid), None)

    def find_number(self, number: int) -> KnownGpu | None:
        """The known GPU whose devices carry this number."""
        return next((known for known in self.gpus if known.number == number), None)


def render_epoch(boot_id: str, module_token: str) -> str:
    """One text for a boot and a load of the kernel module: with another one, no partition of before lives."""
    return f"{boot_id}/{module_token}"


EMPTY_ROSTER = Roster(boot_id="", module_token="", driver_version="", cuda_driver_version=0, gpus=())


def plan_roster(
    known: Roster,
    seen: Inventory,
    *,
    boot_id: str,
    module_token: str,
    emptied: Iterable[str] = (),
    surviving: Iterable[str] = (),
) -> Roster:
    """The roster after one look at the machine.

    A new GPU gets its minor as number where that is free, else the lowest free one. The generation of a GPU rises when
    the boot id or the module token changed, when it was absent and is back, and for every UUID in `emptied`: GPUs whose
    recorded partitions were all found gone at once, as after a reset. It never rises for a GPU in `surviving`, where a
    recorded MIG UUID still lives: such a UUID is new with each creation, so nothing was lost. A GPU in
    `seen.silent` stays as it was, but for its generation: a boot or a reload spares nobody.
    """
    epoch = render_epoch(boot_id, module_token)
    emptied_uuids, surviving_uuids = frozenset(emptied), frozenset(surviving)
    seen_by_uuid = {gpu.uuid: gpu for gpu in seen.gpus}
    kept = [
        _plan_known(
            old,
            old.gpu if old.gpu.uuid in seen.silent and old.present else seen_by_uuid.get(old.gpu.uuid),
            epoch=epoch,
            raised=known.epoch_of(old) != epoch or not old.present or old.gpu.uuid in emptied_uuids,
            survives=old.gpu.uuid in surviving_uuids,
        )
        for old in known.gpus
    ]
    taken = {old.number for old in known.gpus}
    known_uuids = {old.gpu.uuid for old in known.gpus}
    for gpu in seen.gpus:
        if gpu.uuid in known_uuids:
            continue
        number = gpu.minor if gpu.minor not in taken else _lowest_free(taken)
        taken.add(number)
        kept.append(KnownGpu(number=number, gpu=gpu, present=True, generation=1, epoch=epoch))
    return Roster(
        boot_id=boot_id,
        module_token=module_token,
        driver_version=seen.driver_version or known.driver_version,
        cuda_driver_version=seen.cuda_driver_version or known.cuda_driver_version,
        gpus=tuple(sorted(kept, key=lambda gpu: gpu.number)),
    )


def _plan_known(old: KnownGpu, gpu: Gpu | None, *, epoch: str, raised: bool, survives: bool) -> KnownGpu:
    if gpu is None:
        return replace(old, present=False)
    generation = old.generation + (1 if raised and not survives else 0)
    return KnownGpu(number=old.number, gpu=gpu, present=True, generation=generation, epoch=epoch)


def _lowest_free(taken: set[int]) -> int:
    return next(number for number in range(len(taken) + 1) if number not in taken)


def plan_forget(roster: Roster, records: Iterable[ClaimRecord], gpu: str) -> Roster:
    """The roster without one GPU, named by its UUID or as `gpu-N`; its number is free again.

    StateError where the roster does not know it. TryAgain while it is present (it would come straight back) or while a
    claim holds one of its devices, which must stay published until then (invariant 6).
    """
    known = next((one for one in roster.gpus if gpu in {one.gpu.uuid, one.name}), None)
    if known is None:
        names = ", ".join(f"{one.name} ({one.gpu.uuid})" for one in roster.gpus) or "none"
        raise StateError(f"this node knows no GPU {gpu!r}; it knows: {names}")
    label = f"{known.name} ({known.gpu.uuid})"
    if known.present:
        raise TryAgain(f"{label} is present and would come straight back: to hide it, set it to ignore in the policy")
    holders = [str(record.claim) for record in records if known.gpu.uuid in record.gpu_uuids]
    if holders:
        raise TryAgain(f"{label} is held by claim {', '.join(holders)}: delete the pods that use it, then forget it")
    return replace(roster, gpus=tuple(one for one in roster.gpus if one is not known))
