#!/usr/bin/env bash
# One node's part of a fleet; srun starts it on each. Ends when its standard input does.
set -u
. "${FLEET_HOME:?}/launch/slurm/common.sh"
load_site
exec "${PYTHON[@]}" -m launch.node
