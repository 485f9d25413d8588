#!/bin/sh
# mmdebstrap runs this script last, with the new image's folder as $1. The script writes the configuration of Debian's own
# slim images, so that a Dockerfile behaves the same on both. BUILDER_INDEXES is the folder with the checked indexes.
set -eu
root=$1
for index in "$root"/var/lib/apt/lists/*Release; do
  if ! cmp -s -- "$index" "$BUILDER_INDEXES/${index##*/}"; then
    echo "E: the mirror's ${index##*/} changed a moment ago; try again" >&2
    exit 1
  fi
done
# shellcheck source=/dev/null
suite=$(. "$root/etc/os-release" && printf '%s' "$VERSION_CODENAME")

# The public mirror, not the mirror that this image was made from.
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

# mmdebstrap writes its --aptopt and --dpkgopt to this file. The official image has the files below instead.
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

# Packages that are installed in the image start no services.
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"

# Traces of the machine that made the image.
rm -f "$root/etc/hostname" "$root/etc/resolv.conf"
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/* "$root"/var/log/*
