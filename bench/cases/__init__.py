"""One module for each question. Each defines `CASE`; the registry finds it by that name.

A case measures, records every single repeat, and afterwards draws and judges from rows alone, so
that a report needs nothing but the saved results. What it could not measure it records as such.
"""
