# shellcheck shell=bash
# What the scripts here share: the site's settings, and how Python is run. Sourced, not run.

# The checkout: where sbatch was called, unless FLEET_HOME says another directory.
FLEET_HOME=${FLEET_HOME:-${SLURM_SUBMIT_DIR:-$PWD}}
FLEET_SITE=${FLEET_SITE:-$FLEET_HOME/launch/slurm/site.env}
export FLEET_HOME FLEET_SITE

load_site() {
    if [ ! -r "$FLEET_SITE" ]; then
        echo "fleet: $FLEET_SITE cannot be read: copy launch/slurm/site.env.example to" \
            "launch/slurm/site.env and edit it, and call sbatch in the checkout" >&2
        exit 2
    fi
    set -a # every setting goes to the environment
    # shellcheck source=/dev/null
    . "$FLEET_SITE" || exit 2
    set +a
    export FLEET_LOGS=${FLEET_LOGS:-$FLEET_HOME/logs/${SLURM_JOB_ID:-here}}
    export FLEET_GEKKOFS_HOSTS=$FLEET_LOGS/gekkofs-hosts.txt
    # A command of several words, such as one that enters a container, is allowed.
    # shellcheck disable=SC2034  # used by the scripts that source this one
    read -ra PYTHON <<<"${FLEET_PYTHON:-$FLEET_HOME/.venv/bin/python}"
    mkdir -p "$FLEET_LOGS" || exit 2
    cd "$FLEET_HOME" || exit 2
}

say() { echo "$(date +%T) fleet: $*"; }

# Waits until a process is gone, whatever signals come meanwhile; its status.
wait_for() {
    local status=0
    while
        wait "$1" 2>/dev/null
        status=$?
        kill -0 "$1" 2>/dev/null
    do :; done
    return "$status"
}

# Starts a command once on every node of the job, beside what runs there already, and keeps its
# standard input open: `end_step` closes it, which is how the command is told to end. (A signal
# would reach every process of the step at once, the engines included.) A node that fails does
# not end the others. Process and input: ${step_pid[NAME]}, ${step_in[NAME]}.
declare -A step_pid step_in
start_step() {
    local name=$1 folder input
    shift
    folder=$(mktemp -d) && mkfifo "$folder/input" || exit
    srun --ntasks-per-node=1 --ntasks="$SLURM_JOB_NUM_NODES" --overlap --unbuffered \
        --no-kill --kill-on-bad-exit=0 --wait=0 "$@" <"$folder/input" &
    step_pid[$name]=$!
    exec {input}>"$folder/input"
    step_in[$name]=$input
    rm -r "$folder"
}

end_step() {
    local input=${step_in[$1]}
    exec {input}>&-
    wait_for "${step_pid[$1]}"
}
