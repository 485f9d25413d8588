#!/bin/sh
# Makes a step leave the same bytes at any time and on any machine. Each RUN that changes files sources this script, calls
# begin_step first, and end_step last.
#
#   /run/builder/work    memory for notes; nothing in it stays in the image
#
# Every file that the step changes gets the time SOURCE_DATE_EPOCH. It is set by the build, or is the time of the base image's
# release file: then a pin that moves later does not change the earlier steps.

set -eu
step_work=/run/builder/work

begin_step() {
    umask 022
    SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(stat -L -c %Y /etc/os-release 2> /dev/null || echo 315532800)}
    # Bytecode refers to its source by hash, not by time: pip and Debian read the first variable, uv the second. With the
    # third, programs that only run in this step write no bytecode.
    export SOURCE_DATE_EPOCH PYC_INVALIDATION_MODE=CHECKED_HASH PYTHONDONTWRITEBYTECODE=1
    # The user's package indexes are files, because Docker before 27.3 gives a step no secrets as variables.
    for step_name in PIP_INDEX_URL PIP_EXTRA_INDEX_URL; do
        if [ -s "/run/secrets/$step_name" ]; then export "$step_name=$(cat "/run/secrets/$step_name")"; fi
    done
    mkdir -p "$step_work"
    touch "$step_work/began"
    # The kernel's file clock ticks at least every 10 milliseconds. Later changes must have a later time than this file.
    sleep 0.02
}

# find_changed ACTION…: runs find's action on all files that this step changed or made. It goes by the change time, which no
# script can set.
#
# Overlayfs starts each layer empty, and a change updates every folder above it. So unchanged folders are skipped: this
# takes milliseconds, and reading the whole tree a second.
find_changed() {
    set -- -cnewer "$step_work/began" "$@"
    if [ "$(stat -f -c %T /)" = overlayfs ]; then set -- ! -cnewer "$step_work/began" -prune -o "$@"; fi
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run/builder -o -path /etc/resolv.conf \
        -o -path /etc/hosts -o -path /etc/ssl/certs/ca-certificates.crt -o -path /root/.cache/uv \) -prune -o "$@"
}

end_step() {
    # Logs, caches, and the previous states that dpkg and debconf keep.
    find_changed -type f \( -path '/var/log/*' -o -path '/var/cache/*' ! -path '/var/cache/debconf/*.dat' \
        -o -path '/var/lib/apt/lists/*' -o -path '/var/lib/dpkg/*-old' -o -path '/root/.cache/*' \) -exec rm -f {} +
    # This id is random. If the file is empty, each machine makes its own id when it starts.
    find_changed -type f -path /etc/machine-id -exec truncate -s 0 {} +
    # For a package from a file, uv records the time of the installation.
    find_changed -type f -path '*.dist-info/uv_cache.json' -print > "$step_work/noted"
    while IFS= read -r step_file; do
        rm -f "$step_file"
        sed -i '/\.dist-info\/uv_cache\.json,/d' "${step_file%/*}/RECORD"
    done < "$step_work/noted"
    # BuildKit's rewrite-timestamp is refused by engines that unpack the built image, as with the docker driver. Only files
    # that this step changed are touched: a touch of a newer file in a layer below would copy it into this layer.
    find_changed -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}
