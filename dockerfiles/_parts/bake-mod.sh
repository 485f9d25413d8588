#!/bin/sh
# Bakes a mod. The mod's RUN sources this script, calls begin first, and finish last.
#
#   /run/builder/mod     the mod's files, if it has any
#   /run/builder/below   the image below, if it is compared
#   /run/builder/work    memory: the copy of the mod's files in which scripts run, and notes; nothing in it stays

# shellcheck source=dockerfiles/_parts/step.sh
. /run/builder/step.sh
mod_work=$step_work
mod_below=/run/builder/below

fail() {
    printf 'mod %s: %s\n' "$mod_name" "$1" >&2
    shift
    for more in "$@"; do
        if [ -n "$more" ]; then printf '  %s\n' "$more" >&2; fi
    done
    exit 1
}

# find_python: sets mod_python to the Python that has vLLM, else to any Python, else to nothing. An image that was built
# elsewhere may have that Python in a virtual environment outside PATH, which is then added to PATH for the mod's script.
find_python() {
    mod_python=''
    mkdir -p "$mod_work/empty"
    mod_interpreter=$(sed -n '1s/^#! *\([^ ]*\).*/\1/p' "$(command -v vllm || echo /dev/null)" 2> /dev/null || true)
    for mod_candidate in python3 python "${VIRTUAL_ENV:-}/bin/python3" "$mod_interpreter" /opt/venv/bin/python3 \
        /app/.venv/bin/python3 /workspace/.venv/bin/python3 /opt/conda/bin/python3 \
        /usr/local/bin/python3 /usr/bin/python3; do
        mod_path=$(command -v "$mod_candidate" || true)
        if [ -z "$mod_path" ]; then continue; fi
        mod_has=$(cd "$mod_work/empty" && "$mod_path" -B -c 'import importlib.util, sys
if sys.version_info > (3,): print(importlib.util.find_spec("vllm") is not None)' 2> /dev/null || true)
        if [ -n "$mod_has" ]; then mod_python=${mod_python:-$mod_path}; fi
        if [ "$mod_has" = True ]; then
            mod_python=$mod_path
            case $mod_candidate in python | python3) return ;; esac
            PATH=${mod_python%/*}:$PATH
            if [ -f "${mod_python%/*}/../pyvenv.cfg" ]; then export VIRTUAL_ENV="${mod_python%/bin/*}"; fi
            return
        fi
    done
}

# run_python ARGUMENT…: runs the image's Python, outside the mod's folder, so that it imports nothing from there
run_python() {
    (cd "$mod_work/empty" && "$mod_python" -B "$@")
}

# find_pip: sets mod_pip to a Python that has pip, not necessarily the one with vLLM; else to nothing
find_pip() {
    mod_pip=''
    for mod_candidate in "$mod_python" python3 /usr/bin/python3 /usr/local/bin/python3; do
        if [ -n "$mod_candidate" ] && (cd "$mod_work/empty" && "$mod_candidate" -B -m pip --version) > /dev/null 2>&1; then
            mod_pip=$mod_candidate
            return
        fi
    done
}

# begin NAME WORKSPACE
begin() {
    mod_name=$1
    mod_workspace=$2
    mod_installs=no
    begin_step
    mkdir -p "$mod_work/mod"
    if [ -d /run/builder/mod ]; then cp -R /run/builder/mod/. "$mod_work/mod"; fi
    # The modes must not depend on the umask of the checkout.
    chmod -R u=rwX,go=rX "$mod_work/mod"
    cd "$mod_work/mod"
    find_python
    # Without a virtual environment, packages are installed system-wide, as mods expect.
    export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore UV_BREAK_SYSTEM_PACKAGES=1
    if [ -z "${VIRTUAL_ENV:-}" ]; then export UV_SYSTEM_PYTHON=1; fi
}

# installed_packages: one NAME==VERSION per line, without the distribution's packages whose versions are invalid in Python
# (1.1build1), because no installer can read those.
installed_packages() {
    run_python - <<'PYTHON'
import importlib.metadata as metadata
import re

VERSION = re.compile(
    r"v?([0-9]+!)?[0-9]+(\.[0-9]+)*([-_.]?(a|b|c|rc|alpha|beta|pre|preview)[-_.]?[0-9]*)?"
    r"(-[0-9]+|[-_.]?(post|rev|r)[-_.]?[0-9]*)?([-_.]?dev[-_.]?[0-9]*)?(\+[a-z0-9]+([-_.][a-z0-9]+)*)?",
    re.IGNORECASE,
)
found = {}
for one in metadata.distributions():
    if one.metadata["Name"] and VERSION.fullmatch(one.version or ""):
        found.setdefault(re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower(), one.version)
print("".join(f"{name}=={version}\n" for name, version in sorted(found.items())), end="")
PYTHON
}

# install_beside NAME==VERSION…: installs with uv, or with pip if the image has no uv
install_beside() {
    if command -v uv > /dev/null; then
        TMPDIR=$mod_work env -u UV_SYSTEM_PYTHON \
            uv pip install --python "$mod_python" --constraints "$mod_work/before" "$@"
    else
        TMPDIR=$mod_work PIP_CERT=$SSL_CERT_FILE PIP_NO_CACHE_DIR=1 \
            "$mod_pip" -m pip --python "$mod_python" install --quiet --disable-pip-version-check \
            --constraint "$mod_work/before" "$@"
    fi
}

# install_packages NAME==VERSION…: installs these versions, and changes no package of the image.
install_packages() {
    find_pip
    if ! command -v uv > /dev/null && [ -z "$mod_pip" ]; then
        fail "\`packages\` requires uv or pip in the image" "Add uv to python.packages in image.yaml"
    fi
    export UV_LINK_MODE=copy UV_HTTP_TIMEOUT=120 SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
    if [ -n "${PIP_INDEX_URL:-}" ]; then export UV_DEFAULT_INDEX="$PIP_INDEX_URL"; fi
    if [ -n "${PIP_EXTRA_INDEX_URL:-}" ]; then export UV_INDEX="$PIP_EXTRA_INDEX_URL"; fi
    installed_packages > "$mod_work/before"
    install_beside "$@" || fail \
        "these packages do not fit the packages of the image: $*" \
        "A mod cannot change a package of the image: python.packages in image.yaml lists them."
    mod_installs=yes
    installed_packages > "$mod_work/after"
    printf '%s\n' "$@" | sed -e 's/\[[^]]*\]//' > "$mod_work/asked"
    run_python - "$mod_work" <<'PYTHON' > "$mod_work/unasked"
import pathlib
import re
import sys


def read(name):
    lines = (pathlib.Path(sys.argv[1]) / name).read_text().split()
    return {re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower(): line for line in lines}


before, after, asked = read("before"), read("after"), read("asked")
print(", ".join(line for name, line in after.items() if name not in before and name not in asked))
PYTHON
    if [ -n "$(cat "$mod_work/unasked")" ]; then
        fail "\`packages\` require other packages, which are not pinned; add them to mods/$mod_name/mod.yaml:" \
            "$(cat "$mod_work/unasked")"
    fi
}

# drop SOURCE TO: copies a file or folder of the mod; `.` or a slash at the end of TO means into that folder
drop() {
    case $2 in
        . | */.) mod_to=${2%.}./${1##*/} ;;
        */) mod_to=$2${1##*/} ;;
        *) mod_to=$2 ;;
    esac
    case $mod_to in /*) ;; *) mod_to=$mod_workspace/$mod_to ;; esac
    mkdir -p -- "${mod_to%/*}/" || fail "$1 cannot be copied to $mod_to"
    cp -RT --remove-destination -- "$1" "$mod_to" || fail "$1 cannot be copied to $mod_to"
    printf '%s is now %s\n' "$1" "$(readlink -f -- "$mod_to")"
}

# git_apply OPTION…: runs outside every repository, because in one git skips files that are not below it
git_apply() {
    GIT_DIR=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null LC_ALL=C git apply -v --whitespace=nowarn "$@"
}

# apply_patch FILE PACKAGE STRIP PINNED: PINNED is the package's pin, for messages
apply_patch() {
    mod_patch=$mod_work/mod/$1
    command -v git > /dev/null || fail "\`patches\` requires git in the image"
    if [ -z "$mod_python" ]; then fail "$1: the image has no Python, so no package $2"; fi
    # The mod's folder may contain a package of the same name, which must not be found. Nothing is imported.
    mod_holder=$(run_python - "$2" <<'PYTHON'
import importlib.util
import pathlib
import sys

spec = importlib.util.find_spec(sys.argv[1])
places = list((spec and spec.submodule_search_locations) or []) or [spec.origin] if spec else []
print(pathlib.Path(places[0]).parent if places and places[0] else "")
PYTHON
    )
    if [ -z "$mod_holder" ]; then fail "$1: the image has no Python package $2"; fi
    cd "$mod_holder"
    if git_apply "-p$3" --check "$mod_patch" > "$mod_work/forward" 2>&1; then
        git_apply "-p$3" "$mod_patch" > "$mod_work/applied" 2>&1 || fail "$1: $(cat "$mod_work/applied")"
        printf '%s: applied to %s\n' "$1" "$mod_holder"
        grep -F offset "$mod_work/applied" || true
    elif git_apply "-p$3" --check --reverse "$mod_patch" > "$mod_work/backward" 2>&1; then
        printf '%s: already in place in %s\n' "$1" "$mod_holder"
    elif git_apply -C1 "-p$3" "$mod_patch" > "$mod_work/applied" 2>&1; then
        printf '%s: applied to %s, where the lines around it have changed:\n' "$1" "$mod_holder"
        grep -e 'offset' -e 'Context reduced' "$mod_work/applied" || true
    else
        refuse_patch "$1" "$2" "$4"
    fi
    cd "$mod_work/mod"
}

# refuse_patch FILE PACKAGE PINNED: names each file and hunk at which the patch fails
refuse_patch() {
    cat "$mod_work/applied" >&2
    mod_have=$(run_python - "$2" <<'PYTHON'
import importlib.metadata as metadata
import sys

package = sys.argv[1]
try:
    print(package, metadata.version(package))
except metadata.PackageNotFoundError:
    # The folder has another name than its package, so the files of all packages are searched.
    names = sorted(set(metadata.packages_distributions().get(package, [])))
    print(", ".join(f"{name} {metadata.version(name)}" for name in names) or package)
PYTHON
    )
    sed -n 's/^error: patch failed: \(.*\):\([0-9]*\)$/\2 \1/p' "$mod_work/applied" > "$mod_work/failed"
    while read -r mod_line mod_file; do
        mod_hunk=$(grep -n -m1 "^@@ -${mod_line}[, ]" "$mod_patch" || true)
        printf '%s: the hunk %s (line %s of the patch)\n' "$mod_file" "${mod_hunk#*:}" "${mod_hunk%%:*}"
    done < "$mod_work/failed" > "$mod_work/where"
    sed -n 's/^error: \(.*: No such file or directory\)$/\1/p' "$mod_work/applied" >> "$mod_work/where"
    fail "$1 does not apply to $mod_have${3:+ ($3)}, and is not already applied" \
        "$(sed '2,$s/^/  /' "$mod_work/where")" \
        "\`builder mods check $mod_name --against VERSION\` shows if it fits a version; list these in \`requires\`."
}

# run_script FILE SECONDS network|no-network: runs the script in the copy, with the program and the options of its first line.
# Without such a line, and for a shell, the program is bash; for a .py file it is python3. The output is kept for later
# checks.
run_script() {
    mod_script=$mod_work/mod/$1
    mod_code=0
    note_states
    mkfifo "$mod_work/output"
    tee "$mod_work/said" < "$mod_work/output" &
    mod_tee=$!
    mod_start=$(date +%s)
    mod_by=$(sed -n '1s/^#![[:space:]]*//p' "$1" | sed -e 's/^[^ ]*\/env  *//' -e 's/^-S  *//' -e 's/^[^ ]*\///' \
        -e 's/^sh\>/bash/' -e 's/^dash\>/bash/')
    case $1 in *.py) mod_by=${mod_by:-python3} ;; esac
    # shellcheck disable=SC2086  # the program and its options
    WORKSPACE_DIR=$mod_workspace timeout -k 10 "$2" ${mod_by:-bash} "$1" < /dev/null > "$mod_work/output" 2>&1 || mod_code=$?
    end_what_runs
    wait "$mod_tee"
    # A script that the kernel kills because memory ran out also ends with 137.
    if { [ "$mod_code" = 124 ] || [ "$mod_code" = 137 ]; } && [ $(($(date +%s) - mod_start)) -ge "$2" ]; then
        fail "$1 did not end within $2 seconds and was stopped" "\`timeout: SECONDS\` in mod.yaml gives it more time"
    fi
    if [ "$mod_code" != 0 ]; then explain_failure "$1" "$3"; fi
    if [ -n "$mod_running" ]; then
        fail "these processes still ran after $1 had ended:$mod_running" \
            "A build ends all processes: start what must run beside vLLM in the recipe's command."
    fi
}

