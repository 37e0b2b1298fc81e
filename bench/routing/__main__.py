"""`python -m bench.routing`: simulates all cells, prints tables and claims, writes page and plots.

Results are kept in a JSON file after each cell and taken from there if the run is repeated with
`--resume`. Exit status: 0 all claims met, 1 one is not.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, astuple
from pathlib import Path

from bench.routing.cells import Cell, cells, run
from bench.routing.choosing import choosing
from bench.routing.claims import claims
from bench.routing.report import Figures, case, claims_table, means, plots, tables

Job = tuple[Cell, int, Path | None]


def figures(job: Job) -> tuple[Cell, int, Figures]:
    """One simulation, condensed."""
    cell, seed, path = job
    outcome = run(cell, seed, path)
    view = outcome.view
    return (
        cell,
        seed,
        Figures(
            outcome.mean,
            outcome.percentile(0.5),
            outcome.percentile(0.99),
            outcome.local_hit,
            outcome.shared_hit,
            outcome.utilisation,
            outcome.busiest,
            view.regret_seconds / max(1, view.regrets) if view else 0.0,
        ),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.routing", description=__doc__)
    parser.add_argument("--trace", type=Path, help="a trace file; without: generated ones only")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--group", action="append", help="only these groups of cells")
    parser.add_argument("--out", type=Path, help="a directory for plots and tables.md")
    parser.add_argument("--resume", type=Path, help="a file that keeps results between runs")
    chosen = parser.parse_args(arguments)

    wanted = [
        each
        for each in cells(chosen.trace is not None)
        if not chosen.group or each.group in chosen.group
    ]
    kept = _kept(chosen.resume)
    jobs = [
        (cell, seed, chosen.trace)
        for cell in wanted
        for seed in range(1, chosen.seeds + 1)
        if _key(cell, seed) not in kept
    ]
    began_at = time.monotonic()
    with multiprocessing.Pool(chosen.jobs) as pool:
        for number, (cell, seed, found) in enumerate(pool.imap(figures, jobs), 1):
            kept[_key(cell, seed)] = list(astuple(found))
            if chosen.resume:
                chosen.resume.write_text(json.dumps(kept))
            print(
                f"{number}/{len(jobs)} {case(cell)}, {cell.policy}, seed {seed}:"
                f" {found.mean_s:.3f} s",
                file=sys.stderr,
            )
    results = {
        cell: [Figures(*kept[_key(cell, seed)]) for seed in range(1, chosen.seeds + 1)]
        for cell in wanted
    }
    checked = claims(
        means(results),
        {cell: max(each.busiest for each in seeds) for cell, seeds in results.items()},
    )
    taken = choosing(clock=time.thread_time)
    page = (
        f"{claims_table(checked)}\nOne choice, 32 replicas, 1,000 blocks, CPU time: median"
        f" {taken[len(taken) // 2] * 1e6:.0f} us, p99 {taken[int(0.99 * len(taken))] * 1e6:.0f} us."
        f"\n{len(jobs)} simulations in {time.monotonic() - began_at:.0f} s.\n\n{tables(results)}"
    )
    print(page)
    if chosen.out:
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / "tables.md").write_text(page)
        for name, text in plots(results).items():
            (chosen.out / name).write_text(text)
    return 0 if all(each.is_met for each in checked) else 1


def _key(cell: Cell, seed: int) -> str:
    return json.dumps([*asdict(cell).values(), seed])


def _kept(path: Path | None) -> dict[str, list[float]]:
    if path is None or not path.exists():
        return {}
    loaded = json.loads(path.read_text())
    return {str(key): [float(each) for each in value] for key, value in loaded.items()}


if __name__ == "__main__":
    sys.exit(main())
