"""Claims come and go at a driver in a process of its own, and all kinds of things go wrong: `make chaos` in small.

After each kind of fault, with all of them over: every claim was served and ended, and nothing is left.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from chaos.book import Book
from chaos.claims import Claims
from chaos.faults import Faults
from chaos.figures import Figures
from chaos.node import ChaosNode
from chaos.run import SETTLE_S, Plan, run
from polling import until

GPUS = "h100-80gb*2,a100-40gb:mig*2"
WHOLE = frozenset({0, 1})
CLAIMS = 8

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("chaos")]

KINDS = Faults(None, None).list_kinds()


class Churn:
    """A node with a driver, and what its claims met."""

    def __init__(self):
        self.figures = Figures()
        self.node = ChaosNode(GPUS, self.figures.tell)
        self.node.start()
        self.faults = Faults(self.node, self.figures)
        self._claims = Claims(self.node, Book(self.node.read_roster(), WHOLE), self.faults, self.figures, 0.0)

    def meet(self, kind):
        """The fault comes while claims are there; what was lost, and what is left once it is over."""
        self.figures.lost.clear()  # one kind's failure is not the next one's
        with ThreadPoolExecutor(CLAIMS) as pool:
            lives = [
                pool.submit(
                    self._claims.live, f"{number}-{kind.lower().replace(' ', '-')}", random.Random(f"{kind} {number}")
                )
                for number in range(CLAIMS)
            ]
            self.faults.inject(random.Random(kind), kind)
            for life in lives:
                life.result()
        self.faults.calm()
        # Asked once more a file that the driver is just writing would be there, which is no leftover.
        settled = until(lambda: not self.node.list_leftovers(), SETTLE_S, every_s=0.05)
        return self.figures.lost, [] if settled else self.node.list_leftovers()


@pytest.fixture(scope="module")
def churn():
    churn = Churn()
    yield churn
    churn.node.close()


@pytest.mark.parametrize("kind", KINDS)
def test_claims_outlive(churn, kind):
    assert churn.meet(kind) == ([], []), "\n".join(churn.figures.log)


def test_claims_outlive_everything_at_once():
    plan = Plan(seed=5, gpus=GPUS, whole=WHOLE, claims=60, fault_rate=0.1)

    figures = run(plan, lambda number, figures: False)

    assert (figures.lost, figures.leaked) == ([], []), "\n".join(figures.log)
