"""A scanner for SBOMs of our own, by BuildKit's protocol: it lists the Debian packages of what it is shown.

https://github.com/moby/buildkit/blob/master/docs/attestations/sbom-protocol.md: the folder BUILDKIT_SCAN_SOURCE holds
the image's files, and an in-toto statement goes into the folder BUILDKIT_SCAN_DESTINATION.
"""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from builder.engine import images
from builder.engine.client.endpoint import Endpoint, environment
from builder.engine.registry import transfer
from tests import projects
from tests.conftest import BASE

if TYPE_CHECKING:
    from pathlib import Path

SCAN = """\
#!/usr/bin/perl
use strict;
my ($from, $to) = @ENV{"BUILDKIT_SCAN_SOURCE", "BUILDKIT_SCAN_DESTINATION"};
my @packages;
if (open(my $status, "<", "$from/var/lib/dpkg/status")) {
    my $name;
    while (<$status>) {
        $name = $1 if /^Package: (\\S+)/;
        push @packages, qq({"SPDXID": "SPDXRef-$name", "name": "$name", "versionInfo": "$1", )
            . qq("downloadLocation": "NOASSERTION", "filesAnalyzed": false}) if /^Version: (\\S+)/;
    }
}
open(my $out, ">", "$to/debian.spdx.json") or die $!;
print $out '{"_type": "https://in-toto.io/Statement/v0.1", "predicateType": "https://spdx.dev/Document", ',
    '"subject": [], "predicate": {"spdxVersion": "SPDX-2.3", "SPDXID": "SPDXRef-DOCUMENT", ',
    '"dataLicense": "CC0-1.0", "name": "image", ',
    '"documentNamespace": "https://tests.invalid/image", ',
    '"creationInfo": {"created": "2026-01-01T00:00:00Z", "creators": ["Tool: tests"]}, ',
    '"packages": [', join(", ", @packages), "]}}\\n";
"""


def push(endpoint: Endpoint, folder: Path, reference: str) -> None:
    """Builds it, and pushes it as ``reference``; the engine does not keep it."""
    projects.write(folder / "scan", SCAN)
    projects.write(folder / "Dockerfile", f'FROM {BASE}\nCOPY --chmod=755 scan /scan\nENTRYPOINT ["/scan"]\n')
    argv = [*endpoint.buildx, "build", "--quiet", "--provenance=false", "--tag", reference, str(folder)]
    subprocess.run(argv, check=True, capture_output=True, env={**os.environ, **environment(endpoint)})
    try:
        transfer.push(endpoint, reference, {}, lambda _: None)
    finally:
        images.remove(endpoint, reference)
