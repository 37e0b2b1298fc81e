"""How much memory and time the catalog takes, beside a plain dict. `python -m bench.catalog`."""
