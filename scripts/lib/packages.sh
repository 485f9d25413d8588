# shellcheck shell=bash
# Fetches the engine's packages and unpacks them into $ENGINE_HOME/root, without installing anything
# on the machine. Sourced by scripts/engine, which sets ENGINE_HOME.
#
# Why Debian unstable: Debian 12's own docker.io is 20.10 and has no buildx, Ubuntu's varies with the
# release, and Debian unstable's is current and asks only for libc6 >= 2.34 (Debian 12, Ubuntu 22.04).
# The small rest (runc, iptables and its libraries) comes from bookworm, because unstable's ask for a newer libc.
# All of it is checked by apt against the signed index.

ENGINE_SUITE=${BUILDER_ENGINE_SUITE:-unstable}
SUPPORT_SUITE=bookworm
ENGINE_PACKAGES=(docker.io containerd docker-cli docker-buildx tini-static)
SUPPORT_PACKAGES=(runc iptables libip4tc2 libip6tc2 libxtables12 libmnl0 libnetfilter-conntrack3 libnfnetlink0 libnftnl11)
MACHINE_KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

# True when a whole tree has been unpacked: it is renamed into place last.
packages_present() { [ -x "$ENGINE_HOME/root/usr/sbin/dockerd" ]; }

packages_fetch() {
  local tool work
  for tool in apt-get dpkg dpkg-deb; do
    have "$tool" || die 5 "this machine has no $tool, so the engine's packages cannot be fetched" \
      "Install Docker 23 or newer with buildx: https://docs.docker.com/engine/install/"
  done
  own_folder "$ENGINE_HOME"
  work=$ENGINE_HOME/fetch
  rm -rf -- "$work"
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/packages"
  apt_may_write "$work/lists/partial" "$work/cache/archives/partial" "$work/packages"

  apt_configure "$work"
  # First the support packages, with Debian's current keyring among them: the keyring of an older
  # Ubuntu knows bookworm's keys but not the ones that sign unstable today.
  apt_source "$work" "$SUPPORT_SUITE" "$(first_keyring "$work")"
  apt_download "$work" "$SUPPORT_SUITE" debian-archive-keyring "${SUPPORT_PACKAGES[@]}"
  unpack debian-archive-keyring "$work" "$work/keyring"
  apt_source "$work" "$ENGINE_SUITE" "$work/keyring$MACHINE_KEYRING"
  apt_download "$work" "$ENGINE_SUITE" "${ENGINE_PACKAGES[@]}"

  packages_unpack "$work"
  rm -rf -- "$work"
}

# Names that stay the same whatever the packages' layout. bin/docker is not a link to the client: see `docker_wrapper`.
packages_links() {
  own_folder "$ENGINE_HOME"
  mkdir -p "$ENGINE_HOME/bin"
  ln -sfn ../root/usr/libexec/docker/cli-plugins/docker-buildx "$ENGINE_HOME/bin/docker-buildx"
  docker_wrapper >"$ENGINE_HOME/bin/docker.new"
  chmod 755 "$ENGINE_HOME/bin/docker.new"
  mv -f "$ENGINE_HOME/bin/docker.new" "$ENGINE_HOME/bin/docker"
}

# docker looks for plugins in $DOCKER_CONFIG/cli-plugins (the person's ~/.docker) and in folders of the system, and
# has no variable to name another. So `docker buildx …` goes to the plugin's binary, which is a program of its own
# as well, and everything else to the client. `docker build` and `docker builder` are buildx's wherever docker has it.
docker_wrapper() {
  cat <<EOF
#!/bin/sh
# The private engine's docker client, with buildx. Written by scripts/engine.
root="$ENGINE_HOME/root"
case "\${1:-}" in
  buildx | builder) shift; exec "\$root/usr/libexec/docker/cli-plugins/docker-buildx" "\$@" ;;
  build) exec "\$root/usr/libexec/docker/cli-plugins/docker-buildx" "\$@" ;;
esac
exec "\$root/usr/bin/docker" "\$@"
EOF
}

# apt downloads as the user _apt, who has to be able to write into these folders.
apt_may_write() {
  if id _apt >/dev/null 2>&1; then chown _apt "$@"; fi
}

