"""What is in the image, as a CycloneDX document: Python distributions, the interpreter, Debian packages.

It is made from what was installed, not from what was meant to be: metadata of the distributions, their wheels' hashes
from the lock, and the packages that `debian.py` found to own the copied files.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

PATH = "usr/share/tesela/sbom.cdx.json"
"""Where it lies in the image."""
_NAMESPACE = uuid.UUID("0b0f5f0c-0b54-5d1c-9d05-3c2d4f7a7c11")
_CLASSIFIER = re.compile(r"License :: (?:OSI Approved :: )?(.+)")
_TERMS = re.compile(r"^License:[ \t]*([\w.+-]+(?: [\w.+-]+)*)$", re.MULTILINE)
_LONGEST_LICENSE = 100  # some put the whole text in the field that is meant for a name


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The image that the document is about."""

    version: str
    architecture: str
    created: datetime


def render_sbom(subject: Subject, components: Iterable[Component]) -> str:
    """The document; equal components give equal text."""
    parts = sorted(components, key=lambda one: str(one.purl))
    root = Component(
        name="tesela-image",
        version=subject.version,
        type=ComponentType.CONTAINER,
        bom_ref="image",
        licenses=_make_licenses(["Apache-2.0"]),
        properties=[Property(name="tesela:architecture", value=subject.architecture)],
    )
    bom = Bom(components=parts)
    bom.metadata.component = root
    bom.metadata.timestamp = subject.created
    names = " ".join(f"{part.purl}{[hash_.content for hash_ in part.hashes]}" for part in parts)
    bom.serial_number = uuid.uuid5(_NAMESPACE, f"{subject} {names}")
    bom.register_dependency(root, parts)
    return make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1) + "\n"


def list_distributions(packages: Iterable[Path], hashes: Mapping[str, str]) -> Iterator[Component]:
    """The Python distributions in site-packages folders. `hashes` are of their wheels, by normalized name."""
    for distribution in metadata.distributions(path=[str(folder) for folder in packages]):
        name = re.sub(r"[-_.]+", "-", distribution.name).lower()
        yield Component(
            name=distribution.name,
            version=distribution.version,
            type=ComponentType.LIBRARY,
            bom_ref=f"pypi:{name}",
            purl=PackageURL("pypi", None, name, distribution.version),
            licenses=_make_licenses(_read_licenses(distribution.metadata)),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=hashes[name])],
        )


def make_interpreter(version: str) -> Component:
    """CPython, which a base image may have from elsewhere than a Debian package."""
    return Component(
        name="cpython",
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref="cpython",
        purl=PackageURL("generic", None, "cpython", version),
        licenses=_make_licenses(["PSF-2.0"]),
    )


def list_debian(root: Path) -> Iterator[Component]:
    """The Debian packages that `root` has files of; their licences as their copyright files name them, or the file."""
    release = dict(line.split("=", 1) for line in (root / "etc/os-release").read_text().splitlines() if "=" in line)
    distro = f"{release['ID']}-{release['VERSION_ID']}".replace('"', "")
    for path in sorted((root / "var/lib/dpkg/status.d").iterdir()):
        package = HeaderParser().parsestr(path.read_text())
        terms = root / "usr/share/doc" / path.name / "copyright"
        text = terms.read_text(errors="replace") if terms.exists() else ""
        names = set(_TERMS.findall(text)) if text.startswith("Format:") else set()
        yield Component(
            name=path.name,
            version=package["Version"],
            type=ComponentType.LIBRARY,
            bom_ref=f"deb:{path.name}",
            purl=PackageURL(
                "deb", "debian", path.name, package["Version"], {"arch": package["Architecture"], "distro": distro}
            ),
            licenses=[
                LicenseFactory().make_with_name(name) for name in sorted(names or {f"see /{terms.relative_to(root)}"})
            ],
        )


def _read_licenses(facts: metadata.PackageMetadata) -> list[str]:
    """The SPDX expression where a distribution has one, else its classifiers, else its free text if that is a name."""
    expression = facts.get_all("License-Expression") or []
    classifiers = [found[1] for text in facts.get_all("Classifier") or [] if (found := _CLASSIFIER.fullmatch(text))]
    free = [text for text in facts.get_all("License") or [] if len(text) <= _LONGEST_LICENSE]
    return expression or classifiers or free


def _make_licenses(names: Iterable[str]) -> list[License]:
    return [LicenseFactory().make_from_string(name) for name in names]
