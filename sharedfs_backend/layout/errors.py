"""The only exceptions that bytes or names can cause.

    FormatError
    +-- Truncated      the structure is longer than the bytes at hand
    +-- BadMagic       these bytes are something else
    +-- BadChecksum    damaged, forged, or sealed with another secret
    +-- NewerVersion   intact, written by a later major version: leave it alone
    +-- BadValue       intact, but it breaks a rule of the format

Whatever bytes a decoder of this package is given, it returns a value or raises one of these. A
wrong argument to an encoder is our own mistake and raises ValueError. Nothing here knows what a
caller does about an error; the rules are in FORMAT.md. Serves I2 and I6: damage is always typed.
"""

from __future__ import annotations


class FormatError(Exception):
    """Bytes or a name that cannot be accepted. Catch this one at the border."""


class Truncated(FormatError):
    """More bytes are needed than are there."""


class BadMagic(FormatError):
    """Not the expected kind of structure."""


class BadChecksum(FormatError):
    """Some byte is not what its writer wrote, or the writer had another secret."""


class NewerVersion(FormatError):
    """Intact, but of a later major version. Neither read, nor repaired, nor removed."""


class BadValue(FormatError):
    """A field that no writer of this version produces."""