# explain_failure FILE network|no-network
explain_failure() {
    if [ "$2" = no-network ] && grep -q -i -e 'name resolution' -e 'could not resolve' -e 'unable to resolve' \
        -e 'name or service not known' -e 'failed to lookup address' -e 'dns error' -e 'network is unreachable' \
        "$mod_work/said"; then
        fail "$1 ended with exit code $mod_code: it needs the network, which mod.yaml does not allow" \
            "Put the file into the mod, where nobody can change it; or write \`network: true\` into mod.yaml."
    fi
    if grep -q -i -e 'nvidia-smi: \(command \)\{0,1\}not found' -e '/dev/nvidia' -e 'libcuda\.so' -e 'libnvidia-ml' \
        -e 'NVML' -e 'no NVIDIA driver' -e 'no CUDA-capable device' -e 'CUDA driver' "$mod_work/said"; then
        fail "$1 ended with exit code $mod_code: it needs a GPU, and a build has no GPU" \
            "Do this when vLLM starts, in the recipe's command."
    fi
    fail "$1 ended with exit code $mod_code"
}

# what_runs: sets mod_running to the processes of this step that the script started and that still run
what_runs() {
    mod_running=''
    mod_pids=''
    # Without its own process namespace, the step also sees processes of others.
    if [ $$ != 1 ]; then return; fi
    for mod_proc in /proc/[0-9]*; do
        mod_pid=${mod_proc#/proc/}
        if [ "$mod_pid" = 1 ] || [ "$mod_pid" = "$mod_tee" ]; then continue; fi
        mod_stat=$(cat "$mod_proc/stat" 2> /dev/null) || continue
        mod_comm=${mod_stat#*\(}
        mod_comm=${mod_comm%)*}
        case ${mod_stat##*) } in Z* | X*) continue ;; esac
        # GnuPG starts these itself, and they end with its folder.
        case $mod_comm in gpg-agent | dirmngr | keyboxd) continue ;; esac
        mod_running="$mod_running $mod_comm"
        mod_pids="$mod_pids $mod_pid"
    done
}

# end_what_runs: waits a moment for the script's processes, then ends them; mod_running has those that were ended
end_what_runs() {
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        what_runs
        if [ -z "$mod_pids" ]; then return; fi
        sleep 0.2
    done
    # shellcheck disable=SC2086  # one word per process
    kill -KILL $mod_pids 2> /dev/null || true
}

# rejections: the lines in which patch(1) or git rejects a patch, each after its kind and its file. The kind is `try` if
# patch only tried (--dry-run), and `git` if git may only have tried (--check). A patch that one of them cannot read counts
# unless a patch was applied later: the script may have tried another way first.
rejections() {
    awk '
        BEGIN { kind = "patch"; file = "-" }
        /^checking file / { kind = "try"; file = substr($0, 15) }
        /^patching file / { kind = "patch"; file = substr($0, 15) }
        /^Hunk #[0-9]+ FAILED/ || /^[0-9]+ out of [0-9]+ hunks? (FAILED|ignored)/ { print kind "\t" file "\t" $0 }
        /^error: patch failed: / { at = substr($0, 22); sub(/:[0-9]+$/, "", at); print "git\t" at "\t" $0 }
        /^error: .*: patch does not apply/ { at = substr($0, 8); sub(/: patch does.*/, "", at); print "git\t" at "\t" $0 }
        /^patching file / { unread = "" }
        /^patch: \*\*\*\* / || /^error: (corrupt patch at|No valid patches in)/ { unread = unread "patch\t-\t" $0 "\n" }
        END { printf "%s", unread }
    ' "$mod_work/said"
}

# refuse_rejects: fails if the script succeeded although a patch was rejected. A failed try does not count if the file
# changed after all: many scripts look first whether a patch is already applied.
refuse_rejects() {
    mod_rejects=$(grep '\.rej$' "$mod_work/changed" || find "$mod_work/mod" -name '*.rej' -cnewer "$mod_work/began")
    mod_tries=no
    if grep -q -e --check "$mod_script"; then mod_tries=git; fi
    mod_lines=$(rejections | while IFS='	' read -r mod_kind mod_file mod_line; do
        case $mod_kind in
            try | "$mod_tries") if grep -q -F -e "/$mod_file" "$mod_work/changed"; then continue; fi ;;
        esac
        printf '%s\n' "$mod_line"
    done)
    if [ -n "$mod_rejects$mod_lines" ]; then
        fail "the script succeeded, but a patch was rejected:" "${mod_lines:-$mod_rejects}" \
            "List the patch under \`patches:\` in mod.yaml, which also accepts a patch that is already applied." \
            "If the script only tries the patch, send the output of patch to /dev/null."
    fi
}

