#!/usr/bin/env bash
# One replica in LMCache's multi-process mode: a cache server and an engine.
# Usage: MODEL=/models/name launch/config/mp.sh [further arguments of vllm serve]
set -eu
here=$(dirname "$0")

# The cache server. In mp-adapter.json, `root` is the directory all replicas share.
lmcache server --port 5555 --l1-size-gb "${L1_SIZE_GB:-20}" --eviction-policy LRU \
    --l2-adapter "$(cat "$here/mp-adapter.json")" &
trap 'kill $! 2>/dev/null || true' EXIT

# The engine. In mp-connector.json, host and port are the cache server's.
vllm serve "$MODEL" --kv-transfer-config "$(cat "$here/mp-connector.json")" "$@"
