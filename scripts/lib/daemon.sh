# shellcheck shell=bash
# Starts and stops the private engine. Sourced by scripts/engine, which sets ENGINE_HOME, ENGINE_RUN and
# ENGINE_SOCKET.

DAEMON_WAIT=180     # seconds until the daemon answers; after a crash it first checks all its containers
DAEMON_TRIES=5      # starts of the daemon if its containerd is late
DAEMON_STOP_WAIT=40 # seconds until the daemon has ended its containers and itself

daemon_version() {
  [ -S "$ENGINE_SOCKET" ] || return 1
  timeout 10 "$(packages_program docker)" -H "unix://$ENGINE_SOCKET" version --format '{{.Server.Version}}' 2>/dev/null
}

# daemon_processes [PROGRAM]: the processes of this engine, which are programs of the unpacked tree that name this engine's
# run folder. Unlike pid files, this also finds them after a crash, and never finds another process.
daemon_processes() {
  local exe dir
  # find fails if a process ends during the search.
  { find /proc -mindepth 2 -maxdepth 2 -path '/proc/[0-9]*/exe' -lname "$ENGINE_HOME/root/*/${1:-}*" 2>/dev/null || true; } |
    while IFS= read -r exe; do
      dir=${exe%/exe}
      if tr '\0' ' ' <"$dir/cmdline" 2>/dev/null | grep -qF -- "$ENGINE_RUN/"; then printf '%s\n' "${dir#/proc/}"; fi
    done
}

daemon_start() {
  local running
  running=$(daemon_processes dockerd)
  if [ -n "$running" ]; then
    # dockerd is very busy, or still starting after an interrupted `up`. It may run a build of hours, so it is not killed.
    say "dockerd is running (process $running), waiting for it to answer"
    daemon_answers "$running" || daemon_failed "$running" "$ENGINE_HOME/log/dockerd.log"
    return
  fi
  other_engine
  own_folder "$ENGINE_RUN"
  mkdir -p "$ENGINE_HOME/data" "$ENGINE_HOME/log"
  daemon_write_files
  local network=("--mtu=$(uplink_mtu)")
  if [ "$ENGINE_BRIDGE" != docker0 ]; then
    bridge_add
    network+=("--bridge=$ENGINE_BRIDGE" --iptables=false --ip6tables=false)
  fi
  local log=$ENGINE_HOME/log/dockerd.log try
  if [ -f "$log" ]; then mv -f "$log" "$log.1"; fi
  for ((try = 1; ; try++)); do
    say "starting dockerd"
    daemon_clear_stale
    daemon_launch "$log" "${network[@]}"
    if daemon_answers "$DAEMON"; then return; fi
    # dockerd gives its containerd 15 seconds. A busy disk takes longer, and so does a killed containerd that still has its
    # database open.
    if [ "$try" -ge "$DAEMON_TRIES" ] || ! tail -n 3 "$log" | grep -q "timeout waiting for containerd"; then break; fi
    if grep -q "containerd did not exit successfully" "$log"; then break; fi # not late; the log has its error
    say "containerd was not ready after 15 seconds; trying again"
  done
  daemon_failed "$DAEMON" "$log"
}

# daemon_launch LOG NETWORK-OPTION...: starts dockerd in the background, and sets DAEMON to its process.
daemon_launch() {
  local dockerd log=$1
  shift
  dockerd=$(packages_program dockerd)
  # --group: only root may use the socket. This machine's group \`docker\` is for the machine's own engine.
  (
    # The daemon must not keep the caller's open files: make's job server, a test's pipes, this script's lock.
    for fd in /proc/self/fd/*; do
      fd=${fd##*/}
      if [ "$fd" -gt 2 ] && [ "$fd" -ne 255 ]; then eval "exec $fd>&-"; fi
    done
    unset DOCKER_HOST DOCKER_CONTEXT DOCKER_CONFIG
    # By default, BuildKit truncates a step's log at 2 MiB. A compilation of vLLM writes more.
    export BUILDKIT_STEP_LOG_MAX_SIZE=-1 BUILDKIT_STEP_LOG_MAX_SPEED=-1
    # Ubuntu's dockerd requires a library that this machine may not have.
    if ! "$dockerd" --version >/dev/null 2>&1; then
      LD_LIBRARY_PATH=$(packages_libraries)
      export LD_LIBRARY_PATH
    fi
    cd /
    exec setsid env PATH="$ENGINE_HOME/sbin:$ENGINE_HOME/root/usr/sbin:$ENGINE_HOME/root/usr/bin:$PATH:/usr/sbin:/sbin" "$dockerd" \
      --config-file "$ENGINE_HOME/daemon.json" \
      --data-root "$ENGINE_HOME/data" \
      --exec-root "$ENGINE_RUN/exec" \
      --pidfile "$ENGINE_RUN/dockerd.pid" \
      --host "unix://$ENGINE_SOCKET" \
      --group root \
      "$@" </dev/null >>"$log" 2>&1
  ) &
  DAEMON=$!
}

