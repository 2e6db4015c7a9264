"""What a node has on the host right now: evidence that nothing is left behind, and the last resort to remove it."""

import contextlib
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from .shell import run

RUN_VARIABLE = "AENV_TEST_RUN"
"""Set in the environment of everything a harness starts, so that its processes are known without asking them."""

_VOLATILE = re.compile(r"(node\.db(-wal|-shm|-journal)?|\.log)$")


@dataclass(frozen=True)
class Scope:
    """Which things on the host belong to one node."""

    data_dir: Path
    runtime_dir: Path
    name_prefix: str
    run_token: str


Observation = dict[str, set[str]]
"""Kind of thing → descriptions of the things of that kind."""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def processes(scope: Scope) -> dict[int, str]:
    """Live processes of the node, by pid: those that inherited the token or name one of its folders."""
    found = {}
    token = f"{RUN_VARIABLE}={scope.run_token}".encode()
    folders = (os.fsencode(scope.data_dir), os.fsencode(scope.runtime_dir))
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        command = _read(entry / "cmdline")
        if not command:
            continue  # a kernel thread, or a process that has ended and waits to be reaped
        inherited = token in _read(entry / "environ").split(b"\0")
        if inherited or any(folder in command for folder in folders):
            found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def mounts(scope: Scope) -> list[str]:
    """Mount points under the node's folders, in the order they were mounted."""
    points = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = line.split(" ")[4].encode().decode("unicode_escape")
        if point.startswith((f"{scope.data_dir}/", f"{scope.runtime_dir}/")):
            points.append(point)
    return points


def namespaces(scope: Scope) -> list[str]:
    """Named network namespaces of the node."""
    folder = Path("/run/netns")
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if entry.name.startswith(scope.name_prefix))


def loop_devices(scope: Scope) -> dict[str, str]:
    """Loop devices on files of the node: device → file."""
    found = {}
    for device in Path("/sys/block").glob("loop*"):
        backing = _read(device / "loop" / "backing_file").decode(errors="replace").strip()
        if backing.startswith((f"{scope.data_dir}/", f"{scope.runtime_dir}/")):
            found[f"/dev/{device.name}"] = backing
    return found


def links(scope: Scope) -> list[str]:
    """Network interfaces of the node in the host's namespace."""
    return sorted(entry.name for entry in Path("/sys/class/net").iterdir() if entry.name.startswith(scope.name_prefix))


def nft_tables(scope: Scope) -> list[str]:
    """nftables tables of the node in the host's namespace, as `family name`."""
    lines = run(["nft", "list", "tables"]).stdout.decode().splitlines()
    names = (line.removeprefix("table ").strip() for line in lines)
    return sorted(name for name in names if name.endswith(f"_{scope.name_prefix}"))


def listening_ports(pids: set[int]) -> set[str]:
    """TCP ports of the host's namespace on which one of `pids` listens."""
    by_inode = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                by_inode[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    ports = set()
    for pid in pids:
        try:
            descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                inode = os.readlink(descriptor).removeprefix("socket:[").rstrip("]")
            except OSError:
                continue
            if inode in by_inode:
                ports.add(str(by_inode[inode]))
    return ports


def files(scope: Scope) -> set[str]:
    """Everything under the node's folders but the database, logs, and what is kept on purpose (layers, consoles)."""
    found = set()
    for root in (scope.data_dir, scope.runtime_dir):
        for folder, names, leaves in os.walk(root):
            if Path(folder) == scope.data_dir:
                names[:] = [name for name in names if name not in ("assets", "consoles", "layers")]
            for name in [*names, *leaves]:
                path = os.path.join(folder, name)
                if not _VOLATILE.search(name):
                    found.add(path)
    return found


def observe(scope: Scope) -> Observation:
    """Everything of the node on this host at this moment."""
    live = processes(scope)
    return {
        "process": {f"{pid} {command}" for pid, command in live.items()},
        "network namespace": set(namespaces(scope)),
        "network interface": set(links(scope)),
        "nftables table": set(nft_tables(scope)),
        "mount": set(mounts(scope)),
        "loop device": {f"{device} on {file}" for device, file in loop_devices(scope).items()},
        "listening port": listening_ports(set(live)),
        "file": files(scope),
    }


def appeared(before: Observation, after: Observation) -> list[str]:
    """What is there after and was not before, one line each."""
    return [f"{kind}: {thing}" for kind in after for thing in sorted(after[kind] - before.get(kind, set()))]


def settled(before: Observation, scope: Scope, timeout_s: float) -> list[str]:
    """Waits until nothing more than `before` is there; the rest, if something still is at the deadline."""
    deadline = time.monotonic() + timeout_s
    while True:
        rest = appeared(before, observe(scope))
        if not rest or time.monotonic() > deadline:
            return rest
        time.sleep(0.2)


def _end(pids: set[int], with_signal: signal.Signals, timeout_s: float, scope: Scope) -> set[int]:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, with_signal)
    deadline = time.monotonic() + timeout_s
    while True:
        rest = pids & set(processes(scope))
        if not rest or time.monotonic() > deadline:
            return rest
        time.sleep(0.05)


def remove(scope: Scope) -> None:
    """Removes whatever of the node is still there. For after a run, passed or failed; no test relies on it."""
    rest = _end(set(processes(scope)), signal.SIGTERM, 5, scope)
    rest = _end(rest | set(processes(scope)), signal.SIGKILL, 10, scope)
    for point in reversed(mounts(scope)):
        run(["umount", "--lazy", point], check=False)
    for device in loop_devices(scope):
        run(["losetup", "--detach", device], check=False)
    for name in namespaces(scope):
        run(["ip", "netns", "delete", name], check=False)
    for name in links(scope):
        run(["ip", "link", "delete", name], check=False)
    for table in nft_tables(scope):
        run(["nft", "delete", "table", *table.split()], check=False)
