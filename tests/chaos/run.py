"""Rounds of claims that come and go while everything fails; after each, with all faults over, nothing may be left."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from polling import until

from chaos.book import Book
from chaos.claims import Claims
from chaos.faults import Faults
from chaos.figures import Figures
from chaos.node import ChaosNode

WORKERS = 16
SETTLE_S = 30.0
"""A driver that was killed last comes up and recovers within that."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run does. The seed decides which claim wants what and meets which fault; threads decide the rest."""

    seed: int
    gpus: str = "h100-80gb*4,a100-40gb:mig*4"
    whole: frozenset[int] = frozenset(range(4))
    claims: int = 200
    fault_rate: float = 0.02


def run(plan: Plan, goes_on: Callable[[int, Figures], bool]) -> Figures:
    """Rounds, while `goes_on` after each says so and nothing was lost."""
    figures = Figures()
    node = ChaosNode(plan.gpus, figures.tell)
    try:
        node.start()
        faults = Faults(node, figures)
        claims = Claims(node, Book(node.read_roster(), plan.whole), faults, figures, plan.fault_rate)
        number = 0
        while True:
            _run_round(plan, number, node, claims, faults, figures)
            number += 1
            if figures.failed or not goes_on(number, figures):
                return figures
    finally:
        node.close()


def _run_round(plan: Plan, number: int, node: ChaosNode, claims: Claims, faults: Faults, figures: Figures) -> None:
    with ThreadPoolExecutor(WORKERS) as pool:
        names = [f"round-{number}-claim-{one}" for one in range(plan.claims)]
        list(pool.map(lambda name: claims.live(name, random.Random(f"{plan.seed} {name}")), names))
    faults.calm()
    if not until(lambda: not node.list_leftovers(), SETTLE_S, every_s=0.2):
        figures.leak(node.list_leftovers())
