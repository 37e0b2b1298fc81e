"""The serde tag of the realm: which of LMCache's serializers stands before this adapter (I8).

Two servers that serialize differently must not share: fp8 in its two variants has equal sizes and
other meanings. LMCache wraps an adapter without telling it. It does forward `set_backend_identity`
through its wrapper, once, before any traffic; whoever calls us then is on the stack. The setting
`serde` overrides what is found, and is asked for where something is found that cannot be described.

Of the serializer only its class and its plain numbers, flags and dtypes are described: a key or a
passphrase never gets into a realm's file.
"""

from __future__ import annotations

import sys
from typing import Any

_FRAMES_MAX = 6
"""A wrapper calls us directly, or through the fault injector."""

UNDESCRIBED = "undescribed"


def serde_on_the_stack() -> str:
    """Tag of the serde wrapper among the callers; "" where there is none."""
    from lmcache.v1.distributed.l2_adapters.serde_wrapper import SerdeL2AdapterWrapper

    frame = sys._getframe(1)
    for _ in range(_FRAMES_MAX):
        owner = frame.f_locals.get("self")
        if isinstance(owner, SerdeL2AdapterWrapper):
            return describe(getattr(owner, "_serde", None))
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""


def describe(processor: Any) -> str:
    """A stable name for a serde processor: `Class(attribute=value,...)`, nested ones joined."""
    serializer = getattr(processor, "_serializer", None)
    if serializer is None:
        return UNDESCRIBED
    return _describe(serializer, depth=3)


def _describe(thing: Any, depth: int) -> str:
    attributes = []
    for name, value in sorted(vars(thing).items()) if hasattr(thing, "__dict__") else ():
        text = _plain(value, depth)
        if text is not None:
            attributes.append(f"{name.lstrip('_')}={text}")
    return f"{type(thing).__name__}({','.join(attributes)})"


def _plain(value: Any, depth: int) -> str | None:
    """None for what is left out: anything that might be a secret, a handle or a cache."""
    if isinstance(value, bool | int | float):
        return repr(value)
    if type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    if depth > 0 and isinstance(value, list | tuple) and len(value) <= 16:
        parts = [_plain(item, depth - 1) for item in value]
        return None if None in parts else f"[{','.join(str(part) for part in parts)}]"
    if depth > 0 and type(value).__module__.startswith("lmcache."):
        return _describe(value, depth - 1)
    return None
