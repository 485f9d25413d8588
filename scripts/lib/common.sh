# shellcheck shell=bash
# Shared by the scripts of this folder: words to the person, and where Debian packages come from.
# Sourced, not run.

# The caller's name goes before every line, so that a line in a CI log says where it comes from.
say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
warn() { say "warning: $*"; }

# die EXIT-CODE WHAT-HAPPENED [WHAT-TO-DO]...
die() {
  local code=$1
  shift
  say "error: $1"
  shift
  local line
  for line in "$@"; do printf '  %s\n' "$line" >&2; done
  exit "$code"
}

have() { command -v "$1" >/dev/null 2>&1; }
is_root() { [ "$(id -u)" -eq 0 ]; }

# The value of one key of /etc/os-release (ID, VERSION_CODENAME, …), empty where there is none.
os_release() {
  # shellcheck source=/dev/null
  (. /etc/os-release 2>/dev/null && eval "printf '%s' \"\${$1:-}\"") || true
}

# The Debian mirror to use: the person's choice, else the one this machine's own apt uses when it is
# a Debian, else the public one. Debian only: an Ubuntu mirror has no Debian beside it.
debian_mirror() {
  local uri=
  if [ -n "${BUILDER_DEBIAN_MIRROR:-}" ]; then
    uri=$BUILDER_DEBIAN_MIRROR
  elif [ "$(os_release ID)" = debian ]; then
    # indextargets reads both the one-line and the deb822 format. $(REPO_URI) is apt's, not the shell's.
    # shellcheck disable=SC2016
    uri=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 2>/dev/null |
      sed -n '\#/debian/\{0,1\}$#{p;q;}') || true
  fi
  uri=${uri:-http://deb.debian.org/debian}
  printf '%s' "${uri%/}"
}
