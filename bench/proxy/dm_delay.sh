#!/usr/bin/env bash
# A local file system whose every block request takes MILLISECONDS longer: loop device, dm-delay,
# ext4. For machines that have device mapper (most; containers and small virtual machines often
# do not). Latency here is that of the disk, so cached operations cost nothing: compare with care.
#
#   dm_delay.sh start DIRECTORY MILLISECONDS [GIB]   mounts at DIRECTORY/mount (4 GiB by default)
#   dm_delay.sh set DIRECTORY MILLISECONDS           changes the delay while mounted
#   dm_delay.sh stop DIRECTORY                       unmounts and removes everything
set -euo pipefail

usage() {
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

require() {
    [ "$(id -u)" = 0 ] || { echo "dm_delay: needs root" >&2; exit 1; }
    command -v dmsetup >/dev/null || { echo "dm_delay: dmsetup is missing: apt install dmsetup" >&2; exit 1; }
    command -v mkfs.ext4 >/dev/null || { echo "dm_delay: mkfs.ext4 is missing: apt install e2fsprogs" >&2; exit 1; }
    [ -e /dev/mapper/control ] && dmsetup version >/dev/null 2>&1 ||
        { echo "dm_delay: this kernel has no device mapper: use python -m bench.throttle mount" >&2; exit 1; }
    modprobe dm-delay 2>/dev/null || true # it may be built in
    dmsetup targets | grep -q '^delay ' ||
        { echo "dm_delay: this kernel has no delay target (CONFIG_DM_DELAY)" >&2; exit 1; }
}

table() { # DEVICE MILLISECONDS: sectors from 0 to the end, reads and writes alike
    echo "0 $(blockdev --getsz "$1") delay $1 0 $2"
}

start() {
    local directory=$1 milliseconds=$2 gib=${3:-4} loop
    mkdir -p "$directory/mount"
    truncate -s "${gib}G" "$directory/image"
    loop=$(losetup --find --show "$directory/image")
    echo "$loop" >"$directory/loop"
    # Each step that fails takes back those before it.
    trap 'stop "$directory"' ERR
    dmsetup create "$(device "$directory")" --table "$(table "$loop" 0)"
    mkfs.ext4 -q "/dev/mapper/$(device "$directory")"
    mount "/dev/mapper/$(device "$directory")" "$directory/mount"
    change "$directory" "$milliseconds"
    trap - ERR
    echo "$directory/mount: every block request takes $milliseconds ms longer"
}

change() {
    local directory=$1 milliseconds=$2 name
    name=$(device "$directory")
    dmsetup suspend "$name"
    dmsetup reload "$name" --table "$(table "$(cat "$directory/loop")" "$milliseconds")"
    dmsetup resume "$name"
}

stop() {
    local directory=$1
    mountpoint -q "$directory/mount" && umount "$directory/mount"
    dmsetup remove "$(device "$directory")" 2>/dev/null || true # it may not have been made yet
    [ -e "$directory/loop" ] && losetup --detach "$(cat "$directory/loop")"
    rm -f "$directory/image" "$directory/loop"
}

device() { # one name for each directory
    echo "delay-$(realpath "$1" | md5sum | cut -c1-8)"
}

[ $# -ge 2 ] || usage
action=$1
shift
case "$action" in
    start) [ $# -ge 2 ] || usage; require; start "$@" ;;
    set) [ $# -eq 2 ] || usage; require; change "$@" ;;
    stop) require; stop "$1" ;;
    *) usage ;;
esac
