#!/usr/bin/env bash
# Builds one image: build.sh engine|router|gekkofs [options of `apptainer build`]
#
#     launch/apptainer/build.sh engine
#     launch/apptainer/build.sh engine --build-arg VLLM_VERSION=0.32.0
#
# Needs Apptainer 1.2 or newer and a way to the sources (often only the login nodes have one). Where
# unprivileged builds are not allowed, build on another machine and copy the .sif file to IMAGE_DIR.
set -euo pipefail
# shellcheck source=launch/apptainer/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

name=${1:-}
definition=$image_here/$name.def
[ -r "$definition" ] || refuse "name one image first: engine, router or gekkofs"
shift

# Paths in %files count from the directory that `apptainer build` is called in.
cd "$image_home"
mkdir -p "$IMAGE_DIR"

# A running fleet keeps the image it has: the new one takes the name only when it is whole.
new=$IMAGE_DIR/$name.new.sif
trap 'rm -f "$new"' EXIT
"$IMAGE_COMMAND" build --force "$@" "$new" "$definition"
mv "$new" "$IMAGE_DIR/$name.sif"
echo "built $IMAGE_DIR/$name.sif"

# The client library runs inside the engine's container: its files are needed outside the image.
if [ "$name" = gekkofs ]; then
    rm -rf "$IMAGE_DIR/gekkofs.new"
    mkdir "$IMAGE_DIR/gekkofs.new"
    "$IMAGE_COMMAND" exec --no-home --bind "$IMAGE_DIR/gekkofs.new:/out" "$IMAGE_DIR/gekkofs.sif" \
        cp -a /opt/gekkofs/. /out
    rm -rf "$IMAGE_DIR/gekkofs"
    mv "$IMAGE_DIR/gekkofs.new" "$IMAGE_DIR/gekkofs"
    echo "copied GekkoFS to $IMAGE_DIR/gekkofs, which run.sh binds to /opt/gekkofs"
fi
