#!/usr/bin/env python3
"""Measures the figures of the project and compares them with their targets.

Every figure is a ratio of two times or rates taken in this one run, alternating, because absolute times say more about
the machine than about the code. `--json FILE` also writes the samples; `--only NAME` runs one figure.
"""

import argparse
import contextlib
import itertools
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from harness import environments, images, oci, paths  # noqa: E402
from harness.lab import Lab  # noqa: E402
from harness.node import Node, Settings  # noqa: E402
from harness.registry import with_test_images  # noqa: E402
from harness.shell import run, text  # noqa: E402

CARGO = os.environ.get("CARGO", "cargo")
RELEASE_AENV = paths.TARGET / "release" / "aenv"


@dataclass
class Figure:
    """One ratio and its target."""

    name: str
    what: str
    ratio: float
    target: float
    at_least: bool
    """Whether the ratio has to be at least the target; else at most."""
    samples: dict[str, list[float]] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        return self.ratio >= self.target if self.at_least else self.ratio <= self.target


def median_ms(samples: list[float]) -> float:
    return statistics.median(samples) * 1000


# -- cold create to first command ------------------------------------------------------------------------------------

BY_HAND_OPTIONS = ("-M", "-machine", "-cpu", "-accel", "-m", "-smp", "-bios", "-kernel", "-initrd", "-append")
FIRST_LINE_OF_INIT = b"aenv-init:"