# Succeeds for a dockerd that does not use docker0, such as a further engine of this script.
has_bridge_of_its_own() {
  tr '\0' '\n' <"/proc/$1/cmdline" | grep '^--bridge=' | grep -qv '^--bridge=docker0$'
}

# Two engines on docker0 would overwrite each other's addresses and firewall rules without an error.
other_engine() {
  local comm pid
  if [ "$ENGINE_BRIDGE" != docker0 ]; then return; fi
  for comm in /proc/[0-9]*/comm; do
    pid=${comm#/proc/}
    pid=${pid%/comm}
    if [ "$(cat "$comm" 2>/dev/null)" = dockerd ] && is_alive "$pid" &&
      [ "$(readlink "/proc/$pid/ns/net")" = "$(readlink /proc/self/ns/net)" ] && ! has_bridge_of_its_own "$pid"; then
      die 5 "another Docker engine runs on this machine (process $pid) and uses the bridge docker0" \
        "Use that engine (check DOCKER_HOST and the docker client), or stop it." \
        "For a second engine, set BUILDER_ENGINE_BRIDGE, BUILDER_ENGINE_HOME and BUILDER_ENGINE_RUN."
    fi
  done
}

# With --bridge=none, dockerd deletes docker0, even if another engine uses it. So this engine gets a bridge of its own.
bridge_add() {
  have ip || die 5 "the program \`ip\`, which makes the bridge $ENGINE_BRIDGE, is not installed" "apt-get install iproute2"
  if [ ! -e "/sys/class/net/$ENGINE_BRIDGE" ]; then
    ip link add name "$ENGINE_BRIDGE" type bridge || bridge_failed
    : >"$ENGINE_RUN/bridge-$ENGINE_BRIDGE" # so that `down` deletes the bridge
    ip address add "$ENGINE_ADDRESS" dev "$ENGINE_BRIDGE" || bridge_failed
    ip link set "$ENGINE_BRIDGE" up
  fi
}

bridge_failed() {
  die 5 "the bridge $ENGINE_BRIDGE could not be made with the address $ENGINE_ADDRESS" \
    "Choose another name (at most 15 characters) and address: BUILDER_ENGINE_BRIDGE, BUILDER_ENGINE_ADDRESS."
}

bridge_delete() {
  local file
  for file in "$ENGINE_RUN"/bridge-*; do
    if [ -e "$file" ]; then ip link delete "${file##*/bridge-}" || warn "could not delete the bridge ${file##*/bridge-}"; fi
  done
}

# The MTU of the default route, at most Docker's default of 1500. In clouds and VPNs it is often smaller, and connections of
# containers with larger packets hang with some hosts.
uplink_mtu() {
  local device mtu=
  device=$(awk '$2 == "00000000" { print $1; exit }' /proc/net/route 2>/dev/null) || true
  if [ -n "$device" ]; then mtu=$(cat "/sys/class/net/$device/mtu" 2>/dev/null) || true; fi
  if [ -n "$mtu" ] && [ "$mtu" -lt 1500 ]; then printf '%s' "$mtu"; else printf 1500; fi
}

# daemon_answers PID: waits for the daemon's answer; fails if the daemon ended or took too long.
daemon_answers() {
  local end=$((SECONDS + DAEMON_WAIT))
  until daemon_version >/dev/null; do
    if ! is_alive "$1" || [ "$SECONDS" -ge "$end" ]; then return 1; fi
    sleep 0.1
  done
}

# daemon_failed PID LOG
daemon_failed() {
  local what="dockerd ended while starting"
  if is_alive "$1"; then what="dockerd does not answer after $DAEMON_WAIT seconds"; fi
  say "the last lines of $2:"
  tail -n 15 "$2" | sed 's/^/  /' >&2
  die 5 "$what" "Stop what is left of it, then try again: scripts/engine down"
}

# After a crash or a reboot, the pid files may contain the ids of other programs. dockerd would refuse to start, or wait for
# these programs.
daemon_clear_stale() {
  local file pid
  for file in "$ENGINE_RUN/dockerd.pid" "$ENGINE_RUN/exec/containerd/containerd.pid"; do
    [ -f "$file" ] || continue
    pid=$(cat "$file")
    if ! daemon_processes | grep -qx -- "${pid:-none}"; then rm -f -- "$file"; fi
  done
  rm -f -- "$ENGINE_SOCKET"
}

daemon_write_files() {
  # /etc/docker/daemon.json belongs to the user's own engine. New installations of Docker use the containerd image store.
  local containerd=true
  if [ -n "${BUILDER_ENGINE_CLASSIC:-}" ]; then containerd=false; fi
  # If less than a fifth of the disk is free, BuildKit deletes its build cache down to the reserved space. By default it
  # keeps the record of each build for two days, and containerd reads all records when an image is removed. After thousands
  # of builds, as in tests, each removal took half a second.
  local keep='{"gc": {"enabled": true, "defaultReservedSpace": "40GB"}, "history": {"maxAge": "1h", "maxEntries": 50}}'
  printf '%s\n' "{\"features\": {\"containerd-snapshotter\": $containerd}, \"builder\": $keep}" >"$ENGINE_HOME/daemon.json"
  # dockerd calls iptables by name. The machine's own iptables comes first, because it made the other rules.
  rm -rf -- "$ENGINE_HOME/sbin"
  mkdir -p "$ENGINE_HOME/sbin"
  if PATH=$PATH:/usr/sbin:/sbin have iptables; then return; fi
  local backend=nft name
  if ! unpacked_iptables iptables-nft -t nat -L -n >/dev/null 2>&1 &&
    unpacked_iptables iptables-legacy -t nat -L -n >/dev/null 2>&1; then backend=legacy; fi
  for name in iptables ip6tables; do
    cat >"$ENGINE_HOME/sbin/$name" <<EOF
#!/bin/sh
# The unpacked $name with its own libraries. Nothing is installed on this machine.
export LD_LIBRARY_PATH="$(packages_libraries)" XTABLES_LIBDIR="$(packages_libraries)/xtables"
exec "$(packages_program "$name-$backend")" "\$@"
EOF
    chmod 755 "$ENGINE_HOME/sbin/$name"
  done
}

unpacked_iptables() {
  local name=$1
  shift
  LD_LIBRARY_PATH=$(packages_libraries) XTABLES_LIBDIR=$(packages_libraries)/xtables "$(packages_program "$name")" "$@"
}

# end_process PID SECONDS: sends SIGTERM, and SIGKILL after the seconds.
end_process() {
  local pid=$1 end=$((SECONDS + $2))
  kill -TERM "$pid" 2>/dev/null || return 0
  while is_alive "$pid"; do
    if [ "$SECONDS" -ge "$end" ]; then
      kill -KILL "$pid" 2>/dev/null || true
      return 0
    fi
    sleep 0.1
  done
}

# `kill -0` also succeeds for a zombie, which may stay forever.
is_alive() {
  local state
  state=$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null) || return 1
  [ -n "$state" ] && [ "$state" != Z ]
}

daemon_stop() {
  local pid child
  for pid in $(daemon_processes dockerd); do end_process "$pid" "$DAEMON_STOP_WAIT"; done
  # A killed dockerd leaves its containers (the shims' children), its shims and containerd.
  for pid in $(daemon_processes containerd-shim); do
    for child in $(<"/proc/$pid/task/$pid/children"); do end_process "$child" 3; done
    end_process "$pid" 3
  done
  for pid in $(daemon_processes); do end_process "$pid" 5; done
  bridge_delete
  unmount_below "$ENGINE_RUN"
  unmount_below "$ENGINE_HOME/data"
}

unmount_below() {
  local target
  # Innermost first. /proc/self/mounts writes a space in a path as \040.
  sort -r -k 2,2 /proc/self/mounts | while read -r _ target _; do
    target=${target//\\040/ }
    case $target in "$1" | "$1"/*) umount -l -- "$target" || warn "could not unmount $target" ;; esac
  done
}
