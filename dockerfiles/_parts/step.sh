#!/bin/sh
# How a step leaves the same bytes whenever and wherever it runs: sourced by each RUN of an image that changes files.
# begin_step; what the step does; end_step.
#
#   /run/builder/work    memory for notes; nothing of it stays in the image
#
# SOURCE_DATE_EPOCH is the time that everything carries which the step changes: the build's own, or else that of the
# release file of the base image, so that a pin that moves later leaves the earlier steps as they are.

set -eu
step_work=/run/builder/work

begin_step() {
    umask 022
    SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(stat -L -c %Y /etc/os-release 2> /dev/null || echo 315532800)}
    # Bytecode names its source by hash and not by time: pip and Debian read the first, uv the second. The third keeps
    # programs that only run here from writing any.
    export SOURCE_DATE_EPOCH PYC_INVALIDATION_MODE=CHECKED_HASH PYTHONDONTWRITEBYTECODE=1
    # The person's package indexes: files, since Docker before 27.3 gives a step no secret as a variable.
    for step_name in PIP_INDEX_URL PIP_EXTRA_INDEX_URL; do
        if [ -s "/run/secrets/$step_name" ]; then export "$step_name=$(cat "/run/secrets/$step_name")"; fi
    done
    mkdir -p "$step_work"
    touch "$step_work/began"
    # The kernel's file clock ticks every 10 milliseconds at the slowest; what follows must be later than the mark.
    sleep 0.02
}

# find_changed ACTION…: find's action on all that this step has changed or made; by change time, which no script sets.
#
# On overlayfs, which starts each layer empty, a change anywhere changes every folder above it: all other folders are
# passed over, which takes milliseconds where reading the whole tree takes a second.
find_changed() {
    set -- -cnewer "$step_work/began" "$@"
    if [ "$(stat -f -c %T /)" = overlayfs ]; then set -- ! -cnewer "$step_work/began" -prune -o "$@"; fi
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run/builder -o -path /etc/resolv.conf \
        -o -path /etc/hosts -o -path /etc/ssl/certs/ca-certificates.crt -o -path /root/.cache/uv \) -prune -o "$@"
}

end_step() {
    # Logs, caches, and what dpkg and debconf keep of the state before.
    find_changed -type f \( -path '/var/log/*' -o -path '/var/cache/*' ! -path '/var/cache/debconf/*.dat' \
        -o -path '/var/lib/apt/lists/*' -o -path '/var/lib/dpkg/*-old' -o -path '/root/.cache/*' \) -exec rm -f {} +
    # An id that is made at random; an empty one is made when a machine starts.
    find_changed -type f -path /etc/machine-id -exec truncate -s 0 {} +
    # uv notes when it installed a package that came as a file.
    find_changed -type f -path '*.dist-info/uv_cache.json' -print > "$step_work/noted"
    while IFS= read -r step_file; do
        rm -f "$step_file"
        sed -i '/\.dist-info\/uv_cache\.json,/d' "${step_file%/*}/RECORD"
    done < "$step_work/noted"
    # rewrite-timestamp, BuildKit's own way, is refused by engines that unpack what they build, which the docker driver
    # does. Not every newer file may be touched: layers below hold such files, and touching one copies it into this layer.
    find_changed -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}
