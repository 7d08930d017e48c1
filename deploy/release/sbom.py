"""Writes tokenmill.cdx.json: the parts of other people that a wheel has in it, as CycloneDX. The wheel carries it.

    python deploy/release/sbom.py       # needs cyclonedx-python-lib: deploy/release/requirements.txt

What a wheel depends on, but does not contain, stands in its metadata; what a release was tested with, in
constraints.txt.
"""

import re
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

ROOT = Path(__file__).resolve().parents[2]
VENDOR = ROOT / "src" / "tokenmill" / "serve" / "facts" / "static" / "vendor"
FILE = Path(__file__).with_name("tokenmill.cdx.json")

# As SPDX expressions; vendor/README.md has the versions.
LICENCES = {"marked": "MIT AND BSD-3-Clause", "dompurify": "Apache-2.0 OR MPL-2.0"}


def vendored() -> list[Component]:
    """The packages of the table in vendor/README.md, each with the digest of its file."""
    rows = re.findall(r"^\| (\S+) \| (\S+), \S+ \| (\S+) \|", (VENDOR / "README.md").read_text(), re.MULTILINE)
    return [_component(*row) for row in rows]


def _component(file: str, name: str, version: str) -> Component:
    digest = sha256((VENDOR / file).read_bytes()).hexdigest()
    return Component(
        type=ComponentType.LIBRARY,
        bom_ref=name,
        name=name,
        version=version,
        purl=PackageURL("npm", None, name, version),
        licenses=[LicenseFactory().make_with_expression(LICENCES[name])],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
    )


def bom() -> Bom:
    """tokenmill and what it contains."""
    version = re.search(r'"(.+)"', (ROOT / "src" / "tokenmill" / "version.py").read_text().split("=", 1)[1])
    assert version
    whole = Component(
        type=ComponentType.APPLICATION,
        bom_ref="tokenmill",
        name="tokenmill",
        version=version[1],
        purl=PackageURL("pypi", None, "tokenmill", version[1]),
        licenses=[LicenseFactory().make_with_expression("Apache-2.0")],
    )
    parts = vendored()
    found = Bom(components=parts, serial_number=uuid5(NAMESPACE_URL, f"tokenmill {version[1]}"))
    found.metadata.component = whole
    found.metadata.timestamp = datetime.now(UTC).replace(microsecond=0)
    found.register_dependency(whole, parts)
    return found


if __name__ == "__main__":
    FILE.write_text(JsonV1Dot6(bom()).output_as_string(indent=2) + "\n")
