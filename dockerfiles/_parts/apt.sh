#!/bin/sh
# Installs packages of the distribution, Debian or Ubuntu. The RUN sources this script after step.sh.
#
#   /run/builder/apt                          cache: the files of the packages, at their paths in the archive
#   /run/secrets/distribution-packages        for a rebuild: the packages that the first build installed
#   /usr/share/builder/distribution-packages  in the image: the installed packages, as a package index
#
# A build asks the archive for the versions, and records its choice. A rebuild takes the recorded packages. Both then
# install only from that index, so that they give the same result.

apt_store=/run/builder/apt
apt_record=/usr/share/builder/distribution-packages
apt_asked=/run/secrets/distribution-packages

# apt_get ARGUMENT…: uses its own lists, because clean-up hooks of base images delete apt's usual ones
apt_get() {
    # shellcheck disable=SC2154  # step.sh sets step_work
    apt-get -qq -o Dir::State::lists="$step_work/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= \
        -o Dir::Cache::archives="$apt_store/archives" -o APT::Sandbox::User=root -o Acquire::Retries=3 \
        -o Acquire::Languages=none "$@"
}

# install_distribution_packages NAME…
install_distribution_packages() {
    export DEBIAN_FRONTEND=noninteractive
    mkdir -p "$step_work/lists/partial" "$apt_store/archives/partial" "${apt_record%/*}"
    if [ -s "$apt_asked" ]; then
        apt_fetch_recorded
    else
        apt_choose "$@" || return
    fi
    rm -rf "$step_work/lists"
    mkdir -p "$step_work/lists/partial"
    echo "deb [trusted=yes] file:$apt_store ./" > "$step_work/sources.list"
    cp "$step_work/index" "$apt_store/Packages"
    apt_get -o Dir::Etc::sourcelist="$step_work/sources.list" -o Dir::Etc::sourceparts=/dev/null update || return
    apt_get -o Dir::Etc::sourcelist="$step_work/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        install -y --no-install-recommends "$@" || return
    rm -f "$apt_store/Packages"
    if [ -f "$apt_record" ]; then cat "$apt_record" >> "$step_work/index"; fi
    apt_sorted < "$step_work/index" > "$step_work/record"
    cp "$step_work/record" "$apt_record"
}

# apt_sorted: the entries of an index, without duplicates, sorted by name
apt_sorted() {
    awk -v RS= '{ gsub("\n", "\001"); print }' | LC_ALL=C sort -u | tr '\001' '\n' | awk '/^Package: / && NR > 1 { print "" } { print }'
}

