#!/bin/sh
# Run by mmdebstrap at the end, with the new image's folder as $1: what Debian's own slim images have in their
# configuration, so that a Dockerfile behaves the same on either. BUILDER_INDEXES has the indexes that were checked.
set -eu
root=$1
for index in "$root"/var/lib/apt/lists/*Release; do
  if ! cmp -s -- "$index" "$BUILDER_INDEXES/${index##*/}"; then
    echo "E: the mirror served another ${index##*/} than a moment ago: try again" >&2
    exit 1
  fi
done
# shellcheck source=/dev/null
suite=$(. "$root/etc/os-release" && printf '%s' "$VERSION_CODENAME")

# The public mirror, not the one this image happened to be made from.
rm -f "$root/etc/apt/sources.list"
cat >"$root/etc/apt/sources.list.d/debian.sources" <<EOF
Types: deb
URIs: http://deb.debian.org/debian
Suites: $suite $suite-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://deb.debian.org/debian-security
Suites: $suite-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
EOF

# mmdebstrap writes its --aptopt and --dpkgopt here; the names below are the official image's.
rm -f "$root/etc/apt/apt.conf.d/99mmdebstrap"
cat >"$root/etc/apt/apt.conf.d/docker-clean" <<'EOF'
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/archives/partial/*.deb /var/cache/apt/*.bin || true"; };
APT::Update::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/archives/partial/*.deb /var/cache/apt/*.bin || true"; };
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
EOF
echo 'Acquire::Languages "none";' >"$root/etc/apt/apt.conf.d/docker-no-languages"
echo 'Acquire::GzipIndexes "true";' >"$root/etc/apt/apt.conf.d/docker-gzip-indexes"
echo 'Apt::AutoRemove::SuggestsImportant "false";' >"$root/etc/apt/apt.conf.d/docker-autoremove-suggests"
echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/docker-apt-speedup"

# No service is started while packages are installed.
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"

# Of the machine that made it, nothing.
rm -f "$root/etc/hostname" "$root/etc/resolv.conf"
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/* "$root"/var/log/*
