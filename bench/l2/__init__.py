"""How fast bytes go to and from a local directory, beside LMCache's own file adapters.

Everything here runs against the page cache and therefore measures processor cost, not a disk.
"""
