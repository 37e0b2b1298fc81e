"""The report: one self-contained HTML page, PNGs, and docs/RESULTS.md, all from saved rows.

sections.py asks each case what its rows say, plots.py draws, page.py and markdown.py write. Nothing
is measured here, and no number appears that is not in a row or computed from rows.
"""
