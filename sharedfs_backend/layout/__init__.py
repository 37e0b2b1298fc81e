"""The byte format: values to bytes to names and back, purely. FORMAT.md is its specification.

Nothing below here touches a file, a clock or a thread; everything may be used from any thread.
Decoders return values or raise FormatError, whatever they are given; encoders raise ValueError for
arguments that no decoder would accept. Import from this package, not from its modules.
"""

from sharedfs_backend.layout.errors import (
    BadChecksum,
    BadMagic,
    BadValue,
    FormatError,
    NewerVersion,
    Truncated,
)
from sharedfs_backend.layout.head import BLOCK_BYTES, FORMAT_MAJOR, FORMAT_MINOR, HEAD_BYTES
from sharedfs_backend.layout.journal import (
    ENTRY_BYTES_MAX,
    RECORDS_PER_ENTRY_MAX,
    Scan,
    Stop,
    decode_entry,
    encode_entry,
    entry_bytes,
    scan,
    split_records,
)
from sharedfs_backend.layout.keys import chunk_key, pack_digest, pack_digest_of
from sharedfs_backend.layout.names import (
    JOURNALS,
    NAMESPACE_PATH,
    PACKS,
    REALMS,
    REPLICAS,
    SETTINGS,
    SNAPSHOTS,
    PackName,
    SnapshotName,
    is_writer_id,
    journal_path,
    pack_shard_dirs,
    parse_journal_name,
    parse_names,
    parse_realm_name,
    parse_replica_name,
    parse_settings_name,
    realm_path,
    replica_path,
    settings_path,
    writer_bytes,
    writer_id,
)
from sharedfs_backend.layout.namespace import (
    NamespaceRecord,
    SettingsRecord,
    decode_namespace,
    decode_settings,
    encode_namespace,
    encode_settings,
    is_intact_namespace,
)
from sharedfs_backend.layout.pack import (
    HEADER_BYTES_MAX,
    HEADER_SIZE_HINT,
    TRAILER_BYTES,
    PackHeader,
    PackPlan,
    Trailer,
    decode_header,
    decode_trailer,
    encode_header,
    encode_trailer,
    header_checksum,
    peek_header_bytes,
    plan_pack,
)
from sharedfs_backend.layout.packrows import PackRows, PackState, SnapshotPack
from sharedfs_backend.layout.realm import LayoutDescriptor, RealmDescriptor, RealmFile
from sharedfs_backend.layout.records import (
    Beat,
    Begin,
    Commit,
    Drop,
    End,
    Gone,
    PackCommit,
    Record,
    Touch,
)
from sharedfs_backend.layout.replica import (
    LEASE_SECONDS_MAX,
    LEASE_SECONDS_MIN,
    REPLICA_BYTES,
    ReplicaRecord,
    decode_replica,
    encode_replica,
)
from sharedfs_backend.layout.seal import UNIT_BYTES, Buffer, Hasher, Purpose, Seal
from sharedfs_backend.layout.snapshot import (
    SNAPSHOT_BYTES_MAX,
    Coverage,
    Snapshot,
    decode_snapshot,
    encode_snapshot,
)
from sharedfs_backend.layout.table import CHUNKS_PER_PACK_MAX, EMPTY_TABLE, ChunkEntry, EntryTable

__all__ = [
    # errors
    "FormatError", "Truncated", "BadMagic", "BadChecksum", "NewerVersion", "BadValue",
    # seal
    "Seal", "Purpose", "Hasher", "Buffer", "UNIT_BYTES",
    # names
    "PackName", "parse_names", "SnapshotName", "writer_id", "is_writer_id", "writer_bytes",
    "journal_path", "parse_journal_name", "realm_path", "parse_realm_name",
    "settings_path", "parse_settings_name", "replica_path", "parse_replica_name",
    "pack_shard_dirs",
    "NAMESPACE_PATH", "PACKS", "JOURNALS", "SNAPSHOTS", "REALMS", "SETTINGS", "REPLICAS",
    # identity
    "chunk_key", "pack_digest", "pack_digest_of",
    "RealmDescriptor", "RealmFile", "LayoutDescriptor",
    # packs
    "ChunkEntry", "EntryTable", "EMPTY_TABLE", "PackPlan", "PackHeader", "Trailer", "plan_pack",
    "encode_header", "decode_header", "peek_header_bytes", "header_checksum",
    "encode_trailer", "decode_trailer",
    "TRAILER_BYTES", "HEADER_SIZE_HINT", "HEADER_BYTES_MAX", "CHUNKS_PER_PACK_MAX",
    # journals
    "Record", "Begin", "Commit", "PackCommit", "Drop", "Gone", "Touch", "Beat", "End",
    "encode_entry", "decode_entry", "entry_bytes", "scan", "Scan", "Stop", "split_records",
    "BLOCK_BYTES", "ENTRY_BYTES_MAX", "RECORDS_PER_ENTRY_MAX", "HEAD_BYTES",
    # snapshots
    "Snapshot", "SnapshotPack", "PackRows", "PackState", "Coverage",
    "encode_snapshot", "decode_snapshot", "SNAPSHOT_BYTES_MAX",
    # namespace
    "NamespaceRecord", "SettingsRecord", "encode_namespace", "decode_namespace",
    "is_intact_namespace",
    "encode_settings", "decode_settings", "FORMAT_MAJOR", "FORMAT_MINOR",
    # replicas
    "ReplicaRecord", "encode_replica", "decode_replica", "REPLICA_BYTES",
    "LEASE_SECONDS_MIN", "LEASE_SECONDS_MAX",
]  # fmt: skip
