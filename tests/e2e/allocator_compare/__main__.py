"""`python -m e2e.allocator_compare --worlds 2000 --seed 7`: compares the two allocators on generated worlds.

Run it with the folder `tests` on the path. It ends with status 1 if any world tells them apart.
"""

from __future__ import annotations

import argparse
import sys
import time

from e2e.allocator_compare.compare import differences, outcome, shares
from e2e.allocator_compare.genuine import build, judge_all
from e2e.allocator_compare.judge import judge
from e2e.allocator_compare.worlds import make_world


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.allocator_compare", description=__doc__)
    parser.add_argument("--worlds", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--show", type=int, default=5, help="how many differences to print")
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.worlds} worlds")
    worlds = [make_world(options.seed, index) for index in range(options.worlds)]
    theirs = judge_all(build(), worlds)
    ours = [judge(world) for world in worlds]
    for name, part in shares((outcome(verdict) for verdict in theirs), len(worlds)).items():
        print(f"  {name:32} {part:6.1%}")
    for name, part in shares((feature for world in worlds for feature in world["features"]), len(worlds)).items():
        print(f"  {name:32} {part:6.1%}")
    found = differences(worlds, ours, theirs)
    for text in found[: options.show]:
        print(text)
    print(f"{len(worlds) - len(found)} agree, {len(found)} differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
