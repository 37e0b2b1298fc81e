"""Staging: copying the most valuable packs of one namespace into another, within a time.

    recency.py    how long ago each pack was last wanted, from journals replayed. Pure
    choosing.py   which packs, in which order. Pure
    copying.py    chunks loaded from one store and put into another, many packs at a time
    beside.py     realm descriptors and touches, which go with the packs
    moving.py     `stage`: both stores opened, the copying bounded, what was done
    over_ray.py   the same, dealt to the nodes of a Ray cluster

A copy is a load and a put of the store itself: every byte passes its checksum on the way (I2), what
the target holds already is left out, and each pack is published as soon as it is whole. So a run
that is stopped, by its deadline or by a kill, has done a part of the work, and the next one does
the rest. Nothing is taken away from the source.
"""

from sharedfs_backend.stage.moving import Staged, Stop, stage

__all__ = ["Staged", "Stop", "stage"]
