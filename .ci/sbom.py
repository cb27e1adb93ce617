"""Prints an SPDX 2.3 document of what an installed optvet depends on, with licences.

    python .ci/sbom.py [EXTRA…] > sbom.spdx.json

It is made from the metadata of the environment that runs it: each package there that optvet needs,
directly or not. A licence is what a package declares in a form that names one licence of SPDX; else
NOASSERTION, with what it says as a comment. ``SOURCE_DATE_EPOCH`` sets the date.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = "optvet"
NONE = "NOASSERTION"
CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0-only",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}
"""Classifiers that mean one licence; "BSD License" means one of several."""
SPELLINGS = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache": "Apache-2.0",
    "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license v2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license 2.0": "Apache-2.0",
    "bsd 3-clause": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "bsd-3": "BSD-3-Clause",
    "mit license": "MIT",
    "mpl 2.0": "MPL-2.0",
}
"""Usual spellings in the free text of older metadata."""


def closure(name: str, extras: Iterable[str]) -> dict[str, tuple[Distribution, set[str]]]:
    """Installed distributions that ``name`` needs, by canonical name, each with what it needs."""
    found: dict[str, tuple[Distribution, set[str]]] = {}
    done = set[tuple[str, str]]()
    todo = [(canonicalize_name(name), extra) for extra in ("", *extras)]
    while todo:
        if (asked := todo.pop()) in done:
            continue
        done.add(asked)
        package, extra = asked
        try:
            here = distribution(package)
        except PackageNotFoundError:
            continue  # A requirement of another platform, or of an extra that is not installed.
        needs = found.setdefault(package, (here, set()))[1]
        for requirement in map(Requirement, here.requires or ()):
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            other = canonicalize_name(requirement.name)
            if other != package:
                needs.add(other)
            todo += [(other, e) for e in ("", *requirement.extras)]
    return found


def licence(metadata: Any) -> tuple[str, str]:
    """The licence as an expression of SPDX, or NOASSERTION; and what was said where it is that."""
    said = [
        text.strip() for key in ("License-Expression", "License") if (text := metadata.get(key))
    ]
    classified = [
        c.rpartition(" :: ")[2]
        for c in metadata.get_all("Classifier") or ()
        if c.startswith("License :: ") and c != "License :: OSI Approved"
    ]
    for text in said:
        try:
            return canonicalize_license_expression(SPELLINGS.get(text.lower(), text)), ""
        except InvalidLicenseExpression:
            continue
    known = {CLASSIFIERS.get(c) for c in classified}
    if len(known) == 1 and (only := known.pop()) is not None:
        return only, ""
    first_lines = [text.splitlines()[0][:200] for text in (*said, *classified) if text]
    return NONE, "; ".join(first_lines)


def identifier(name: str) -> str:
    """The reference to a package within the document."""
    return f"SPDXRef-{re.sub(r'[^A-Za-z0-9.-]', '-', name)}"


def package_of(name: str, here: Distribution) -> dict[str, Any]:
    """A package of the document."""
    expression, comment = licence(here.metadata)
    found: dict[str, Any] = {
        "name": name,
        "SPDXID": identifier(name),
        "versionInfo": here.version,
        "downloadLocation": NONE,
        "filesAnalyzed": False,
        "licenseConcluded": NONE,
        "licenseDeclared": expression,
        "copyrightText": NONE,
        "externalRefs": [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": f"pkg:pypi/{name}@{here.version.replace('+', '%2B')}",
            }
        ],
    }
    return found | ({"licenseComments": f"declared: {comment}"} if comment else {})


def own_licences(packages: Iterable[dict[str, Any]]) -> list[str]:
    """Licences that SPDX does not list, which packages declare under a name of their own."""
    declared = " ".join(p["licenseDeclared"] for p in packages)
    return sorted(set(re.findall(r"LicenseRef-[A-Za-z0-9.-]+", declared)))


def document(extras: Iterable[str]) -> dict[str, Any]:
    """The document."""
    found = dict(sorted(closure(ROOT, extras).items()))
    packages = [package_of(name, here) for name, (here, _) in found.items()]
    arrows = [
        (identifier(name), "DEPENDS_ON", identifier(other))
        for name, (_, needs) in found.items()
        for other in sorted(needs & found.keys())
    ]
    arrows.insert(0, ("SPDXRef-DOCUMENT", "DESCRIBES", identifier(ROOT)))
    seconds = float(os.environ.get("SOURCE_DATE_EPOCH") or datetime.now(UTC).timestamp())
    content = hashlib.sha256(json.dumps(packages).encode()).hexdigest()
    version = found[ROOT][0].version
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"optvet-{version}",
        # A namespace only has to be unique; nothing is at that address.
        "documentNamespace": f"https://github.com/optvet/optvet/spdx/{version}/{content}",
        "creationInfo": {
            "created": datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": ["Tool: optvet .ci/sbom.py", "Organization: The optvet developers"],
        },
        "packages": packages,
        "hasExtractedLicensingInfos": [
            {"licenseId": name, "extractedText": "the licence of that name in the package's files"}
            for name in own_licences(packages)
        ],
        "relationships": [
            {"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b}
            for a, kind, b in arrows
        ],
    }


if __name__ == "__main__":
    json.dump(document(sys.argv[1:]), sys.stdout, indent=2)
    print()
