"""`python -m bench.routing`: simulates all cells, prints tables and claims, writes page and plots.

Results are kept in a JSON file after each cell and taken from there if the run is repeated with
`--resume`, by the same commit and of the same trace. Exit status: 0 all claims met, 1 one is not, 2
nothing could be simulated as asked.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple
from pathlib import Path

from bench.core.machine import commit, digest
from bench.routing.cells import Cell, cells, run
from bench.routing.choosing import choosing
from bench.routing.claims import claims
from bench.routing.report import Figures, case, claims_table, means, plots, tables
from bench.routing.traces import read

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

    everything = list(cells(chosen.trace is not None))
    groups = list(dict.fromkeys(each.group for each in everything))
    if unknown := sorted(set(chosen.group or ()) - set(groups)):
        more = "" if chosen.trace else "; more with --trace"
        parser.error(f"--group {unknown[0]}: choose from {', '.join(groups)}{more}")
    if chosen.seeds < 1 or chosen.jobs < 1:
        parser.error("--seeds and --jobs are at least 1")
    try:
        if chosen.trace and not read(chosen.trace):
            raise ValueError(f"{chosen.trace}: no requests in it")
        made_of = _made_of(chosen.trace)
        kept = _kept(chosen.resume, made_of)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    wanted = [each for each in everything if not chosen.group or each.group in chosen.group]
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
                chosen.resume.write_text(json.dumps({"made of": made_of, "results": kept}))
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


def _made_of(trace: Path | None) -> dict[str, str]:
    """What results depend on beside their cell and seed."""
    return {"commit": commit(), "trace": digest(trace) if trace else ""}


def _kept(path: Path | None, made_of: Mapping[str, str]) -> dict[str, list[float]]:
    """Earlier results. ValueError where they are of another commit or trace, or none at all."""
    if path is None or not path.exists():
        return {}
    try:
        loaded = json.loads(path.read_text())
        earlier = {name: loaded["made of"][name] for name in made_of}
        results = {str(key): [float(each) for each in v] for key, v in loaded["results"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"--resume {path}: no results of this command ({error!r})") from None
    for name, value in made_of.items():
        if earlier[name] != value:
            raise ValueError(f"--resume {path}: of another {name}: {earlier[name] or 'none'}")
    return results


if __name__ == "__main__":
    sys.exit(main())
