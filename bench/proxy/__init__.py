"""A second way to be slow: a TCP proxy that delays, in front of a real network file system.

`python -m bench run crosscheck` asks whether the order of the contenders on the throttled mount
(bench/throttle) is the same on GlusterFS behind the proxy; `python -m bench.proxy serve` runs the
proxy alone, in front of anything that speaks TCP. dm_delay.sh does the like below a local file
system, on machines that have device mapper. Must not know: what travels through it.
"""
