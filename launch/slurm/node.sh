#!/usr/bin/env bash
# One node's part of a fleet; srun starts it on each. Ends when its standard input does.
# Usage: node.sh [PART]     PART: replicas announce themselves in that part's registry
set -u
. "${FLEET_HOME:?}/launch/slurm/common.sh"
load_site
[ $# -eq 0 ] || export FLEET_REGISTRY=$FLEET_NAMESPACE-$1
exec "${PYTHON[@]}" -m launch.node