def command_by_hand(node: Node) -> list[str]:
    """The machine, kernel, initramfs and kernel words of a running sandbox, without its disks and network."""
    (pid,) = node.virtual_machine_pids()
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
    command = [words[0]]
    for option, value in itertools.pairwise(words[1:]):
        if option in BY_HAND_OPTIONS:
            command += [option, value]
    # A memory object that a machine option names belongs to it.
    if "memory-backend" in " ".join(command):
        for option, value in itertools.pairwise(words[1:]):
            if option == "-object" and "memory-backend" in value:
                command += [option, value]
    return [*command, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio"]


def boot_by_hand(command: list[str]) -> float:
    """Seconds from starting QEMU to the first line of init."""
    began = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    seen = b""
    try:
        while FIRST_LINE_OF_INIT not in seen:
            chunk = os.read(process.stdout.fileno(), 65536)
            if not chunk or time.monotonic() - began > 60:
                raise RuntimeError(
                    f"{shlex.join(command)} did not come to init; it said:\n{seen.decode(errors='replace')}"
                )
            seen += chunk
        return time.monotonic() - began
    finally:
        process.kill()
        process.wait()


def cold_create(lab: Lab, repetitions: int) -> Figure:
    from e2b import Sandbox  # noqa: PLC0415 - only in the environment this program starts itself in

    def create_and_run(keep: bool = False) -> tuple[float, Sandbox]:
        began = time.monotonic()
        sandbox = Sandbox.create(template="tiny", timeout=300)
        sandbox.commands.run("true")
        took = time.monotonic() - began
        if not keep:
            sandbox.kill()
        return took, sandbox

    _, sandbox = create_and_run(keep=True)
    command = command_by_hand(lab.node)
    sandbox.kill()
    boot_by_hand(command)
    ours, by_hand = [], []
    for _ in range(repetitions):
        ours.append(create_and_run()[0])
        by_hand.append(boot_by_hand(command))
    return Figure(
        "cold-create",
        f"cold create to first command {median_ms(ours):.0f} ms, booted by hand to init {median_ms(by_hand):.0f} ms",
        statistics.median(ours) / statistics.median(by_hand),
        1.5,
        at_least=False,
        samples={"create_s": ours, "by_hand_s": by_hand},
    )


# -- one command round trip ------------------------------------------------------------------------------------------

MEASURE_IN_GUEST = """
import subprocess, time
for _ in range({count}):
    began = time.monotonic()
    subprocess.run(["/bin/bash", "-l", "-c", "true"], stdin=subprocess.DEVNULL, check=True)
    print(time.monotonic() - began)
"""


def round_trip(lab: Lab, repetitions: int) -> Figure:
    from e2b import Sandbox  # noqa: PLC0415

    count = 40
    sandbox = Sandbox.create(template="agent", timeout=900)
    sandbox.files.write("/tmp/measure.py", MEASURE_IN_GUEST.format(count=count))

    def through_sdk() -> list[float]:
        samples = []
        for _ in range(count):
            began = time.monotonic()
            sandbox.commands.run("true")
            samples.append(time.monotonic() - began)
        return samples

    def inside() -> list[float]:
        return [float(line) for line in sandbox.commands.run("python3 /tmp/measure.py", timeout=120).stdout.split()]

    try:
        through_sdk(), inside()
        outer, inner = [], []
        for _ in range(repetitions):
            outer += through_sdk()
            inner += inside()
    finally:
        sandbox.kill()
    return Figure(
        "round-trip",
        f'run("true") p50 {median_ms(outer):.1f} ms, the same start inside the guest {median_ms(inner):.1f} ms',
        statistics.median(outer) / statistics.median(inner),
        3.0,
        at_least=False,
        samples={"through_sdk_s": outer, "inside_s": inner},
    )


# -- random reads ----------------------------------------------------------------------------------------------------


def random_read(_lab: Lab | None, _repetitions: int) -> Figure:
    command = [CARGO, "run", "--release", "--quiet", "--locked", "-p", "overlaybd", "--example", "bench_random_read"]
    output = text(command, timeout_s=1200, cwd=ROOT)
    found = re.search(r"^bench stack_random_read ratio=([0-9.]+)(.*)$", output, re.MULTILINE)
    if not found:
        raise RuntimeError(f"the random read benchmark printed no ratio:\n{output}")
    return Figure(
        "random-read",
        f"4 KiB random reads of a 3-layer stack against pread of a cached file{found.group(2)}",
        float(found.group(1)),
        0.5,
        at_least=True,
    )


# -- import ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def loop_mounted_ext4(folder: Path) -> Iterator[Path]:
    disk, point = folder / "disk.img", folder / "mount"
    point.mkdir()
    with disk.open("wb") as file:
        file.truncate(16 << 30)
    run(["mke2fs", "-q", "-t", "ext4", disk], timeout_s=120)
    run(["mount", "-o", "loop", disk, point])
    try:
        yield point
    finally:
        run(["umount", point])
        disk.unlink()
        point.rmdir()


def drop_caches() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def unpack_with_tar(layers: list[Path], folder: Path) -> float:
    with loop_mounted_ext4(folder) as point:
        drop_caches()
        began = time.monotonic()
        for layer in layers:
            run(
                ["tar", "--extract", "--numeric-owner", "--xattrs", "--file", layer, "--directory", point],
                timeout_s=600,
            )
        run(["sync", "--file-system", point], timeout_s=600)
        return time.monotonic() - began


def import_layout(layout: Path) -> float:
    """Seconds of a pull into a node that has never seen the layers."""
    with Node(Settings()) as node:
        node.set_up_assets()
        node.start()
        drop_caches()
        began = time.monotonic()
        node.pull(f"oci:{layout}", "agent")
        run(["sync", "--file-system", node.data_dir], timeout_s=600)
        return time.monotonic() - began


def import_rate(_lab: Lab, repetitions: int) -> Figure:
    with tempfile.TemporaryDirectory(prefix="aenv-bench-") as name:
        folder = Path(name)
        oci.write_layout(images.agent(), folder / "layout", "latest")
        index = json.loads((folder / "layout" / "index.json").read_text())
        blobs = folder / "layout" / "blobs" / "sha256"

        def blob(digest: str) -> Path:
            return blobs / digest.removeprefix("sha256:")

        manifest = json.loads(blob(index["manifests"][0]["digest"]).read_text())
        layers = [blob(layer["digest"]) for layer in manifest["layers"]]
        ours, tar = [], []
        for _ in range(repetitions):
            ours.append(import_layout(folder / "layout"))
            tar.append(unpack_with_tar(layers, folder))
    return Figure(
        "import",
        f"import {statistics.median(ours):.1f} s, tar x onto loop-mounted ext4 {statistics.median(tar):.1f} s",
        statistics.median(tar) / statistics.median(ours),
        0.5,
        at_least=True,
        samples={"import_s": ours, "tar_s": tar},
    )


FIGURES: dict[str, Callable[[Lab, int], Figure]] = {
    "random-read": random_read,
    "cold-create": cold_create,
    "round-trip": round_trip,
    "import": import_rate,
}


def in_sdk_environment() -> None:
    """Starts this program again with the Python that has the published SDK."""
    python = environments.venv("sdk-newest") / "bin" / "python"
    if Path(sys.prefix) != python.parents[1]:
        os.execv(python, [str(python), *sys.argv])


@contextlib.contextmanager
def release_lab() -> Iterator[Lab]:
    """A node of the release profile with the images the figures need."""
    print("compiling with the release profile", flush=True)
    subprocess.run([CARGO, "build", "--release", "--locked", "-p", "aenv"], check=True, cwd=ROOT)
    subprocess.run(["sh", str(ROOT / "guest" / "build.sh")], check=True, env=dict(os.environ, CARGO=CARGO))
    paths.AENV = RELEASE_AENV
    with with_test_images(["agent", "tiny"]) as registry, Node(Settings([registry.host])) as node:
        node.set_up_assets()
        node.start()
        lab = Lab(registry.host, "", [], node)
        for name in ("tiny", "agent"):
            node.pull(lab.reference(name), name)
        os.environ.update(node.sdk_environment())
        yield lab


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures the project's figures.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write results and samples there")
    parser.add_argument("--only", choices=FIGURES, action="append", help="measure this figure only")
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    in_sdk_environment()

    figures = []
    wanted = options.only or list(FIGURES)
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(release_lab()) if set(wanted) - {"random-read"} else None
        for name in wanted:
            print(f"measuring {name}", flush=True)
            figures.append(FIGURES[name](lab, options.repetitions))

    print(f"\n{'figure':<12} {'ratio':>7} {'target':>9}  result  what")
    for figure in figures:
        target = f"{'>=' if figure.at_least else '<='} {figure.target}"
        result = "met" if figure.met else "MISSED"
        print(f"{figure.name:<12} {figure.ratio:>7.2f} {target:>9}  {result:<6}  {figure.what}")
    if options.json:
        described = [dict(asdict(figure), met=figure.met) for figure in figures]
        options.json.write_text(json.dumps(described, indent=2) + "\n")
    return 0 if all(figure.met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
