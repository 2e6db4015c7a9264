"""A private node: `aenv serve` with its own folders, port, network names and address range."""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import leftovers, paths
from .paths import CACHE, LOGS, unique_name
from .registry import free_port
from .shell import run, text

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 30

Json = Any


@dataclass
class Answer:
    """An HTTP answer, whatever its status."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Json:
        return json.loads(self.body)


@dataclass
class Settings:
    """What a node is configured with beyond its private names."""

    insecure_registries: Sequence[str] = ()
    dns: Sequence[str] = ("203.0.113.53",)
    vcpus: int = 1
    memory_mib: int = 512
    virtual_size_gib: int = 16
    extra: dict[str, dict[str, Json]] = field(default_factory=dict)
    """Further configuration: table → key → value; replaces what is set here."""


def _toml_value(value: Json) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    # TOML's strings, numbers and booleans are written as JSON's.
    return json.dumps(str(value) if isinstance(value, Path) else value)


def _toml(top: Mapping[str, Json], tables: Mapping[str, Mapping[str, Json]]) -> str:
    lines = [f"{key} = {_toml_value(value)}" for key, value in top.items()]
    for name, values in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {_toml_value(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _free_slot_range() -> str:
    """A /16 of 10.0.0.0/8 this machine has no address or route in."""
    known = text(["ip", "-4", "-o", "addr"]) + text(["ip", "-4", "route", "show", "table", "all"])
    choices = [second for second in range(64, 192) if f"10.{second}." not in known]
    return f"10.{secrets.choice(choices)}.0.0/16"


@dataclass(frozen=True)
class Identity:
    """What tells one node from every other on this machine; enough to reach it from another process."""

    folder: str
    name_prefix: str
    port: int
    run_token: str


class Node:
    """Folders and configuration of one node, and the `aenv serve` process that runs on them while started."""

    def __init__(self, settings: Settings, *, identity: Identity | None = None) -> None:
        self.settings = settings
        self.identity = identity or Identity(
            folder=tempfile.mkdtemp(prefix="aenv-node-"),
            name_prefix=unique_name("t"),
            port=free_port(),
            run_token=secrets.token_hex(8),
        )
        self.folder = Path(self.identity.folder)
        self.data_dir = self.folder / "data"
        self.runtime_dir = self.folder / "run"
        self.address = f"127.0.0.1:{self.identity.port}"
        self.url = f"http://{self.address}"
        self.domain = f"sandbox.test:{self.identity.port}"
        self.api_key_file = self.data_dir / "api-key"
        self.config_path = self.folder / "aenv.toml"
        self.log_path = self.folder / "serve.log"
        self.scope = leftovers.Scope(
            self.data_dir, self.runtime_dir, self.identity.name_prefix, self.identity.run_token
        )
        self._process: subprocess.Popen | None = None
        if identity is None:
            self.data_dir.mkdir(mode=0o700)
            self._write_configuration()

    def _write_configuration(self) -> None:
        top = {
            "listen": self.address,
            "domain": self.domain,
            "data_dir": self.data_dir,
            "runtime_dir": self.runtime_dir,
            "api_key_file": self.api_key_file,
        }
        tables: dict[str, dict[str, Json]] = {
            "sandbox": {
                "default_vcpus": self.settings.vcpus,
                "default_memory_mib": self.settings.memory_mib,
            },
            "storage": {"virtual_size_gib": self.settings.virtual_size_gib},
            "registry": {"insecure": list(self.settings.insecure_registries)},
            "network": {
                "slot_range": _free_slot_range(),
                "dns": list(self.settings.dns),
                "name_prefix": self.identity.name_prefix,
            },
            "vmm": {"accelerator": "auto"},
        }
        for name, values in self.settings.extra.items():
            tables.setdefault(name, {}).update(values)
        self.config_path.write_text(_toml(top, tables))

    # -- the process ------------------------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        # The command line obeys the SDKs' variables, which in a test's process name the lab's shared node.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("E2B_")}
        return dict(inherited, **{leftovers.RUN_VARIABLE: self.scope.run_token})

    def start(self) -> "Node":
        """Starts `aenv serve` and returns when its health endpoint answers."""
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [paths.AENV, "--config", self.config_path, "serve"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment(),
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                if self.request("GET", "/health", key=None, timeout_s=2).status == 200:
                    return self
            except OSError:
                pass
            if self._process.poll() is not None:
                raise RuntimeError(f"aenv serve ended with {self._process.returncode}:\n{self.logs()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"aenv serve does not answer after {START_TIMEOUT_S} s:\n{self.logs()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stops `aenv serve` as an operator does; sandboxes and the storage daemon live on."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=STOP_TIMEOUT_S)
        finally:
            self._process = None

    def kill(self) -> None:
        """SIGKILL to `aenv serve` alone."""
        if self._process is None:
            raise RuntimeError("the node is not running")
        self._process.kill()
        self._process.wait(timeout=10)
        self._process = None

    def role_pid(self, role: str) -> int:
        """Pid of this node's process of a role (`storaged`, `fuse-keeper`)."""
        found = [pid for pid, command in leftovers.processes(self.scope).items() if role in command.split()]
        if len(found) != 1:
            raise RuntimeError(f"expected one {role} process, found {len(found)}: {self.processes()}")
        return found[0]

    def processes(self) -> dict[int, str]:
        return leftovers.processes(self.scope)

    def virtual_machine_pids(self) -> dict[int, str]:
        return {pid: command for pid, command in self.processes().items() if "qemu-system" in command.split()[0]}

    # -- the command line -------------------------------------------------------------------------------------------

    def aenv(self, *arguments: str | Path, timeout_s: float = 120, **options) -> subprocess.CompletedProcess:
        """Runs `aenv` against this node and returns what it said as bytes."""
        command = [paths.AENV, "--config", self.config_path, *arguments]
        return run(command, timeout_s=timeout_s, env=self.environment(), **options)

    def set_up_assets(self) -> subprocess.CompletedProcess:
        """`aenv setup`, into a folder under .cache that the nodes of one checkout share."""
        shared = CACHE / "assets"
        shared.mkdir(parents=True, exist_ok=True)
        if not (self.data_dir / "assets").exists():
            (self.data_dir / "assets").symlink_to(shared)
        return self.aenv("setup", timeout_s=600)

    def pull(self, reference: str, name: str, **options) -> subprocess.CompletedProcess:
        return self.aenv("pull", reference, "--name", name, timeout_s=300, **options)

    # -- the HTTP interface -----------------------------------------------------------------------------------------

    @property
    def api_key(self) -> str:
        return self.api_key_file.read_text().strip()

    def request(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        key: str | None = "",
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
        timeout_s: float = 60,
    ) -> Answer:
        """One request; `key=None` sends no key, the default sends the node's."""
        sent = dict(headers or {})
        if key is not None:
            sent["X-API-Key"] = key or self.api_key
        if body is not None:
            data = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        request = urllib.request.Request(f"{self.url}{path}", data=data, headers=sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return Answer(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read())

    def sandbox_ids(self) -> list[str]:
        return [item["sandboxID"] for item in self.request("GET", "/v2/sandboxes").json()]

    def kill_sandboxes(self) -> None:
        for sandbox_id in self.sandbox_ids():
            self.request("DELETE", f"/sandboxes/{sandbox_id}")

    def sdk_environment(self) -> dict[str, str]:
        """Variables the published SDKs are pointed here with."""
        return {"E2B_API_KEY": self.api_key, "E2B_API_URL": self.url, "E2B_SANDBOX_URL": self.url}

    # -- evidence and the end ---------------------------------------------------------------------------------------

    def logs(self, last_bytes: int = 8000) -> str:
        """The end of the node's log and of every console it has, for a failure report."""
        parts: list[tuple[str, bytes]] = [("aenv serve", self.log_path.read_bytes() if self.log_path.exists() else b"")]
        for pattern in ("*.log", "storaged/*.log", "sandboxes/*/console.log"):
            parts += [(str(path.relative_to(self.data_dir)), path.read_bytes()) for path in self.data_dir.glob(pattern)]
        return "\n".join(
            f"--- {name}\n{content[-last_bytes:].decode(errors='replace')}" for name, content in parts if content
        )

    def observe(self) -> leftovers.Observation:
        return leftovers.observe(self.scope)

    def close(self) -> None:
        """Ends everything of this node and removes its folders."""
        try:
            if self._process is not None and self._process.poll() is None:
                # A node that cannot answer is cleaned up from outside below.
                with contextlib.suppress(OSError, ValueError, KeyError):
                    self.kill_sandboxes()
                self.stop()
        finally:
            LOGS.mkdir(parents=True, exist_ok=True)
            (LOGS / f"{self.identity.name_prefix}.log").write_text(self.logs(last_bytes=1 << 20))
            leftovers.remove(self.scope)
            if not leftovers.mounts(self.scope):
                shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> "Node":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
