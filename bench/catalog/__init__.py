"""How much memory and time the catalog takes, beside a plain dict. `python -m bench.catalog`.

data.py makes a snapshot as a namespace would hold it, cases.py measures what becomes of it, each
case in a process of its own; nothing here touches a shared file system.
"""
