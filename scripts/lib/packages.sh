# shellcheck shell=bash
# Fetches the engine's packages and unpacks them into $ENGINE_HOME/root. Nothing is installed on the machine. The script
# that sources this file sets ENGINE_HOME and OLDEST_ENGINE. apt compares every package with the distribution's signed
# index, and releases.sh checks the index of a Debian mirror.
#
# On Debian, the engine comes from unstable: Debian 12's docker.io is 20.10 and has no buildx, and unstable's requires only
# libc6 >= 2.34. The other packages come from bookworm, because unstable's require a newer libc.
# On Ubuntu, all packages come from the machine's own sources. Since 22.04, the updates have a current docker.io and
# docker-buildx. 22.04's copy of Debian's keyring is too old for Debian's index.

ENGINE_SUITE=${BUILDER_ENGINE_SUITE:-unstable}
SUPPORT_SUITE=bookworm
# runc, and the programs and libraries for the firewall rules of the default bridge.
SUPPORT=(runc iptables libip4tc2 libip6tc2 libxtables12 libmnl0 libnetfilter-conntrack3 libnfnetlink0 libnftnl11)
DEBIAN_ENGINE=(docker.io containerd docker-cli docker-buildx tini-static)
UBUNTU_ENGINE=(docker.io containerd docker-buildx libnftables1 libjansson4)
# shellcheck source=scripts/lib/releases.sh
. "$HERE/lib/releases.sh"

# The tree is complete if it exists, because the rename into its place is last.
packages_present() { [ -d "$ENGINE_HOME/root" ]; }

# packages_program NAME [TREE]: the path of a program, whose folder depends on the distribution.
packages_program() {
  local folder
  for folder in usr/sbin usr/bin usr/libexec/docker/cli-plugins; do
    if [ -x "${2:-$ENGINE_HOME/root}/$folder/$1" ]; then
      printf '%s' "${2:-$ENGINE_HOME/root}/$folder/$1"
      return
    fi
  done
  die 5 "the packages do not contain $1" "Delete and fetch them: scripts/engine down --purge, then scripts/engine up"
}