# A private apt: its own sources, lists and cache. The machine's apt.conf.d still counts, for its proxies.
apt_configure() {
  local work=$1
  : >"$work/status"
  cat >"$work/apt.conf" <<EOF
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State::Lists "$work/lists";
Dir::State::status "$work/status";
Dir::Cache "$work/cache";
Acquire::Languages "none";
Acquire::Retries "2";
Acquire::AllowInsecureRepositories "false";
APT::Get::AllowUnauthenticated "false";
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
EOF
}

apt_source() {
  local work=$1 suite=$2 keyring=$3
  printf 'deb [signed-by=%s] %s %s main\n' "$keyring" "$(debian_mirror)" "$suite" >"$work/sources.list"
}

# Updates the index of one suite and downloads packages of it into WORK/packages.
apt_download() {
  local work=$1 suite=$2 log=$1/apt.log mb
  shift 2
  say "reading the package index of Debian $suite ($(debian_mirror))"
  # Without Error-Mode a failed download is only a warning to `apt-get update`.
  apt-get -c "$work/apt.conf" -q -o APT::Update::Error-Mode=any update >"$log" 2>&1 || apt_failed "$log" "the package index of Debian $suite"
  mb=$(cd "$work/packages" && apt-get -c "$work/apt.conf" download --print-uris "$@" 2>"$log" |
    awk '{ sum += $3 } END { printf "%d", sum / 1000000 + 0.5 }') || apt_failed "$log" "the list of packages ($*)"
  say "fetching $* (${mb:-0} MB)"
  (cd "$work/packages" && apt-get -c "$work/apt.conf" -q download "$@") >"$log" 2>&1 || apt_failed "$log" "$*"
}

apt_failed() {
  say "the last lines from apt:"
  tail -n 8 "$1" | sed 's/^/  /' >&2
  die 5 "could not fetch $2" \
    "Is the mirror reachable ($(debian_mirror))? Another one: BUILDER_DEBIAN_MIRROR=http://… ${0##*/} up" \
    "Or install Docker 23 or newer with buildx yourself: https://docs.docker.com/engine/install/"
}

# The keyring to begin with: the machine's; where there is none (Ubuntu), the one in its own signed archive.
first_keyring() {
  local work=$1
  if [ ! -r "$MACHINE_KEYRING" ]; then
    say "fetching debian-archive-keyring from this machine's own package archive"
    mkdir -p "$work/first-keyring"
    apt_may_write "$work/first-keyring"
    (
      cd "$work/first-keyring"
      { apt-get download debian-archive-keyring || { apt-get update && apt-get download debian-archive-keyring; }; } >"$work/apt.log" 2>&1
    ) || apt_failed "$work/apt.log" "debian-archive-keyring, which holds the keys that Debian's packages are signed with"
    dpkg-deb -x "$work/first-keyring"/debian-archive-keyring_*.deb "$work/first-keyring/root"
    printf '%s' "$work/first-keyring/root$MACHINE_KEYRING"
    return
  fi
  printf '%s' "$MACHINE_KEYRING"
}

# unpack PACKAGE WORK TREE
unpack() { dpkg-deb -x "$2/packages/$1"_*.deb "$3"; }

packages_unpack() {
  local work=$1 name tree=$ENGINE_HOME/root.new
  say "unpacking"
  rm -rf -- "$tree"
  mkdir -p "$tree"
  for name in "${ENGINE_PACKAGES[@]}" "${SUPPORT_PACKAGES[@]}"; do unpack "$name" "$work" "$tree"; done
  # A package of the future may need a newer libc than this machine has: say so now, not at start.
  local binary output
  for binary in usr/sbin/dockerd usr/bin/containerd usr/sbin/runc usr/bin/docker usr/libexec/docker/cli-plugins/docker-buildx; do
    output=$("$tree/$binary" --version 2>&1) || output=$("$tree/$binary" version 2>&1) ||
      die 5 "${binary##*/} of Debian $ENGINE_SUITE does not run on this machine: $output" \
        "Try an older one: BUILDER_ENGINE_SUITE=trixie ${0##*/} up"
  done
  rm -rf -- "$ENGINE_HOME/root"
  mv "$tree" "$ENGINE_HOME/root"
}
