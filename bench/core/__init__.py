"""What every benchmark case shares: how it is described, run, saved and judged.

A case (case.py) measures and records rows (results.py); statistics.py turns rows into medians,
intervals and slopes; runner.py keeps what was measured and goes on where it was interrupted.
Nothing here knows a particular question, and nothing of the product imports it.
"""
