"""The lock of the image's wheels: what it may say, and that the one in the repository fits what it was made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from image import lockfile
from image.lockfile import ImageError, Wheel


def make_wheel(name: str = "grpcio", **different: str) -> Wheel:
    return Wheel(
        **{"name": name, "version": "1.0", "sha256": "a" * 64, "wheel": f"{name}-1.0-py3-none-any.whl"} | different
    )


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    """A copy of the locks that a test may spoil."""
    for path in lockfile.LOCKS.iterdir():
        (tmp_path / path.name).write_text(path.read_text())
    return tmp_path


def spoil(locks: Path, lock: str, old: str, new: str) -> list[str]:
    """What is wrong after `old` became `new`."""
    path = locks / f"{lock}.txt"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return lockfile.check(locks)


def test_the_locks_fit_pyproject_and_constraints():
    assert lockfile.check() == []


def test_a_lock_says_what_it_was_made_of():
    wheels = (make_wheel("b"), make_wheel("a", version="2.0"))

    assert lockfile.parse_lock(lockfile.render_lock("amd64", wheels)) == (wheels[1], wheels[0])


@pytest.mark.parametrize(
    "line",
    [
        "grpcio==1.0",
        "grpcio --hash=sha256:00  # grpcio.whl",
        "grpcio==1.0 --hash=sha256:" + "a" * 64 + "  # grpcio.tar.gz",
    ],
)
def test_a_line_without_version_hash_and_wheel_is_refused(line: str):
    with pytest.raises(ImageError, match="line 2 of the lock"):
        lockfile.parse_lock(f"# head\n{line}\n")


def test_a_version_that_is_not_the_pinned_one_is_told(locks: Path):
    faults = spoil(locks, "arm64", "tenacity==", "tenacity==0.")

    assert len(faults) == 1
    assert faults[0].startswith("arm64.txt has tenacity 0.")


def test_a_distribution_that_is_missing_is_told(locks: Path):
    faults = spoil(locks, "amd64", "\nrich==", "\n# rich==")

    assert len(faults) == 1
    assert faults[0].startswith("amd64.txt has rich nothing, wanted is ")


def test_a_distribution_that_nothing_needs_is_told(locks: Path):
    faults = spoil(
        locks, "tools", "\npip==", f"\nwheel==1.0 --hash=sha256:{'a' * 64}  # wheel-1.0-py3-none-any.whl\npip=="
    )

    assert faults == ["tools.txt has wheel 1.0, wanted is nothing: run `make image-lock`"]


def test_a_wheel_of_another_processor_is_told(locks: Path):
    wheel = next(wheel.wheel for wheel in lockfile.read_lock("amd64", locks) if wheel.name == "grpcio")
    faults = spoil(locks, "amd64", wheel, wheel.replace("x86_64", "aarch64"))

    assert faults == [f"amd64.txt: {wheel.replace('x86_64', 'aarch64')} does not run there"]


def test_both_processors_have_the_same_versions():
    versions = [{(wheel.name, wheel.version) for wheel in lockfile.read_lock(name)} for name in lockfile.PLATFORMS]

    assert versions[0] == versions[1]
