"""Fetch the viewer of the reports, NiiVue, from npm. The version and its hash are pinned here and nowhere else."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import os
import sys
import tarfile
import urllib.request
from pathlib import Path

VERSION = "0.69.0"
INTEGRITY = "sha512-YMjQvJgD1W2b7DuoxkwlC4VxbrgIePRJ5qyQzXKxi2v2MBVg285P/CIQyg46oDDGDIcaNlbd+MhtO/edMbXJkA=="
BUNDLE = "package/dist/niivue.umd.js"
VENDOR = Path(__file__).resolve().parents[1] / "src" / "metreg" / "report" / "vendor"

# The package on npm names its licence but does not carry the text, so it stands here.
LICENCE = f"""\
NiiVue {VERSION}, https://github.com/niivue/niivue, as bundled in the npm package @niivue/niivue.
The bundle holds fflate, gl-matrix, nifti-reader-js, zarrita, array-equal and uuid (MIT licence) and structured-clone (ISC).

BSD 2-Clause License

Copyright (c) 2021, Niivue
All rights reserved.

Redistribution and use in source and binary forms, with or without
modification, are permitted provided that the following conditions are met:

1. Redistributions of source code must retain the above copyright notice, this
   list of conditions and the following disclaimer.

2. Redistributions in binary form must reproduce the above copyright notice,
   this list of conditions and the following disclaimer in the documentation
   and/or other materials provided with the distribution.

THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS "AS IS"
AND ANY EXPRESS OR IMPLIED WARRANTIES, INCLUDING, BUT NOT LIMITED TO, THE
IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS FOR A PARTICULAR PURPOSE ARE
DISCLAIMED. IN NO EVENT SHALL THE COPYRIGHT HOLDER OR CONTRIBUTORS BE LIABLE
FOR ANY DIRECT, INDIRECT, INCIDENTAL, SPECIAL, EXEMPLARY, OR CONSEQUENTIAL
DAMAGES (INCLUDING, BUT NOT LIMITED TO, PROCUREMENT OF SUBSTITUTE GOODS OR
SERVICES; LOSS OF USE, DATA, OR PROFITS; OR BUSINESS INTERRUPTION) HOWEVER
CAUSED AND ON ANY THEORY OF LIABILITY, WHETHER IN CONTRACT, STRICT LIABILITY,
OR TORT (INCLUDING NEGLIGENCE OR OTHERWISE) ARISING IN ANY WAY OUT OF THE USE
OF THIS SOFTWARE, EVEN IF ADVISED OF THE POSSIBILITY OF SUCH DAMAGE.
"""


def fetch(vendor: Path = VENDOR, *, integrity: str = INTEGRITY) -> bool:
    """Write the bundle and its licence into `vendor`; False where they are there already."""
    bundle, licence = vendor / "niivue.umd.js.gz", vendor / "niivue.LICENSE"
    if bundle.is_file() and licence.is_file() and licence.read_text(encoding="utf-8") == LICENCE:
        return False
    package = download(integrity)
    with tarfile.open(fileobj=io.BytesIO(package), mode="r:gz") as archive:
        member = archive.extractfile(BUNDLE)
        if member is None:
            raise OSError(f"{BUNDLE}: not a file in the package")
        code = member.read()
    vendor.mkdir(parents=True, exist_ok=True)
    write_whole(bundle, gzip.compress(code, 9, mtime=0))
    write_whole(licence, LICENCE.encode())
    return True


def download(integrity: str) -> bytes:
    """The npm package, as the registry of npm_config_registry has it; OSError where its hash is another."""
    registry = os.environ.get("npm_config_registry") or "https://registry.npmjs.org"  # noqa: SIM112
    url = f"{registry.rstrip('/')}/@niivue/niivue/-/niivue-{VERSION}.tgz"
    with urllib.request.urlopen(url, timeout=30) as response:
        package: bytes = response.read()
    found = "sha512-" + base64.b64encode(hashlib.sha512(package).digest()).decode()
    if found != integrity:
        raise OSError(f"{url}: its hash is {found}, not {integrity}")
    return package


def write_whole(path: Path, content: bytes) -> None:
    """All of the file or nothing."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def fetch_or_warn(vendor: Path = VENDOR) -> bool:
    """Fetch; where that fails, one line of warning and False."""
    try:
        fetch(vendor)
    except Exception as error:  # whatever it was, the reports do without
        sys.stderr.write(f"warning: no 3-D viewer in the reports, they show still slices: {error}\n")
        return False
    return True


if __name__ == "__main__":
    sys.exit(0 if fetch_or_warn() else 1)
