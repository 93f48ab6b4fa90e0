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
    parser.add_argument("--worlds", type=int, default=2000, help="how many to compare; those given up come on top")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--show", type=int, default=5, help="how many differences to print")
    options = parser.parse_args()
    say = sys.stdout.write
    say(f"seed {options.seed}\n")
    program = build()
    names: list[str] = []
    differences: list[str] = []
    made = compared = 0
    while compared < options.worlds:
        worlds = [make_world(options.seed, made + index) for index in range(options.worlds - compared)]
        theirs = judge_all(program, worlds)
        result = compare(worlds, [judge(world) for world in worlds], theirs)
        names += [*map(outcome, theirs), *(feature for world in worlds for feature in world["features"])]
        differences += result.differences
        made += len(worlds)
        compared += len(worlds) - result.left_out
    for name, part in shares(names, made).items():
        say(f"  {name:32} {part:6.1%}\n")
    for text in differences[: options.show]:
        say(text + "\n")
    say(f"{compared - len(differences)} agree, {len(differences)} differ, {made - compared} left out (given up)\n")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
