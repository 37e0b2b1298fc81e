"""The routing benchmark: a trace replayed on simulated replicas by the product's own decisions.

`python -m bench.routing --help`. Only `router.fleet` decides; what is simulated is what it cannot
see: engines, their caches, and a shared tier.
"""
