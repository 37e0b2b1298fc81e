#!/usr/bin/env bash
# GekkoFS over the local disks of a job's nodes.
#
#   gekkofs.sh serve    on each node: its daemon (and FUSE client), until standard input ends
#   gekkofs.sh wait PID once: until every node's daemon has registered; PID is the step's srun
set -u
. "${FLEET_HOME:?}/launch/slurm/common.sh"
load_site
read -ra arguments <<<"${FLEET_GEKKOFS_ARGUMENTS:-}"
read -ra client <<<"${FLEET_GEKKOFS_CLIENT:-}"
node=${SLURMD_NODENAME:-$(hostname)}
log=$FLEET_LOGS/$node-gekkofs.log
# Requeued jobs and nodes that share one disk do not meet in it.
data=$FLEET_GEKKOFS_DATA/sharedfs-$SLURM_JOB_ID-$node

serve() {
    mkdir -p "$data" "$FLEET_GEKKOFS_MOUNT" || exit 2
    # --clean-rootdir: what an earlier run of this job left was part of another file system.
    GKFS_DAEMON_LOG_PATH=$log "$FLEET_GEKKOFS" --rootdir "$data" --mountdir "$FLEET_GEKKOFS_MOUNT" \
        --hosts-file "$FLEET_GEKKOFS_HOSTS" --clean-rootdir "${arguments[@]}" >>"$log" 2>&1 &
    daemon=$!
    trap stop TERM INT
    if [ "${FLEET_GEKKOFS_ACCESS:-preload}" = fuse ]; then
        wait_hosts
        LIBGKFS_HOSTS_FILE=$FLEET_GEKKOFS_HOSTS "${client[@]}" "$FLEET_GEKKOFS_MOUNT" >>"$log" 2>&1 ||
            say "$node: the FUSE client failed; see $log"
    fi
    # Until standard input ends; a daemon that dies is said at once.
    while kill -0 "$daemon" 2>/dev/null; do
        read -r -t 2
        [ $? -eq 1 ] && break # the end of input; above 128: nothing came in time
    done
    kill -0 "$daemon" 2>/dev/null || say "$node: the GekkoFS daemon ended; see $log"
    stop
}

stop() {
    trap '' TERM INT
    if [ "${FLEET_GEKKOFS_ACCESS:-preload}" = fuse ]; then
        fusermount3 -u "$FLEET_GEKKOFS_MOUNT" 2>/dev/null || fusermount -u "$FLEET_GEKKOFS_MOUNT"
    fi
    kill -TERM "$daemon" 2>/dev/null
    for _ in $(seq 100); do
        kill -0 "$daemon" 2>/dev/null || break
        sleep 0.1
    done
    kill -KILL "$daemon" 2>/dev/null
    wait "$daemon" 2>/dev/null
    rm -rf "$data"
    rmdir "$FLEET_GEKKOFS_MOUNT" 2>/dev/null
    rm -f "$FLEET_GEKKOFS_HOSTS"
    exit 0
}

registered() {
    [ -e "$FLEET_GEKKOFS_HOSTS" ] && grep -c . "$FLEET_GEKKOFS_HOSTS" || echo 0
}

# At most 120 s, until each node has its line in the hosts file: a client that starts earlier never sees the rest.
wait_hosts() {
    for _ in $(seq 600); do
        [ "$(registered)" -ge "$SLURM_JOB_NUM_NODES" ] && return
        [ -z "${1:-}" ] || kill -0 "$1" 2>/dev/null || break
        sleep 0.2
    done
    say "only $(registered) of $SLURM_JOB_NUM_NODES GekkoFS daemons registered in" \
        "$FLEET_GEKKOFS_HOSTS; see $FLEET_LOGS/*-gekkofs.log"
    exit 1
}

case ${1:-} in
serve)
    serve
    ;;
wait)
    wait_hosts "${2:-}"
    say "GekkoFS on $SLURM_JOB_NUM_NODES node(s) at $FLEET_GEKKOFS_MOUNT; logs:" \
        "$FLEET_LOGS/*-gekkofs.log"
    ;;
*)
    echo "gekkofs.sh: serve or wait" >&2
    exit 2
    ;;
esac
