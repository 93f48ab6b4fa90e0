"""`python -m e2e.allocator_compare --worlds 2000 --seed 7`: compares the two allocators on generated worlds.

Run it with the folder `tests` on the path. It ends with status 1 if any world tells them apart.
"""

from __future__ import annotations

import argparse
import sys
import time

from e2e.allocator_compare.compare import compare, outcome, shares
from e2e.allocator_compare.generated import make_world
from e2e.allocator_compare.genuine import build, judge_all
from e2e.allocator_compare.judge import judge


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.allocator_compare", description=__doc__)
    parser.add_argument("--worlds", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--show", type=int, default=5, help="how many differences to print")
    options = parser.parse_args()
    say = sys.stdout.write
    say(f"seed {options.seed}, {options.worlds} worlds\n")
    worlds = [make_world(options.seed, index) for index in range(options.worlds)]
    theirs = judge_all(build(), worlds)
    ours = [judge(world) for world in worlds]
    names = [*map(outcome, theirs), *(feature for world in worlds for feature in world["features"])]
    for name, part in shares(names, len(worlds)).items():
        say(f"  {name:32} {part:6.1%}\n")
    result = compare(worlds, ours, theirs)
    for text in result.differences[: options.show]:
        say(text + "\n")
    say(f"{result.agree} agree, {len(result.differences)} differ, {result.left_out} left out (search given up)\n")
    return 1 if result.differences else 0


if __name__ == "__main__":
    sys.exit(main())
