"""``test.sh`` ends red on any failure; ``scripts/environment.sh`` makes, keeps and renews .venv."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Everything of the environment but its downloads.
WITHOUT_INSTALLING = """
set -euo pipefail
source scripts/environment.sh
run() { echo "+ $*"; case "$*" in *" pip install "*) ;; *) "$@" ;; esac; }
make_environment
"""
NO_ENVIRONMENT = """
VENV=.venv
make_environment() { :; }
say() { echo "$*"; }
run() { "$@"; }
"""


def bash(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with what the environment is made from."""
    folder = tmp_path / "project"
    (folder / "scripts").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt", "scripts/environment.sh", "test.sh"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def make(folder: Path) -> str:
    result = bash(WITHOUT_INSTALLING, folder, PYTHON=sys.executable)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_the_environment_is_made_once_and_renewed_when_it_must_be(project: Path) -> None:
    first = make(project)
    assert "making .venv" in first
    # torch alone and first, at the pinned version; then everything under the constraints
    torch, rest = (line for line in first.splitlines() if " pip install " in line)
    assert torch.split()[-1].startswith("torch==")
    assert "-c constraints.txt -e ." in rest
    assert "pip install" not in make(project)

    (project / "constraints.txt").open("a").write("\n# changed\n")
    changed = make(project)
    assert "bringing .venv up to date" in changed and "-m venv" not in changed

    shutil.copytree(project, project.with_name("copy"), symlinks=True)
    assert "is made anew" in make(project.with_name("copy"))

    python = project / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/removed/python3.9")
    assert "is made anew" in make(project)


def test_a_python_that_does_not_fit_is_named(project: Path) -> None:
    result = bash(WITHOUT_INSTALLING, project, PYTHON="/bin/false")
    assert result.returncode == 1
    assert "PYTHON=/bin/false is not a Python 3.10 or newer" in result.stderr
    assert not (project / ".venv").exists()


@pytest.mark.parametrize("broken", ["check .", "format", "mypy", "pytest", None])
def test_the_exit_status_is_that_of_all_checks(project: Path, broken: str | None) -> None:
    (project / "scripts" / "environment.sh").write_text(NO_ENVIRONMENT)
    stub = project / ".venv" / "bin" / "python"
    stub.parent.mkdir(parents=True)
    stub.write_text(f'#!/usr/bin/env bash\necho "ran $*"\n[[ "$*" != *"{broken}"* ]]\n')
    stub.chmod(0o755)
    result = bash("./test.sh --all -k tied", project)
    assert result.returncode == (1 if broken else 0)
    assert result.stdout.count("ran ") == 4
    assert "-m not soak -k tied" in result.stdout
    assert ("FAILED: " in result.stderr) == bool(broken)
