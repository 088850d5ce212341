"""Without Java, without Maven or without an answer from Maven Central nothing is compared, and a sentence says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.differential.reference_broker import find_jars


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the path, and nothing fetched yet."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return folder


def install(folder: Path, name: str, script: str = "") -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_it_skips_without_java(programs: Path) -> None:
    assert "no Java" in str(find_jars(directory=programs.with_name("cache")))


def test_it_skips_without_maven(programs: Path) -> None:
    install(programs, "java")
    assert "no Maven" in str(find_jars(directory=programs.with_name("cache")))


def test_it_skips_when_maven_central_is_out_of_reach(programs: Path) -> None:
    install(programs, "java")
    install(programs, "mvn", "echo '[ERROR] Unknown host repository.invalid'; exit 1")
    reason = str(find_jars(directory=programs.with_name("cache")))
    assert "cannot fetch" in reason
    assert "Unknown host" in reason


def test_it_skips_when_maven_central_does_not_answer(programs: Path) -> None:
    install(programs, "java")
    install(programs, "mvn", "exec /bin/sleep 30")
    assert "did not answer" in str(find_jars(directory=programs.with_name("cache"), fetch_seconds_max=0.2))


def test_what_was_fetched_once_is_not_fetched_again(programs: Path) -> None:
    install(programs, "java")
    install(programs, "mvn")
    first = find_jars(directory=programs.with_name("cache"))
    assert isinstance(first, Path)
    (programs / "mvn").unlink()
    assert find_jars(directory=programs.with_name("cache")) == first
