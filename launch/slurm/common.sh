# shellcheck shell=bash
# What the scripts here share: the site's settings, and how Python is run. Sourced, not run.

# The checkout: where sbatch was called, unless FLEET_HOME says another directory.
FLEET_HOME=${FLEET_HOME:-${SLURM_SUBMIT_DIR:-$PWD}}
FLEET_SITE=${FLEET_SITE:-$FLEET_HOME/launch/slurm/site.env}
export FLEET_HOME FLEET_SITE

load_site() {
    [ -r "$FLEET_SITE" ] || refuse "$FLEET_SITE cannot be read: copy" \
        "launch/slurm/site.env.example to launch/slurm/site.env and edit it"
    bash -n "$FLEET_SITE" || refuse "$FLEET_SITE is read by Bash: mend the line that it names above"
    local not_run=""
    trap '[[ $? -ne 126 && $? -ne 127 ]] || not_run=yes' ERR # no command, or a directory
    set -a                                                   # every setting goes to the environment
    # shellcheck source=/dev/null
    . "$FLEET_SITE"
    set +a
    trap - ERR
    [ -z "$not_run" ] || refuse "$FLEET_SITE holds a line that is no setting and no command: see" \
        "above; a value with blanks stands in quotes"
    export FLEET_LOGS=${FLEET_LOGS:-$FLEET_HOME/logs/${SLURM_JOB_ID:-here}}
    export FLEET_GEKKOFS_HOSTS=$FLEET_LOGS/gekkofs-hosts.txt
    # A command of several words, such as one that enters a container, is allowed.
    # shellcheck disable=SC2034  # used by the scripts that source this one
    read -ra PYTHON <<<"${FLEET_PYTHON:-}"
    [ ${#PYTHON[@]} -gt 0 ] || PYTHON=("$FLEET_HOME/.venv/bin/python")
    mkdir -p "$FLEET_LOGS" || refuse "FLEET_LOGS=$FLEET_LOGS cannot be made on $(hostname): give a" \
        "directory that every node can write"
    cd "$FLEET_HOME" || exit 2
    command -v "${PYTHON[0]}" >/dev/null || refuse "there is no ${PYTHON[0]} on $(hostname): set" \
        "FLEET_PYTHON to the Python that has vLLM and LMCache, or to a container's command"
}

refuse() {
    echo "fleet: $*" >&2
    exit 2
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
# not end the others. The job's cores are asked for again, since srun does not take them from
# sbatch: where Slurm binds tasks to cores, a node's part would get one. Process and input:
# ${step_pid[NAME]}, ${step_in[NAME]}.
declare -A step_pid step_in
start_step() {
    local name=$1 folder input
    shift
    folder=$(mktemp -d) && mkfifo "$folder/input" || exit
    srun --ntasks-per-node=1 --ntasks="$SLURM_JOB_NUM_NODES" \
        ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} --overlap --unbuffered \
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
