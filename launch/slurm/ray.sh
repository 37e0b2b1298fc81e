#!/usr/bin/env bash
# Ray on one node of a job; srun starts it on each. The first one is the head, the others join it.
# Ends when its standard input does. Usage: ray.sh ADDRESS PORT
set -u
. "${FLEET_HOME:?}/launch/slurm/common.sh"
load_site
temporary=${FLEET_SCRATCH:-/tmp}/sfs-ray-$SLURM_JOB_ID
[ ${#temporary} -le 38 ] || temporary=/tmp/sfs-ray-$SLURM_JOB_ID # sockets' names have 107 bytes
words=(--block --disable-usage-stats)
if [ "$SLURM_NODEID" = 0 ]; then
    words+=(--head --node-ip-address="$1" --port="$2" --include-dashboard=false
        --temp-dir="$temporary" --resources='{"node_part": 1, "front": 1}')
else
    words+=(--address="$1:$2" --resources='{"node_part": 1}')
fi
"${PYTHON[@]}" -m launch.hold ray python -m ray.scripts.scripts start "${words[@]}"
status=$?
rm -rf "$temporary" # Ray makes it on every node
exit "$status"
