# shellcheck shell=bash
# Shared by the scripts in this folder, which source it: messages, and the source of Debian packages.

# Each line begins with the script's name, so that a CI log shows where the line comes from.
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

# The value of a key in /etc/os-release (ID, VERSION_CODENAME, …); empty if it is not set.
os_release() {
  # shellcheck source=/dev/null
  (. /etc/os-release 2>/dev/null && eval "printf '%s' \"\${$1:-}\"") || true
}

# The Debian mirror: the user's choice, or the mirror of this machine's apt, or the public mirror. The second is only for
# Debian, because a mirror of Ubuntu has no packages of Debian.
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
