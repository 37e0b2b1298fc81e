#!/usr/bin/env bash
# Runs a command in an image: run.sh [--preload LIBRARY] engine|router|gekkofs COMMAND [ARGUMENT...]
#
#     launch/apptainer/run.sh router sharedfs ls /lustre/project/kv
#     launch/apptainer/run.sh --preload /opt/gekkofs/lib/libgkfs_intercept.so \
#         engine lmcache server ...
#
# In launch/slurm/site.env: FLEET_PYTHON="launch/apptainer/run.sh engine python3". A fleet's node
# then runs in one container, and gives the preload to its LMCache server alone.
#
# Why it is done like this:
# - No new PID or IPC namespace and the host's /dev/shm: engine and LMCache server hand each other
#   memory, and signals reach the command itself.
# - No home and a clean environment: packages in ~/.local and variables of a login shell make two
#   nodes differ. What passes is listed below.
# - LD_PRELOAD never passes. GekkoFS's client would be in Apptainer's own start scripts too, which
#   fork, and a forked child hangs under it; and it breaks file locks of whoever takes some, vLLM
#   among them. --preload puts it behind `env`, into that one process.
set -euo pipefail
# shellcheck source=launch/apptainer/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

preload=()
if [ "${1:-}" = --preload ]; then
    [ $# -ge 2 ] || refuse "--preload needs a library"
    preload=(env "LD_PRELOAD=$2")
    shift 2
fi
[ $# -ge 2 ] || refuse "give an image (engine, router, gekkofs) and a command"
name=$1
shift
image=$IMAGE_DIR/$name.sif
[ -e "$image" ] || refuse "$image is missing: build it with launch/apptainer/build.sh $name"
if [ ${#preload[@]} -gt 0 ]; then
    for word in "$@"; do
        case $word in
        vllm | */vllm | vllm.* | launch.*)
            refuse "GekkoFS's client may not be preloaded into $word, which forks: it belongs into" \
                "the LMCache server alone; for a fleet, FLEET_GEKKOFS_CLIENT in site.env does that"
            ;;
        esac
    done
fi

# Apptainer splits a bind at these; it knows no way to write them.
bindable() {
    [[ $1 != *[:,]* ]] || refuse "$1 cannot be bound: Apptainer takes no path with : or , in it"
}
bindable "$image_home"
bindable "$IMAGE_DIR"

options=(--cleanenv --no-eval --no-home --no-mount cwd --cwd "$image_home")
[ "$name" != engine ] || [ "${IMAGE_GPU:-nv}" = none ] || options+=("--${IMAGE_GPU:-nv}")

# The checkout, so that the code is the one that Slurm's scripts come from, and the site's paths.
options+=(--bind "$image_home:$image_home:ro")
if [[ $(declare -p IMAGE_BINDS 2>/dev/null) == "declare -a"* ]]; then
    binds=("${IMAGE_BINDS[@]}") # IMAGE_BINDS=("/with blanks" /without)
else
    read -ra binds <<<"${IMAGE_BINDS:-}"
fi
cache=${IMAGE_CACHE:-${TMPDIR:-/tmp}/sharedfs-cache-$(id -u)}
mkdir -p "$cache" || refuse "IMAGE_CACHE=$cache cannot be made"
for path in "$cache" ${TMPDIR:+"$TMPDIR"} ${FLEET_SCRATCH:+"$FLEET_SCRATCH"} \
    ${FLEET_LOGS:+"$FLEET_LOGS"} "${binds[@]}"; do
    [ -e "$path" ] || refuse "$path is to be bound and is not on $(hostname): see IMAGE_BINDS"
    bindable "$path"
    case $path in
    /tmp | /tmp/*) ;; # every container sees it
    *) options+=(--bind "$path") ;;
    esac
done
# GekkoFS: where its daemons keep data and where it appears, once they are there.
for path in ${FLEET_GEKKOFS_DATA:+"$FLEET_GEKKOFS_DATA"} \
    ${FLEET_GEKKOFS_MOUNT:+"$FLEET_GEKKOFS_MOUNT"}; do
    [ ! -e "$path" ] || options+=(--bind "$path")
done
[ ! -d "$IMAGE_DIR/gekkofs" ] || options+=(--bind "$IMAGE_DIR/gekkofs:/opt/gekkofs:ro")

# Values pass through APPTAINERENV_ variables: `--env` would cut them at commas.
prefix=APPTAINERENV_
[ "$(basename "$IMAGE_COMMAND")" != singularity ] || prefix=SINGULARITYENV_
pass="FLEET_* SLURM_* SLURMD_* CUDA_* NVIDIA_* VLLM_* LMCACHE_* SHAREDFS_* NCCL_* UCX_* GLOO_*"
pass+=" HF_* RAY_* GKFS_* LIBGKFS_* OMP_NUM_THREADS PYTHONHASHSEED TMPDIR TZ ${IMAGE_PASS:-}"
unset APPTAINERENV_PYTHONPATH SINGULARITYENV_PYTHONPATH
for variable in $(compgen -e); do
    set -f # patterns below are not file names
    for pattern in $pass; do
        # shellcheck disable=SC2053  # a pattern on purpose
        if [[ $variable == $pattern && $variable != LD_PRELOAD ]]; then
            export "$prefix$variable=${!variable}"
        fi
    done
    set +f
done
unset LD_PRELOAD APPTAINERENV_LD_PRELOAD SINGULARITYENV_LD_PRELOAD

# What would be written to a home goes to the cache.
export "${prefix}XDG_CACHE_HOME=$cache"
export "${prefix}HF_HOME=${HF_HOME:-$cache/huggingface}"
export "${prefix}TRITON_CACHE_DIR=$cache/triton"
export "${prefix}TORCHINDUCTOR_CACHE_DIR=$cache/torchinductor"
export "${prefix}FLASHINFER_WORKSPACE_BASE=$cache"
passed=${prefix}PYTHONPATH
export "$passed=$image_home${!passed:+:${!passed}}"

exec "$IMAGE_COMMAND" exec "${options[@]}" "$image" "${preload[@]}" "$@"
