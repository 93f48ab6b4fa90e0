"""`python -m chaos` with `tests` on the path: 200 claims come and go, again and again, while everything fails.

The driver is a process that is killed -9 now and then; GPUs, API and kubelet are simulated around it.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tesela.core.errors import TeselaError

from chaos.figures import Figures
from chaos.run import Plan, run


def main(argv: Sequence[str] | None = None) -> int:
    """0: nothing lost, nothing leaked. 1 otherwise, after the seed and what it was. 130: stopped by Ctrl-C."""
    options = _parse(argv)
    seed = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
    plan = Plan(seed=seed, claims=options.claims, fault_rate=options.fault_rate)
    until = f"{options.rounds} rounds" if options.rounds else f"{options.minutes:g} minutes"
    print(
        f"chaos: seed {seed}, {until} of {plan.claims} claims on {plan.gpus}, {plan.fault_rate:.0%} faults", flush=True
    )
    end_s = time.monotonic() + 60 * options.minutes

    def goes_on(number: int, figures: Figures) -> bool:
        print(f"round {number}: {figures.render()}", flush=True)
        return number < options.rounds if options.rounds else time.monotonic() < end_s

    try:
        figures = run(plan, goes_on)
    except TeselaError as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"chaos: stopped, CHAOS_SEED={seed}", file=sys.stderr)
        return 130
    print(figures.render_all(), flush=True)
    if options.refusals:
        for sentence, count in figures.refusals.most_common(options.refusals):
            print(f"{count:5} {sentence}")
    if figures.failed:
        options.log.write_text("\n".join(figures.log) + "\n")
        print(f"chaos: FAILED with CHAOS_SEED={seed}; what happened is in {options.log}", file=sys.stderr)
        return 1
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    environment = os.environ
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=float(environment.get("CHAOS_MINUTES", "3")), help="(env CHAOS_MINUTES; 3)"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=int(environment.get("CHAOS_ROUNDS", "0")),
        help="so many rounds instead, however long they take (env CHAOS_ROUNDS)",
    )
    seed = environment.get("CHAOS_SEED")
    parser.add_argument("--seed", type=int, default=int(seed) if seed else None, help="(env CHAOS_SEED; random)")
    parser.add_argument("--claims", type=int, default=200, help="claims in a round (%(default)s)")
    parser.add_argument("--fault-rate", type=float, default=0.02, help="per operation of the kubelet (%(default)s)")
    parser.add_argument("--refusals", type=int, default=0, metavar="N", help="show the N most frequent refusals")
    parser.add_argument("--log", type=Path, default=Path("chaos.log"), help="written where it fails (%(default)s)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
