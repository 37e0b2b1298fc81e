# shellcheck shell=bash
# What build.sh and run.sh share: where things are, and the settings. Sourced, not run.

image_here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
image_home=$(cd "$image_here/../.." && pwd)
image_settings=${IMAGE_SETTINGS:-$image_here/images.env}
if [ -r "$image_settings" ]; then
    # shellcheck source=/dev/null
    . "$image_settings"
elif [ -n "${IMAGE_SETTINGS:-}" ]; then
    echo "$0: IMAGE_SETTINGS=$image_settings cannot be read" >&2
    exit 2
fi
IMAGE_DIR=${IMAGE_DIR:-$image_home/images}
IMAGE_COMMAND=${IMAGE_COMMAND:-apptainer}

refuse() {
    echo "$(basename "$0"): $*" >&2
    exit 2
}

command -v "$IMAGE_COMMAND" >/dev/null ||
    refuse "there is no command $IMAGE_COMMAND here: load its module, or set IMAGE_COMMAND"
