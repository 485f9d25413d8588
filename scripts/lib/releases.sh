# shellcheck shell=bash
# Checks the index of a Debian mirror: the archive's keys must have signed it, it must be of the requested suite, and no newer
# index may have been seen before. apt itself checks signatures, expiry, and the hash of every file, but only warns of
# another suite. packages.sh sources this file.

DEBIAN_KEYRING=${BUILDER_DEBIAN_KEYRING:-/usr/share/keyrings/debian-archive-keyring.gpg}
# Set by releases_read: the options of the mirror in apt's list of sources.
MIRROR_OPTIONS=

# releases_read WORK "MIRROR SUITE"...: makes apt read only these indexes, and checks them.
releases_read() {
  local work=$1 source trusting lacks=
  shift
  trusting=$(trusting_file "$@")
  if ! [ -r "$DEBIAN_KEYRING" ]; then lacks=debian-archive-keyring; fi
  if ! have gpgv && ! have sqv; then lacks="gpgv${lacks:+ $lacks}"; fi
  MIRROR_OPTIONS="signed-by=$DEBIAN_KEYRING"
  releases_sources "$work" "$@"
  if [ -n "$lacks" ] && [ -z "$trusting" ]; then
    die 5 "signatures of Debian's packages cannot be checked on this machine: it has no $lacks" "apt-get install $lacks"
  fi
  if [ -n "$lacks" ] || ! apt_update "$work"; then
    [ -n "$trusting" ] || apt_failed "$work" "the package index"
    # If the error has another cause than the signature, the second try fails as well.
    warn "the packages are not checked: this machine's apt trusts its mirror without a signature ($trusting)"
    MIRROR_OPTIONS=trusted=yes
    releases_sources "$work" "$@"
    apt_update "$work" || apt_failed "$work" "the package index"
  fi
  for source in "$@"; do release_check "$work" "${source% *}" "${source#* }"; done
}

releases_sources() {
  local work=$1 source
  shift
  for source in "$@"; do printf 'deb [%s] %s main\n' "$MIRROR_OPTIONS" "$source"; done >"$work/sources.list"
}

# The file in which this machine's apt trusts the mirrors of all these sources without a signature; empty if there is none.
trusting_file() {
  local source file='' LIST='' PARTS=''
  eval "$(apt-config shell LIST Dir::Etc::SourceList/f PARTS Dir::Etc::SourceParts/d)"
  for source in "$@"; do
    for file in "$LIST" "$PARTS"*.list "$PARTS"*.sources; do
      if [ -r "$file" ] && trusted_in "$file" | grep -qxF -- "${source% *}"; then continue 2; fi
    done
    return
  done
  printf '%s' "$file"
}

# The trusted mirrors in a list of sources, in both of apt's formats.
trusted_in() {
  case $1 in
    *.sources) awk -v RS= -F '\n' '
      {
        mirrors = ""; trusted = 0
        for (i = 1; i <= NF; i++) {
          key = tolower($i); value = $i
          sub(/:.*/, "", key); sub(/^[^:]*:[ \t]*/, "", value)
          if (key == "uris") mirrors = value
          if (key == "trusted" && tolower(value) ~ /^yes[ \t]*$/) trusted = 1
        }
        if (trusted) { gsub(/[ \t]+/, "\n", mirrors); print mirrors }
      }' "$1" ;;
    *) sed -nE 's/^[[:space:]]*deb[[:space:]]+\[([^]]*[[:space:]])?trusted=yes([[:space:]][^]]*)?\][[:space:]]+([^[:space:]]+).*/\3/p' "$1" ;;
  esac | sed 's#/*$##'
}

