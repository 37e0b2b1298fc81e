"""Names of everything below a namespace's root; building one and recognising it stand together.

All paths are relative to the root, `/`-separated, under 200 bytes, of `[0-9a-z/._-]` only (with
one exception, `NAMESPACE.json`). Every `parse` accepts a path or its last component and raises
BadValue for anything that its builder would not produce, so a foreign file is never taken for ours.

Must not know what the files hold. Keeps I1: a pack's name carries its writer and a sequence number
and is therefore never used twice; I3: nothing is read from a name but what its writer put there.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import NamedTuple

from sharedfs_backend.layout.errors import BadValue
from sharedfs_backend.layout.seal import DIGEST_BYTES

NAMESPACE_PATH = "NAMESPACE.json"
PACKS, JOURNALS, SNAPSHOTS = "packs", "journals", "snapshots"
REALMS, SETTINGS, REPLICAS = "realms", "settings", "replicas"

PATH_BYTES_MAX = 199
"""Well below every file system's limit, whatever the root's own length."""

WRITER_BYTES = 8
CANARY_BYTES = 4
NAME_BYTES = DIGEST_BYTES + WRITER_BYTES + 8
"""A pack's name inside journals and snapshots: digest, writer, seq (little-endian)."""

COUNTER_MAX = (1 << 63) - 1
"""Of seq, generation and settings number: fits a signed 64-bit column everywhere."""

_NAME = struct.Struct("<16s8sQ")
_WRITER = "[0-9a-f]{16}"
_NUMBER = "0|[1-9][0-9]{0,18}"
_WRITER_ID = re.compile(_WRITER)
_PACK = re.compile(
    rf"(?:packs/([0-9a-f]{{2}})/)?([0-9a-f]{{32}})\.({_WRITER})\.(0|[1-9a-f][0-9a-f]{{0,15}})"
)
_JOURNAL = re.compile(rf"(?:journals/)?({_WRITER})")
_SNAPSHOT = re.compile(rf"(?:snapshots/)?({_NUMBER})\.({_WRITER})\.arrow")
_REALM = re.compile(r"(?:realms/)?([0-9a-f]{32})\.([0-9a-f]{8})\.json")
_SETTINGS = re.compile(rf"(?:settings/)?({_NUMBER})\.({_WRITER})\.json")
_REPLICA = re.compile(rf"(?:replicas/)?({_WRITER})\.json")


def _match(pattern: re.Pattern[str], text: str, kind: str) -> re.Match[str]:
    found = pattern.fullmatch(text) if len(text) <= PATH_BYTES_MAX else None
    if found is None:
        raise BadValue(f"not the name of a {kind}: {text[:PATH_BYTES_MAX]!r}")
    return found


def _counter(text: str, base: int = 10) -> int:
    value = int(text, base)
    if value > COUNTER_MAX:
        raise BadValue(f"the number {text} in a name exceeds {COUNTER_MAX}")
    return value


def writer_id(random: bytes) -> str:
    """A writer id from 8 unpredictable bytes."""
    if len(random) != WRITER_BYTES:
        raise ValueError(f"a writer id needs {WRITER_BYTES} random bytes, not {len(random)}")
    return random.hex()


def is_writer_id(text: str) -> bool:
    return _WRITER_ID.fullmatch(text) is not None


def writer_bytes(writer: str) -> bytes:
    """The 8 bytes of a writer id, for binary structures."""
    if not is_writer_id(writer):
        raise ValueError(f"not a writer id: {writer!r}")
    return bytes.fromhex(writer)


class PackName(NamedTuple):
    """An unrepeatable name. Its order (seq as a number) decides between equal versions.

    A named tuple and not a dataclass: made, hashed and compared by the hundred thousand.
    """

    digest: bytes
    writer: str
    seq: int

    @property
    def path(self) -> str:
        text = self.digest.hex()
        return f"{PACKS}/{text[:2]}/{text}.{self.writer}.{self.seq:x}"

    @classmethod
    def parse(cls, text: str) -> PackName:
        """From a path or a file name; BadValue when it is not a pack's."""
        shard, digest, writer, seq = _match(_PACK, text, "pack").groups()
        if shard is not None and shard != digest[:2]:
            raise BadValue(f"pack {digest} lies in the wrong directory {shard}")
        return cls(bytes.fromhex(digest), writer, _counter(seq, 16))

    def to_bytes(self) -> bytes:
        """The 32 bytes used in journals: digest, writer, seq as little-endian u64."""
        if len(self.digest) != DIGEST_BYTES or not 0 <= self.seq <= COUNTER_MAX:
            raise ValueError(f"not a possible pack name: {self!r}")
        return self.digest + writer_bytes(self.writer) + self.seq.to_bytes(8, "little")

    @classmethod
    def from_bytes(cls, data: bytes) -> PackName:
        if len(data) != NAME_BYTES:
            raise BadValue(f"a pack name has {NAME_BYTES} bytes, not {len(data)}")
        return parse_names(data)[0]


def parse_names(data: bytes) -> list[PackName]:
    """The names of which `to_bytes` made these bytes, joined."""
    if len(data) % NAME_BYTES:
        raise BadValue(f"{len(data)} bytes of pack names")
    names = [PackName(digest, writer.hex(), seq) for digest, writer, seq in _NAME.iter_unpack(data)]
    if any(name.seq > COUNTER_MAX for name in names):
        raise BadValue(f"a sequence number exceeds {COUNTER_MAX}")
    return names


@dataclass(frozen=True, slots=True, order=True)
class SnapshotName:
    """Name of a snapshot; a higher generation was begun later by someone who saw the lower one."""

    generation: int
    writer: str

    @property
    def path(self) -> str:
        return f"{SNAPSHOTS}/{self.generation}.{self.writer}.arrow"

    @classmethod
    def parse(cls, text: str) -> SnapshotName:
        generation, writer = _match(_SNAPSHOT, text, "snapshot").groups()
        return cls(_counter(generation), writer)


def pack_shard_dirs() -> list[str]:
    """The 256 directories that hold packs, made once when a namespace is created."""
    return [f"{PACKS}/{number:02x}" for number in range(256)]


def journal_path(writer: str) -> str:
    return f"{JOURNALS}/{writer}"


def parse_journal_name(text: str) -> str:
    """The writer whose journal this is."""
    return _match(_JOURNAL, text, "journal")[1]


def realm_path(realm: bytes, canary: bytes) -> str:
    return f"{REALMS}/{realm.hex()}.{canary.hex()}.json"


def parse_realm_name(text: str) -> tuple[bytes, bytes]:
    """(realm digest, canary)."""
    realm, canary = _match(_REALM, text, "realm descriptor").groups()
    return bytes.fromhex(realm), bytes.fromhex(canary)


def settings_path(number: int, writer: str) -> str:
    return f"{SETTINGS}/{number}.{writer}.json"


def parse_settings_name(text: str) -> tuple[int, str]:
    """(number, writer)."""
    number, writer = _match(_SETTINGS, text, "settings record").groups()
    return _counter(number), writer


def replica_path(announcer: str) -> str:
    return f"{REPLICAS}/{announcer}.json"


def parse_replica_name(text: str) -> str:
    """The announcer whose file this is."""
    return _match(_REPLICA, text, "replica file")[1]
