"""The list of what is in the image, made of folders that look like an installed one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from image.inside import sbom

SUBJECT = sbom.Subject(version="0.1.0", architecture="amd64", created=datetime(2026, 11, 30, tzinfo=UTC))
DEP5 = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n"


def install_distribution(folder: Path, name: str, *terms: str) -> None:
    home = folder / f"{name}-1.2.dist-info"
    home.mkdir(parents=True)
    lines = ["Metadata-Version: 2.4", f"Name: {name}", "Version: 1.2", *terms]
    (home / "METADATA").write_text("\n".join(lines) + "\n")


def install_package(root: Path, name: str, copyright_text: str) -> None:
    status = root / "var/lib/dpkg/status.d" / name
    terms = root / "usr/share/doc" / name / "copyright"
    for path in (status, terms, root / "etc/os-release"):
        path.parent.mkdir(parents=True, exist_ok=True)
    status.write_text(f"Package: {name}\nArchitecture: amd64\nVersion: 1:2.0-3\n")
    terms.write_text(copyright_text)
    (root / "etc/os-release").write_text('ID=debian\nVERSION_ID="12"\n')


def list_terms(component: Any) -> list[str]:
    return sorted(one.id or one.name if hasattr(one, "id") else one.value for one in component.licenses)


@pytest.fixture
def document(tmp_path: Path) -> str:
    """Of one distribution, the interpreter and one package."""
    install_distribution(tmp_path / "site-packages", "Some.Thing", "License-Expression: MIT")
    install_package(tmp_path / "root", "libc6", "free words")
    components = [
        *sbom.list_distributions([tmp_path / "site-packages"], {"some-thing": "a" * 64}),
        sbom.make_interpreter("3.11.9"),
        *sbom.list_debian(tmp_path / "root"),
    ]
    return sbom.render_sbom(SUBJECT, components)


def test_the_document_follows_the_schema(document: str):
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(document) is None


def test_equal_contents_give_an_equal_document(document: str, tmp_path: Path):
    components = [
        *sbom.list_debian(tmp_path / "root"),
        sbom.make_interpreter("3.11.9"),
        *sbom.list_distributions([tmp_path / "site-packages"], {"some-thing": "a" * 64}),
    ]

    assert sbom.render_sbom(SUBJECT, components) == document


def test_each_part_has_an_address_that_scanners_know(document: str):
    assert [part["purl"] for part in json.loads(document)["components"]] == [
        "pkg:generic/cpython@3.11.9",
        "pkg:pypi/some-thing@1.2",
        "pkg:deb/debian/libc6@1:2.0-3?arch=amd64&distro=debian-12",
    ]


def test_a_distribution_has_the_hash_of_its_wheel(document: str):
    part = next(part for part in json.loads(document)["components"] if part["name"] == "Some.Thing")

    assert part["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]


def test_a_distribution_that_no_lock_names_is_refused(tmp_path: Path):
    install_distribution(tmp_path, "stranger")

    with pytest.raises(KeyError, match="stranger"):
        list(sbom.list_distributions([tmp_path], {}))


@pytest.mark.parametrize(
    ("terms", "told"),
    [
        (["License-Expression: Apache-2.0 AND BSD-2-Clause", "License: words"], ["Apache-2.0 AND BSD-2-Clause"]),
        (["Classifier: License :: OSI Approved :: BSD License"], ["BSD License"]),
        (["License: MIT"], ["MIT"]),
        ([f"License: {'a whole text ' * 20}"], []),
    ],
)
def test_the_licence_is_what_says_it_best(tmp_path: Path, terms: list[str], told: list[str]):
    install_distribution(tmp_path, "thing", *terms)
    (component,) = sbom.list_distributions([tmp_path], {"thing": "a" * 64})

    assert list_terms(component) == told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"{DEP5}License: GPL-2+\n words\n\nLicense: MPL-1.1 or GPL-2+\n", ["GPL-2+", "MPL-1.1 or GPL-2+"]),
        (f"{DEP5}License: * Permission is hereby granted, free of charge\n", ["see /usr/share/doc/lib/copyright"]),
        ("License: of no known format\n", ["see /usr/share/doc/lib/copyright"]),
    ],
)
def test_a_package_has_the_licences_that_its_copyright_file_names(tmp_path: Path, text: str, told: list[str]):
    install_package(tmp_path, "lib", text)
    (component,) = sbom.list_debian(tmp_path)

    assert list_terms(component) == told