# packages_libraries [TREE]
packages_libraries() { printf '%s' "${1:-$ENGINE_HOME/root}"/usr/lib/*-linux-gnu; }

packages_fetch() {
  local tool work=$ENGINE_HOME/fetch
  for tool in apt-get dpkg-deb; do
    have "$tool" || die 5 "this machine has no $tool, so the engine's packages cannot be fetched" \
      "Install Docker $OLDEST_ENGINE or newer with buildx: https://docs.docker.com/engine/install/"
  done
  own_folder "$ENGINE_HOME"
  rm -rf -- "$work"
  apt_private "$work"
  if is_ubuntu; then
    own_sources_update "$work"
    apt_download "$work" "${UBUNTU_ENGINE[@]}" "${SUPPORT[@]}"
  else
    debian_update "$work" "$ENGINE_SUITE" "$SUPPORT_SUITE"
    apt_download "$work" "${DEBIAN_ENGINE[@]/%//$ENGINE_SUITE}" "${SUPPORT[@]/%//$SUPPORT_SUITE}"
  fi
  packages_unpack "$work"
  rm -rf -- "$work"
}

# packages_fetch_program NAME SUITE [UBUNTU-PACKAGE]: fetches the package NAME, and puts its program NAME into $ENGINE_HOME.
packages_fetch_program() {
  local work
  mkdir -p -- "$ENGINE_HOME"
  work=$(mktemp -d "$ENGINE_HOME/fetch.XXXXXX")
  # shellcheck disable=SC2064  # expanded now
  trap "rm -rf -- '$work'" EXIT
  apt_private "$work"
  if is_ubuntu; then
    own_sources_update "$work"
    apt_download "$work" "${3:-$1}"
  else
    debian_update "$work" "$2"
    apt_download "$work" "$1/$2"
  fi
  dpkg-deb -x "$work"/packages/*.deb "$work/tree"
  # A package may have a link to its program. Another process may have put the same program there meanwhile.
  mv -f -- "$(readlink -f -- "$(packages_program "$1" "$work/tree")")" "$ENGINE_HOME/$1"
  rm -rf -- "$work"
  trap - EXIT
}

is_ubuntu() { case " $(os_release ID) $(os_release ID_LIKE) " in *" ubuntu "*) ;; *) return 1 ;; esac; }

# An apt with its own lists and cache in a folder, which changes nothing on the machine. It reads the machine's apt.conf.d
# for proxies, but runs none of its hooks.
apt_private() {
  mkdir -p "$1/lists/partial" "$1/cache/archives/partial" "$1/packages"
  # apt downloads as the user _apt, which must be able to write to these folders.
  chmod 755 "$1"
  if is_root && id _apt >/dev/null 2>&1; then chown _apt "$1/lists/partial" "$1/cache/archives/partial" "$1/packages"; fi
  cat >"$1/apt.conf" <<EOF
Dir::State::Lists "$1/lists";
Dir::Cache "$1/cache";
Acquire::Languages "none";
Acquire::Retries "2";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowWeakRepositories "false";
Acquire::AllowDowngradeToInsecureRepositories "false";
APT::Get::AllowUnauthenticated "false";
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
EOF
}

own_sources_update() {
  say "reading the package index (this machine's package sources)"
  apt_update "$1" || apt_failed "$1" "the package index"
}

# debian_update WORK SUITE...: reads only the indexes of these suites.
debian_update() {
  local work=$1 mirror suite sources=()
  shift
  mirror=$(debian_mirror)
  for suite in "$@"; do sources+=("$mirror $suite"); done
  apt_of_debian "$work"
  say "reading the package index ($mirror)"
  releases_read "$work" "${sources[@]}"
}

# Hides the machine's own sources, preferences and packages from the private apt.
apt_of_debian() {
  : >"$1/status"
  cat >>"$1/apt.conf" <<CONF
Dir::Etc::SourceList "$1/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State::status "$1/status";
CONF
}

# Fails if an index is refused. An index that cannot be read is only a warning, and the download then reports what is missing.
apt_update() { LC_ALL=C.UTF-8 apt-get -c "$1/apt.conf" -q update >"$1/update.log" 2>&1; }

apt_download() {
  local work=$1 mb
  shift
  mb=$(cd "$work/packages" && LC_ALL=C.UTF-8 apt-get -c "$work/apt.conf" download --print-uris "$@" 2>"$work/download.log" |
    awk '{ sum += $3 } END { printf "%d", sum / 1000000 + 0.5 }') || apt_failed "$work" "${*%%/*}"
  say "fetching ${*%%/*} ($mb MB)"
  (cd "$work/packages" && LC_ALL=C.UTF-8 apt-get -c "$work/apt.conf" -q download "$@") >"$work/download.log" 2>&1 || apt_failed "$work" "${*%%/*}"
}

apt_failed() {
  local refusal
  refusal=$(apt_refusal "$1"/*.log)
  if [ -n "$refusal" ]; then refuse "$refusal"; fi
  say "the last lines from apt:"
  cat "$1"/*.log | grep -E '^(Err|[EW]):' | tail -n 8 | sed 's/^/  /' >&2 || true
  die 5 "$2 could not be fetched" \
    "Check that the package mirrors can be reached. Another Debian mirror: BUILDER_DEBIAN_MIRROR=http://… scripts/engine up" \
    "Or install Docker $OLDEST_ENGINE or newer with buildx yourself: https://docs.docker.com/engine/install/"
}

packages_unpack() {
  local work=$1 file tree=$ENGINE_HOME/root.new
  say "unpacking"
  rm -rf -- "$tree"
  mkdir -p "$tree"
  for file in "$work"/packages/*.deb; do dpkg-deb -x "$file" "$tree"; done
  packages_try "$tree"
  rm -rf -- "$ENGINE_HOME/root"
  mv "$tree" "$ENGINE_HOME/root"
}

# Runs each program once: today's packages may require a newer libc, or be too old.
packages_try() {
  local tree=$1 name program output hint="Try another release: BUILDER_ENGINE_SUITE=trixie scripts/engine up"
  for name in containerd runc docker docker-buildx dockerd; do
    program=$(packages_program "$name" "$tree")
    output=$(LD_LIBRARY_PATH=$(packages_libraries "$tree") "$program" --version 2>&1) ||
      output=$("$program" version 2>&1) || die 5 "this $name does not run on this machine: $output" "$hint"
  done
  output=${output#Docker version }
  new_enough "$output" || die 5 "the packages contain Docker ${output%%,*}; $OLDEST_ENGINE or newer is required" \
    "Ubuntu: add the release's updates and universe to the package sources. Debian: $hint"
}

# Paths that do not depend on the layout of the packages.
packages_links() {
  local buildx
  own_folder "$ENGINE_HOME"
  mkdir -p "$ENGINE_HOME/bin"
  buildx=$(packages_program docker-buildx)
  ln -sfn "..${buildx#"$ENGINE_HOME"}" "$ENGINE_HOME/bin/docker-buildx"
  docker_wrapper >"$ENGINE_HOME/bin/docker.new"
  chmod 755 "$ENGINE_HOME/bin/docker.new"
  mv -f "$ENGINE_HOME/bin/docker.new" "$ENGINE_HOME/bin/docker"
}

# bin/docker is a wrapper, because docker finds plugins only in $DOCKER_CONFIG/cli-plugins (the user's ~/.docker) and in
# folders of the system. `docker buildx …` runs the plugin's binary, which also works without docker. `docker build` and
# `docker builder` are commands of buildx, too. All other commands go to the client.
docker_wrapper() {
  cat <<EOF
#!/bin/sh
# The private engine's docker client, with buildx. Written by scripts/engine up.
home="$ENGINE_HOME"
case "\${1:-}" in
  buildx | builder) shift; exec "\$home/bin/docker-buildx" "\$@" ;;
  build) exec "\$home/bin/docker-buildx" "\$@" ;;
esac
exec "$(packages_program docker)" "\$@"
EOF
}