# release_check WORK MIRROR SUITE
release_check() {
  local work=$1 mirror=$2 suite=$3 file names date seen expires
  file=$(release_file "$work/lists" "$suite")
  if [ -z "$file" ]; then
    [ "$MIRROR_OPTIONS" = trusted=yes ] || refuse "$mirror has no signed index of $suite"
    return
  fi
  names=$(sed -nE 's/^(Suite|Codename): *//p' "$file" | sort -ru | paste -s -d ' ')
  case " $names " in
    *" $suite "*) ;;
    *) refuse "$mirror serves the index of ${names:-no suite} as $suite" ;;
  esac
  date=$(release_date "$file" Date)
  seen=$(seen_date "$suite" "${file##*/}")
  if [ "$date" -lt "$seen" ]; then
    refuse "the index of $suite at $mirror is from $(day "$date"), older than the earlier one from $(day "$seen")" \
      "If the mirror only lags behind, try again in some hours."
  fi
  expires=$(release_date "$file" Valid-Until)
  if [ "$expires" -gt 0 ] && [ "$expires" -lt "$(date +%s)" ]; then
    warn "the index of $suite at $mirror has expired ($(day "$expires")), and this machine's apt accepts that (Acquire::Check-Valid-Until)"
  fi
  note_date "$suite" "$date"
}

# The index of a suite in a folder of apt's lists.
release_file() {
  local file
  for file in "$1"/*_dists_"$2"_InRelease "$1"/*_dists_"$2"_Release; do
    if [ -f "$file" ]; then
      printf '%s' "$file"
      return
    fi
  done
}

# release_date FILE KEY: in seconds since 1970; 0 if the index has no such date.
release_date() {
  local text
  text=$(sed -n "s/^$2: *//p" "$1" | head -n 1)
  if [ -z "$text" ] || ! date -u -d "$text" +%s 2>/dev/null; then echo 0; fi
}

day() { date -u -d "@$1" '+%Y-%m-%d %H:%M UTC'; }

# seen_date SUITE FILE: the date of the newest index of a suite that was used before, or that this machine's apt has.
seen_date() {
  local suite=$1 LISTS='' newest own
  newest=$(awk -v suite="$suite" '$1 == suite { date = $2 } END { print date + 0 }' "$(seen_file)" 2>/dev/null) || newest=0
  eval "$(apt-config shell LISTS Dir::State::Lists/d)"
  if [ -r "$LISTS$2" ]; then
    own=$(release_date "$LISTS$2" Date)
    if [ "$own" -gt "$newest" ]; then newest=$own; fi
  fi
  printf '%s' "$newest"
}

# The file is beside ENGINE_HOME, because `down --purge` deletes that folder.
seen_file() { printf '%s.releases' "$ENGINE_HOME"; }

note_date() {
  local file
  file=$(seen_file)
  { grep -v "^$1 " "$file" 2>/dev/null || true; echo "$1 $2"; } >"$file.new"
  mv -f -- "$file.new" "$file"
}

# refuse WHAT [WHAT-TO-DO]...
refuse() {
  local what=$1
  shift
  die 5 "refused: $what" "Nothing was used. The mirror is damaged or out of date, or someone changes its answers on the way." \
    "$@" "To use another mirror: BUILDER_DEBIAN_MIRROR=http://…"
}

# apt_refusal LOG...: what apt refused, and why; empty if apt could only not fetch something.
apt_refusal() {
  local index='(.+) (In)?Release' first
  first=$(sed -nE \
    -e "s#^W: GPG error: $index: .*NO_PUBKEY.*#no key in $DEBIAN_KEYRING signed the index of \1#p" \
    -e "s#^W: GPG error: $index: (.*)#the index of \1 has no valid signature: \3#p" \
    -e "s#^E: The repository '$index' is not signed\..*#the index of \1 is not signed#p" \
    -e 's#^E: Release file for (\S+) is (expired|not valid yet) \(([^)]*)\).*#\1 is \2 (\3)#p' \
    -e 's#^E: Failed to fetch (\S+)  (Hash Sum mismatch|File has unexpected size \([^)]*\)).*#\1 differs from the signed index: \2#p' \
    "$@")
  printf '%s' "${first%%$'\n'*}"
}
