"""The HTML page: one file, pictures inside it, no script, nothing loaded from elsewhere.

Sections in, text out. It decides how things look and nothing else: what is measured, met or missing
comes from the sections, escaped. Light and dark follow the reader's system.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from bench.core.case import Outcome, Table
from bench.report.sections import Drawn, Section, measured_text

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 3rem; border-top: 1px solid #8886;
padding-top: 1rem; } h3 { font-size: 1rem; margin: 1.6rem 0 0.2rem; }
table { border-collapse: collapse; margin: 0.6rem 0; font-size: 0.9rem; }
th, td { border-bottom: 1px solid #8884; padding: 0.25rem 0.7rem 0.25rem 0; text-align: left;
vertical-align: top; } td { font-variant-numeric: tabular-nums; }
img { max-width: 100%; background: #fff; border-radius: 4px; }
pre { font-size: 0.8rem; overflow-x: auto; background: #8881; padding: 0.7rem; border-radius: 4px; }
.origin, .gap { color: #777; font-size: 0.85rem; }
.met { color: #2b8a3e; font-weight: 600; } .missed { color: #c92a2a; font-weight: 600; }
.within { color: #b08900; font-weight: 600; } .none { color: #777; font-weight: 600; }
.warning { border-left: 3px solid #e8a200; padding-left: 0.7rem; margin: 0.4rem 0; }
"""
_CLASSES = {
    Outcome.MET: "met",
    Outcome.WITHIN: "within",
    Outcome.MISSED: "missed",
    Outcome.NOT_MEASURED: "none",
}


def page(title: str, sections: Sequence[Section], absent: Sequence[str] = ()) -> str:
    """The whole document; `absent` are cases that were not run."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            "<p>Every number here comes from a row of this run's results or is computed from rows. "
            "Intervals are 95 % bootstraps over rounds in which the contenders took turns. "
            "A target counts as missed only if the whole interval falls short of it.</p>",
            _targets(sections),
            *([f'<p class="gap">Not run: {escape(", ".join(absent))}.</p>'] if absent else []),
            *(_section(one) for one in sections),
            "</body></html>",
        ]
    )


def _anchor(name: str) -> str:
    return escape(name.replace(", ", "-"))


def _targets(sections: Sequence[Section]) -> str:
    lines = [
        f'<tr><td><a href="#{_anchor(one.name)}">{escape(one.name)}</a></td>'
        f"<td>{escape(verdict.name)}</td><td>{escape(verdict.target)}</td>"
        f"<td>{escape(measured_text(verdict))}</td>"
        f'<td class="{_CLASSES[verdict.outcome]}">{escape(verdict.outcome.value)}</td>'
        f"<td>{escape(verdict.note)}</td></tr>"
        for one in sections
        for verdict in one.verdicts
    ]
    if not lines:
        return "<p>No case of this run has a target.</p>"
    head = "".join(
        f"<th>{name}</th>" for name in ("case", "what", "target", "measured", "", "note")
    )
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def _section(one: Section) -> str:
    parts = [f'<h2 id="{_anchor(one.name)}">{escape(one.name)}: {escape(one.question)}</h2>']
    parts.append(f'<p class="origin">{escape(origin_line(one))}</p>')
    parts += [f'<p class="warning">{escape(text)}</p>' for text in one.origin.warnings]
    if one.trouble:
        parts.append(f'<p class="missed">{escape(one.trouble)}</p>')
    parts += [_figure(drawn) for drawn in one.figures]
    parts += [f'<p class="gap">Not measured: {escape(text)}</p>' for text in one.gaps]
    return "\n".join(parts)


def _figure(drawn: Drawn) -> str:
    figure = drawn.figure
    parts = [f"<h3>{escape(figure.title)}</h3>", f"<p>{escape(figure.sentence)}</p>"]
    if drawn.png is not None:
        data = base64.b64encode(drawn.png).decode("ascii")
        alt = escape(figure.title, quote=True)
        parts.append(f'<img alt="{alt}" src="data:image/png;base64,{data}">')
    if figure.table is not None:
        parts.append(_table(figure.table))
    if figure.text:
        parts.append(f"<pre>{escape(figure.text)}</pre>")
    return "\n".join(parts)


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.head)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>"
        for line in table.lines
    )
    return f"<table><tr>{head}</tr>{lines}</table>"


def origin_line(one: Section) -> str:
    """Command, machine, commit, date and load, in one line."""
    origin = one.origin
    ended = f" to {origin.ended}" if origin.ended else ""
    state = "" if origin.complete else ", not complete"
    return (
        f"{origin.command} ({origin.profile}, up to {origin.rounds} rounds, seed {origin.seed}); "
        f"{origin.machine}; {origin.directory}; commit {origin.commit}; {origin.versions}; "
        f"{origin.started}{ended}; load {origin.load_start:.1f} before, {origin.load_end:.1f} "
        f"after; {one.row_count} rows{state}"
    )
