"""Replays seeds, for maintainers: `python -m streamsx.simulation SEED[-SEED] [--trace N]`.

Prints one line per seed, and a summary at the end. Exits with 1 if an invariant was broken.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator

from streamsx.simulation.world import Result, play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m streamsx.simulation", description=__doc__)
    parser.add_argument("seeds", nargs="+", help="7, or 1-20")
    parser.add_argument(
        "--trace", type=int, default=0, metavar="N", help="the story's last N lines"
    )
    parser.add_argument("--digest", action="store_true", help="print nothing but that")
    options = parser.parse_args()
    results = []
    for seed in wanted(options.seeds):
        result = play(seed, story=options.trace, logs=bool(options.trace))
        results.append(result)
        print(result.digest if options.digest else line_of(result), flush=True)
        print(*result.story, sep="\n", end="\n" if result.story else "")
    if len(results) > 1:
        print(sum_of(results))
    return int(any(result.violation for result in results))


def wanted(texts: list[str]) -> Iterator[int]:
    for text in texts:
        first, _, last = text.partition("-")
        yield from range(int(first), int(last or first) + 1)


def line_of(result: Result) -> str:
    told = str(result.violation or f"holds, {result.surplus} words twice")
    return (
        f"seed {result.seed}: {result.virtual_s:.0f} s in {result.cpu_s:.2f} CPU-s, "
        f"{result.digest[:12]}: {told}"
    )


def sum_of(results: list[Result]) -> str:
    """Return a summary of failures, costs, excused invariants and faults."""
    failed = [result.seed for result in results if result.violation]
    virtual_s = sum(r.virtual_s for r in results)
    cpu_s = sum(r.cpu_s for r in results)
    excused = Counter[str]()
    met = Counter[str]()
    for result in results:
        excused.update(dict.fromkeys(result.excused, 1))
        met.update(result.met)
    lines = [
        f"{len(results)} seeds, {len(failed)} fail: {failed}",
        f"{cpu_s / len(results):.2f} CPU-s a seed, {cpu_s / virtual_s * 1000:.1f} ms a virtual s",
        f"seeds in which an invariant was excused: {dict(sorted(excused.items()))}",
        f"faults: {dict(sorted(met.items()))}",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