# state PATH: the kind, mode, owner and content in one line
state() {
    stat -c '%f %u %g' "$1" | tr '\n' ' '
    if [ -L "$1" ]; then
        readlink "$1"
    elif [ -d "$1" ]; then
        find "$1" -maxdepth 1 | LC_ALL=C sort | cksum
    elif [ -f "$1" ]; then
        cksum < "$1"
    fi
}

# note_states: records what this step changed before its script, so that the script's own changes can be found. Only the
# first 1,000 files are recorded. A touch of any other file counts as a change.
note_states() {
    find_changed -print | head -n 1000 > "$mod_work/changed"
    while IFS= read -r mod_path; do
        printf '%s\t%s\n' "$mod_path" "$(state "$mod_path")"
    done < "$mod_work/changed" > "$mod_work/states"
    touch "$mod_work/ran"
    sleep 0.02
}

# differs PATH: succeeds if the file differs from the one in the image below; a touched file does not
differs() {
    mod_old=$mod_below$1
    if [ ! -e "$mod_old" ] && [ ! -L "$mod_old" ]; then return 0; fi
    if [ "$(stat -c '%f %u %g' "$1")" != "$(stat -c '%f %u %g' "$mod_old")" ]; then return 0; fi
    if [ -L "$1" ]; then [ "$(readlink "$1")" != "$(readlink "$mod_old")" ]; return; fi
    if [ -d "$1" ]; then [ "$(ls -A "$1")" != "$(ls -A "$mod_old")" ]; return; fi
    ! cmp -s "$1" "$mod_old"
}

