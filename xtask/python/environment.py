"""Makes target/python, the Python with which tests check that other programs read our files.

Usage: environment.py [--check]; with --check it only says by its exit code whether everything is there.
"""

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "target" / "python"
REQUIREMENTS = Path(__file__).resolve().parent / "requirements.txt"


def is_complete() -> bool:
    marker = HOME / "requirements.txt"
    return marker.exists() and marker.read_text() == REQUIREMENTS.read_text()


def make() -> None:
    venv.create(HOME, with_pip=True)
    pip = [HOME / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--requirement", REQUIREMENTS], check=True)
    (HOME / "requirements.txt").write_text(REQUIREMENTS.read_text())


if __name__ == "__main__":
    if not is_complete():
        if "--check" in sys.argv:
            sys.exit(1)
        make()
