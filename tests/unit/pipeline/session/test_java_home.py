"""Which Java is taken, and what is said where there is none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from penstock.pipeline.session.java_home import JavaMissingError, find_java_home, java_version, make_shim


def make_java(home: Path, version: str, *, has_release: bool = True) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(0o755)
    if has_release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("1.8.0_392", 8), ("25", 25), ("21-ea", 21)])
@pytest.mark.parametrize("has_release", [True, False])
def test_a_version_is_read_or_asked(tmp_path: Path, version: str, major: int, has_release: bool) -> None:
    assert java_version(make_java(tmp_path / "home", version, has_release=has_release)) == major


def test_no_java_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path) is None


def test_java_home_goes_before_path(tmp_path: Path) -> None:
    named, other = make_java(tmp_path / "a", "21.0.1"), make_java(tmp_path / "b", "17.0.1")
    assert find_java_home({"JAVA_HOME": str(named), "PATH": str(other / "bin")}) == named


def test_a_java_that_is_too_old_or_too_new_is_passed_over(tmp_path: Path) -> None:
    old, good = make_java(tmp_path / "old", "11.0.2"), make_java(tmp_path / "good", "17.0.1")
    link = tmp_path / "bin"
    link.mkdir()
    (link / "java").symlink_to(good / "bin" / "java")
    assert find_java_home({"JAVA_HOME": str(old), "PATH": str(link)}) == good


def test_the_sentence_says_what_was_found(tmp_path: Path) -> None:
    old, new = make_java(tmp_path / "old", "11.0.2"), make_java(tmp_path / "new", "99.0.2")
    with pytest.raises(
        JavaMissingError, match=r"JAVA_HOME is Java 11, which is too old; .*java is Java 99, which is newer than"
    ):
        find_java_home({"JAVA_HOME": str(old), "PATH": str(new / "bin")}, pip_home=lambda: None)
    with pytest.raises(
        JavaMissingError,
        match=r'none was found in JAVA_HOME or PATH: install one, or `pip install "penstock\[spark\]"`',
    ):
        find_java_home({"PATH": str(tmp_path)}, pip_home=lambda: None)


def test_the_shim_leaves_the_module_out_and_passes_the_rest_on(tmp_path: Path) -> None:
    program = tmp_path / "home" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    program.chmod(0o755)
    shim = make_shim(tmp_path / "home", tmp_path / "cache")
    assert make_shim(tmp_path / "home", tmp_path / "cache") == shim
    asked = [shim / "bin" / "java", "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "-cp", "*"]
    told = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=20).stdout
    assert told == "-Xmx1g|a b||-cp|*|"


def test_the_java_of_pip_gets_a_shim(tmp_path: Path) -> None:
    home = make_java(tmp_path / "pip", "25.0.1")
    environment = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    found = find_java_home(environment, pip_home=lambda: home)
    assert found.is_relative_to(tmp_path / "cache" / "penstock")
    assert str(home / "bin" / "java") in (found / "bin" / "java").read_text()