# look_at_changes may-be-empty|must-change MOUNT…: fails if the script changed nothing, or only files below a MOUNT, where a
# server mounts a folder of the host
look_at_changes() {
    mod_rule=$1
    shift
    mod_hidden=''
    mod_other=no
    mod_looked=0
    find_changed -cnewer "$mod_work/ran" -print > "$mod_work/changed-by-script"
    while IFS= read -r mod_path; do
        # A script does not touch so many files by mistake, and comparing all of them would take minutes.
        mod_looked=$((mod_looked + 1))
        if [ "$mod_looked" -gt 1000 ]; then return 0; fi
        mod_kind=seen
        for mod_mount in "$@"; do
            case $mod_path/ in "$mod_mount"/*) mod_kind=hidden mod_over=$mod_mount ;; esac
            # The folders above a mount change with it.
            case $mod_mount/ in "${mod_path%/}"/*) [ "$mod_path" = "$mod_mount" ] || mod_kind=around ;; esac
        done
        differs "$mod_path" || continue
        if grep -q -x -F -e "$mod_path	$(state "$mod_path")" "$mod_work/states"; then continue; fi
        case $mod_kind in
            seen) return 0 ;;
            hidden) mod_hidden=${mod_hidden:-$mod_over} ;;
            around) mod_other=yes ;;
        esac
    done < "$mod_work/changed-by-script"
    if [ -n "$mod_hidden" ]; then
        fail "the script writes only to $mod_hidden, where a server mounts a folder of the host" \
            "A server would not see these files. Make or download them when vLLM runs; then they stay on the host."
    fi
    if [ "$mod_other" = no ] && [ "$mod_rule" = must-change ]; then
        fail "the script succeeded, but changed nothing in the image" \
            "If this is intended, write \`may_be_empty: true\` into mod.yaml; otherwise, look at what the script skips."
    fi
}

# compile_changed: compiles changed sources that have bytecode in an older layer. All times are equal here, so Python would
# use the old bytecode for a source of the same size. It also compiles the sources from `packages`, for which uv would
# compile the whole image again. A source that was valid in the image below must still be valid.
compile_changed() {
    if [ -z "$mod_python" ] || ! grep -q '\.py$' "$mod_work/changed"; then return; fi
    run_python - "$mod_work" "$mod_installs" "$mod_below" <<'PYTHON' || fail "a changed file is no longer valid Python"
import importlib.util
import pathlib
import py_compile
import sys


def fault(path):
    try:
        compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:  # ValueError: a NUL, before Python 3.12
        return str(error)
    return ""


work = pathlib.Path(sys.argv[1])
began = (work / "began").stat().st_mtime
for line in (work / "changed").read_text(errors="surrogateescape").splitlines():
    source = pathlib.Path(line)
    if source.suffix != ".py" or not source.is_file():
        continue
    compiled = pathlib.Path(importlib.util.cache_from_source(line))
    below = pathlib.Path(sys.argv[3] + line)
    stale = compiled.is_file() and compiled.stat().st_mtime < began
    if stale or sys.argv[2] == "yes":
        try:
            py_compile.compile(line, cfile=str(compiled), doraise=True)
        except py_compile.PyCompileError as error:
            # Packages contain sources for other versions of Python, which never had bytecode.
            if stale:
                sys.exit(f"{line}: {error.msg.strip()}")
    elif below.is_file() and fault(source) and not fault(below):
        sys.exit(f"{line}: {fault(source)}")
PYTHON
}

# finish                                  without a script
# finish may-be-empty|must-change MOUNT…  after run_script; see look_at_changes
finish() {
    find_changed -print > "$mod_work/changed"
    if [ $# != 0 ]; then
        refuse_rejects
        look_at_changes "$@"
    fi
    compile_changed
    end_step
}
