"""Workloads: requests with arrival times and prefix identities, from stated distributions or files.

One module for each kind; `registry.WORKLOADS` names them all. A generator's result is a function of
its statistics and its seed. Prompts are chains of numbered blocks, as in published traces: equal
numbers at equal places mean equal prefixes.
"""
