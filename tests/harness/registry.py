"""A real registry server (Debian's docker-registry) on a free loopback port, holding the test images.

Its storage lives under .cache and is keyed by the recipes, so images are made and pushed once.
"""

import fcntl
import json
import secrets
import shutil
import socket
import string
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import images, oci
from harness.paths import CACHE
from harness.shell import run, text

START_TIMEOUT_S = 20


def free_port() -> int:
    """A loopback TCP port that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Credentials:
    """Who may use a registry."""

    user: str
    password: str


def _bcrypt(password: str) -> str:
    """The only form of password file docker-registry reads; perl is part of every Debian and its crypt(3) knows it."""
    salt = "$2y$05$" + "".join(secrets.choice(string.ascii_letters) for _ in range(21)) + "e"
    return text(["perl", "-e", "print crypt($ARGV[0], $ARGV[1])", password, salt])


class Registry:
    """A running docker-registry; a context manager that stops it."""

    def __init__(self, storage: Path, credentials: Credentials | None = None) -> None:
        self._credentials = credentials
        self._folder = Path(tempfile.mkdtemp(prefix="aenv-registry-"))
        self.port = free_port()
        self.host = f"127.0.0.1:{self.port}"
        storage.mkdir(parents=True, exist_ok=True)
        configuration = {
            "version": 0.1,
            "log": {"level": "warn"},
            "storage": {"filesystem": {"rootdirectory": str(storage)}, "delete": {"enabled": True}},
            "http": {"addr": self.host},
        }
        if credentials is not None:
            password_file = self._folder / "htpasswd"
            password_file.write_text(f"{credentials.user}:{_bcrypt(credentials.password)}\n")
            configuration["auth"] = {"htpasswd": {"realm": "tests", "path": str(password_file)}}
        path = self._folder / "config.yml"
        path.write_text(json.dumps(configuration))  # JSON is YAML
        self.log_path = self._folder / "registry.log"
        self._log = self.log_path.open("wb")
        self._process = subprocess.Popen(
            ["docker-registry", "serve", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=self._folder,
            start_new_session=True,
        )
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                with urllib.request.urlopen(f"http://{self.host}/v2/", timeout=2):
                    return
            except urllib.error.HTTPError as error:
                error.close()
                return  # it answers, if only to ask for credentials
            except OSError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    said = self.log_path.read_text(errors="replace")[-2000:]
                    self.close()
                    raise RuntimeError(f"docker-registry did not start: {error}; it said:\n{said}") from None
                time.sleep(0.05)

    def reference(self, name: str) -> str:
        return f"{self.host}/test/{name}:latest"

    def push(self, name: str, image: oci.Image) -> None:
        with tempfile.TemporaryDirectory(prefix="aenv-oci-") as folder:
            layout = Path(folder) / "layout"
            oci.write_layout(image, layout, "latest")
            source, target = f"oci:{layout}:latest", f"docker://{self.reference(name)}"
            command = ["skopeo", "--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"]
            if self._credentials is not None:
                command += ["--dest-creds", f"{self._credentials.user}:{self._credentials.password}"]
            run([*command, source, target], timeout_s=300)

    def manifest_digest(self, name: str) -> str:
        request = urllib.request.Request(
            f"http://{self.host}/v2/test/{name}/manifests/latest",
            headers={"Accept": "application/vnd.oci.image.manifest.v1+json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return str(answer.headers["Docker-Content-Digest"])

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(timeout=10)
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> "Registry":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def with_test_images(only: Sequence[str] | None = None) -> Registry:
    """Starts a registry that holds every test image, or those named in `only`; makes and pushes what is missing."""
    wanted = list(only) if only is not None else list(images.RECIPES)
    root = CACHE / "images" / images.recipe_key()
    root.mkdir(parents=True, exist_ok=True)
    # Two runs in one checkout would push into one storage at once.
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        registry = Registry(root / "registry")
        try:
            for name in wanted:
                done = root / f"{name}.pushed"
                if not done.exists():
                    began = time.monotonic()
                    registry.push(name, images.RECIPES[name]())
                    done.touch()
                    print(f"image {name}: made and pushed in {time.monotonic() - began:.1f} s", flush=True)
        except BaseException:
            registry.close()
            raise
    return registry


if __name__ == "__main__":
    with with_test_images() as started:
        for image_name in images.RECIPES:
            print(started.reference(image_name), started.manifest_digest(image_name))