# apt_choose NAME…: writes the index of the packages to install, in their present versions, and downloads their files
apt_choose() {
    apt_get update || return
    apt_get -s install -y --no-install-recommends "$@" \
        | sed -n 's/^Inst \([^ ]*\) \(\[[^]]*\] \)\{0,1\}(\([^ ]*\) .*/\1=\3/p' > "$step_work/chosen"
    : > "$step_work/index"
    if [ ! -s "$step_work/chosen" ]; then return; fi
    xargs apt-cache -o Dir::State::lists="$step_work/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= \
        show --no-all-versions < "$step_work/chosen" > "$step_work/shown"
    awk '
        /^[^ ]/ {
            keep = /^(Package|Version|Architecture|Multi-Arch|Essential|Priority|Pre-Depends|Depends|Provides|Conflicts|Breaks|Replaces|Filename|Size|SHA256):/
        }
        keep || /^$/ { sub(/^Filename: \.\//, "Filename: "); print }
    ' "$step_work/shown" | apt_sorted > "$step_work/index"
    apt_get install -y --no-install-recommends --download-only "$@" || return
    apt_files | while read -r apt_path apt_size apt_sha256 apt_name; do
        apt_have "$apt_path" "$apt_sha256" && continue
        for apt_file in "$apt_store/archives"/*.deb; do
            if [ "$(stat -c %s "$apt_file")" = "$apt_size" ] && apt_is "$apt_file" "$apt_sha256"; then
                mkdir -p "$apt_store/${apt_path%/*}"
                mv "$apt_file" "$apt_store/$apt_path"
                break
            fi
        done
        apt_have "$apt_path" "$apt_sha256" || { echo "apt did not download $apt_name ($apt_path)" >&2; exit 1; }
    done
}

# apt_files: the path, size, digest and name of each package in the index; refuses a path that leads out of the archive
apt_files() {
    awk -v RS= -F '\n' '{
        for (i = 1; i <= NF; i++) { at = index($i, ": "); value[substr($i, 1, at - 1)] = substr($i, at + 2) }
        print value["Filename"], value["Size"], value["SHA256"], value["Package"] "=" value["Version"]
        delete value
    }' "$step_work/index" | while read -r apt_path apt_more; do
        case /$apt_path in
            */../* | */./* | *[!A-Za-z0-9._+~/:%=-]*) echo "not a path in an archive: $apt_path" >&2; exit 1 ;;
        esac
        echo "$apt_path $apt_more"
    done
}

apt_is() { echo "$2  $1" | sha256sum --check --status 2> /dev/null; }
apt_have() { [ -f "$apt_store/$1" ] && apt_is "$apt_store/$1" "$2"; }

# apt_fetch_recorded: downloads the recorded packages from the image's archives, or from the distribution's snapshot service,
# which keeps packages that the archives have dropped. The first line of the record has the date for the service.
apt_fetch_recorded() {
    sed -e '/^#/d' "$apt_asked" > "$step_work/index"
    apt_date=$(sed -n '1s/^# installed \([0-9]\{8\}T[0-9]\{6\}Z\)$/\1/p' "$apt_asked")
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2> /dev/null \
        | sed -n -e 's/^deb \(\[[^]]*\] *\)\{0,1\}\(http[^ ]*\) .*/\2/p' -e 's/^URIs: *//p' | tr ' ' '\n' \
        | sed 's,/*$,,' | LC_ALL=C sort -u > "$step_work/archives"
    if [ -n "$apt_date" ]; then
        case $(sed -n 's/^ID=//p' /etc/os-release) in
            debian) printf 'https://snapshot.debian.org/archive/%s/'"$apt_date"'\n' debian debian-security ;;
            ubuntu) echo "https://snapshot.ubuntu.com/ubuntu/$apt_date" ;;
        esac >> "$step_work/archives"
    fi
    : > "$step_work/lost"; : > "$step_work/fetched"
    apt_files > "$step_work/files"
    while read -r apt_path apt_size apt_sha256 apt_name; do
        if ! apt_have "$apt_path" "$apt_sha256" && ! apt_fetch "$apt_path" "$apt_sha256" < /dev/null; then
            echo "  $apt_name: $apt_size bytes, sha256:$apt_sha256, ${apt_path##*/}" >> "$step_work/lost"
        fi
    done < "$step_work/files"
    if [ -s "$step_work/lost" ]; then
        echo "The first build of this number installed these packages, which no archive provides now:" >&2
        cat "$step_work/lost" >&2
        echo "Archives: $(tr '\n' ' ' < "$step_work/archives")" >&2
        sed -n 's/^E: Failed to fetch /The last answer: /p' "$step_work/answer" >&2
        exit 1
    fi
}

apt_fetch() {
    mkdir -p "$apt_store/${1%/*}"
    while read -r apt_archive; do
        if /usr/lib/apt/apt-helper -qq -o APT::Sandbox::User=root download-file "$apt_archive/$1" "$apt_store/$1" "SHA256:$2" \
            > "$step_work/fetched" 2>&1 && apt_have "$1" "$2"; then
            return 0
        fi
    done < "$step_work/archives"
    cp "$step_work/fetched" "$step_work/answer"
    rm -f "$apt_store/$1"
    return 1
}
