#!/usr/bin/env bash
# GekkoFS's daemon, from its image. In site.env (one path, absolute):
# FLEET_GEKKOFS=/path/of/the/checkout/launch/apptainer/gkfs_daemon.sh
exec "$(dirname "${BASH_SOURCE[0]}")/run.sh" gekkofs gkfs_daemon "$@"
