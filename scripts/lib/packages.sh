# shellcheck shell=bash
# Fetches the engine's packages and unpacks them into $ENGINE_HOME/root, without installing anything
# on the machine. Sourced by scripts/engine, which sets ENGINE_HOME and OLDEST_ENGINE. apt checks every package
# against the distribution's signed index, and releases.sh the index of a Debian mirror.
#
# Debian: from unstable, since Debian 12's own docker.io is 20.10 and has no buildx; unstable's asks only for
# libc6 >= 2.34. The small rest comes from bookworm, because unstable's asks for a newer libc.
# Ubuntu: from the machine's own sources; 22.04 and later have a current docker.io and docker-buildx in their updates,
# and 22.04's copy of Debian's keyring is too old for Debian's index.

ENGINE_SUITE=${BUILDER_ENGINE_SUITE:-unstable}
SUPPORT_SUITE=bookworm
# runc, and what the default bridge's firewall rules are made with.
SUPPORT=(runc iptables libip4tc2 libip6tc2 libxtables12 libmnl0 libnetfilter-conntrack3 libnfnetlink0 libnftnl11)
DEBIAN_ENGINE=(docker.io containerd docker-cli docker-buildx tini-static)
UBUNTU_ENGINE=(docker.io containerd docker-buildx libnftables1 libjansson4)
# shellcheck source=scripts/lib/releases.sh
. "$HERE/lib/releases.sh"

# True when a whole tree has been unpacked: it is renamed into place last.
packages_present() { [ -d "$ENGINE_HOME/root" ]; }

# packages_program NAME [TREE]: the path of a program; distributions put them in different folders.
packages_program() {
  local folder
  for folder in usr/sbin usr/bin usr/libexec/docker/cli-plugins; do
    if [ -x "${2:-$ENGINE_HOME/root}/$folder/$1" ]; then
      printf '%s' "${2:-$ENGINE_HOME/root}/$folder/$1"
      return
    fi
  done
  die 5 "the packages do not contain $1" "scripts/engine down --purge deletes them, up fetches them again"
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
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/packages"
  # apt downloads as the user _apt, who has to be able to write there.
  if id _apt >/dev/null 2>&1; then chown _apt "$work/lists/partial" "$work/cache/archives/partial" "$work/packages"; fi
  apt_private "$work"
  case " $(os_release ID) $(os_release ID_LIKE) " in
    *" ubuntu "*)
      ubuntu_update "$work"
      apt_download "$work" "${UBUNTU_ENGINE[@]}" "${SUPPORT[@]}" ;;
    *)
      debian_update "$work" "$ENGINE_SUITE" "$SUPPORT_SUITE"
      apt_download "$work" "${DEBIAN_ENGINE[@]/%//$ENGINE_SUITE}" "${SUPPORT[@]/%//$SUPPORT_SUITE}" ;;
  esac
  packages_unpack "$work"
  rm -rf -- "$work"
}

# An apt with its own lists and cache, so that nothing of the machine's changes. The machine's apt.conf.d still counts,
# for its proxies; its hooks do not.
apt_private() {
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

ubuntu_update() {
  say "reading the package index (this machine's package sources)"
  apt_update "$1" || apt_failed "$1" "the package index"
}

# debian_update WORK SUITE...: reads the indexes of these suites alone.
debian_update() {
  local work=$1 mirror suite sources=()
  shift
  mirror=$(debian_mirror)
  for suite in "$@"; do sources+=("$mirror $suite"); done
  apt_of_debian "$work"
  say "reading the package index ($mirror)"
  releases_read "$work" "${sources[@]}"
}

# The private apt knows nothing of the machine's own sources, choices and packages.
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

# Fails where an index is refused. What could not be read is only a warning; what is missing then shows in the download.
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
  die 5 "could not fetch $2" \
    "Are the package mirrors reachable? Another Debian mirror: BUILDER_DEBIAN_MIRROR=http://… scripts/engine up" \
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

# A package of another day may need a newer libc than this machine has, or be too old: say so now, not at start.
packages_try() {
  local tree=$1 name program output hint="Try another release: BUILDER_ENGINE_SUITE=trixie scripts/engine up"
  for name in containerd runc docker docker-buildx dockerd; do
    program=$(packages_program "$name" "$tree")
    output=$(LD_LIBRARY_PATH=$(packages_libraries "$tree") "$program" --version 2>&1) ||
      output=$("$program" version 2>&1) || die 5 "this $name does not run on this machine: $output" "$hint"
  done
  output=${output#Docker version }
  new_enough "$output" || die 5 "the packages hold Docker ${output%%,*}; $OLDEST_ENGINE or newer is needed" \
    "Ubuntu: are the release's updates and universe among the package sources? Debian: $hint"
}

# Names that stay the same whatever the packages' layout.
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

# Why bin/docker is not a link to the client: docker looks for plugins in $DOCKER_CONFIG/cli-plugins (the person's ~/.docker) and
# in folders of the system, and has no variable to name another. So `docker buildx …` goes to the plugin's binary, which
# is a program of its own as well, and everything else to the client. `build` and `builder` are buildx's wherever docker has it.
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
