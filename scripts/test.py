#!/usr/bin/env python3
"""Runs every test of the repository and ends with one line that counts them.

Rust tests first (unit, property, conformance, those that need root, FUSE or QEMU), then the end-to-end suite: two
published Python SDKs and the newest JavaScript one, against a lab that all of them share.

    scripts/test.py                 everything
    scripts/test.py rust            only the Rust tests
    scripts/test.py e2e             only the end-to-end suite
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from harness import environments, lab  # noqa: E402
from harness.paths import CACHE, LOGS  # noqa: E402

CARGO = os.environ.get("CARGO", "cargo")
RUST_TIMEOUT_S = 1500
BUILD_TIMEOUT_S = 2400
SUITE_TIMEOUT_S = 1200
INTERRUPT_PATIENCE_S = 60

_RUST_RESULT = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored")


@dataclass
class Count:
    """How many tests of one part ended how. A part that could not run at all counts as one failure."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self) -> str:
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}"


def stream(command: Sequence[str | Path], *, timeout_s: float, env: Mapping[str, str] | None = None, cwd: Path = ROOT):
    """Runs `command`, shows its output as it comes, and returns (exit status, lines)."""
    print(f"$ {' '.join(str(part) for part in command)}", flush=True)
    process = subprocess.Popen(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(os.environ, **(env or {})),
        cwd=cwd,
        text=True,
        errors="replace",
    )
    # An interrupt first: it lets a test runner take down the nodes it started.
    overdue = [
        threading.Timer(timeout_s, process.send_signal, [signal.SIGINT]),
        threading.Timer(timeout_s + INTERRUPT_PATIENCE_S, process.kill),
    ]
    for timer in overdue:
        timer.start()
    lines = []
    try:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line.rstrip("\n"))
        status = process.wait()
    finally:
        for timer in overdue:
            timer.cancel()
        if process.poll() is None:
            process.kill()
            process.wait()
    if status < 0:
        print(f"ended by signal {-status} (the deadline is {timeout_s} s)", flush=True)
    return status, lines


def build() -> bool:
    """Compiles everything once: tests, the binary they start, and the guest programs."""
    steps = (
        [CARGO, "test", "--workspace", "--locked", "--no-run"],
        [CARGO, "build", "--workspace", "--locked", "--bins", "--tests", "--examples"],
        ["sh", ROOT / "guest" / "build.sh"],
    )
    return all(stream(step, timeout_s=BUILD_TIMEOUT_S, env={"CARGO": CARGO})[0] == 0 for step in steps)


def rust() -> Count:
    status, lines = stream([CARGO, "test", "--workspace", "--locked", "--no-fail-fast"], timeout_s=RUST_TIMEOUT_S)
    count = Count()
    for line in lines:
        found = _RUST_RESULT.match(line)
        if found:
            count += Count(*(int(group) for group in found.groups()))
    if status != 0 and count.failed == 0:
        count.failed = 1
    return count


def junit(path: Path, status: int) -> Count:
    """Counts of a JUnit report; a runner that failed without saying which test counts as one failure."""
    count = Count()
    try:
        cases = ElementTree.parse(path).getroot().iter("testcase")
    except (OSError, ElementTree.ParseError):
        return Count(failed=1)
    for case in cases:
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            count.failed += 1
        elif "skipped" in kinds:
            count.skipped += 1
        else:
            count.passed += 1
    if status != 0 and count.failed == 0:
        count.failed = 1
    return count


def python_suite(environment: str, folders: Sequence[str], env: Mapping[str, str]) -> Count:
    report = LOGS / f"{environment}.xml"
    report.unlink(missing_ok=True)
    python = environments.venv(environment) / "bin" / "python"
    command = [python, "-m", "pytest", f"--junitxml={report}", "-q", *folders]
    status, _ = stream(command, timeout_s=SUITE_TIMEOUT_S, env=env, cwd=ROOT / "tests")
    return junit(report, status)


def javascript_suite(env: Mapping[str, str]) -> Count:
    report = LOGS / "javascript.xml"
    report.unlink(missing_ok=True)
    node, folder = environments.javascript()
    command = [
        node,
        "--test",
        "--test-reporter=spec",
        "--test-reporter-destination=stdout",
        "--test-reporter=junit",
        f"--test-reporter-destination={report}",
        *sorted(folder.glob("*.test.mjs")),
    ]
    status, _ = stream(command, timeout_s=SUITE_TIMEOUT_S, env=env, cwd=folder)
    return junit(report, status)


def end_to_end() -> dict[str, Count]:
    LOGS.mkdir(parents=True, exist_ok=True)
    try:
        with lab.start() as up:
            described = up.node.folder / "lab.json"
            up.write(described)
            env = {lab.LAB_VARIABLE: str(described), **up.node.sdk_environment()}
            return {
                "Python SDK, oldest": python_suite("sdk-oldest", ["e2e/sdk"], env),
                "Python SDK, newest, and the platform": python_suite("sdk-newest", ["e2e"], env),
                "JavaScript SDK, newest": javascript_suite(env),
            }
    except Exception as error:  # the summary must be printed whatever happened
        print(f"the lab could not be brought up: {error}", flush=True)
        return {"end-to-end": Count(failed=1)}


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs every test and counts them.")
    parser.add_argument("part", nargs="?", choices=("all", "rust", "e2e"), default="all")
    part = parser.parse_args().part
    CACHE.mkdir(exist_ok=True)

    counts: dict[str, Count] = {}
    took: dict[str, float] = {}

    def timed(name: str, work):
        began = time.monotonic()
        result = work()
        took[name] = time.monotonic() - began
        return result

    if not timed("build", build):
        counts["build"] = Count(failed=1)
    else:
        if part in ("all", "rust"):
            counts["Rust"] = timed("Rust", rust)
        if part in ("all", "e2e"):
            counts.update(timed("end-to-end", end_to_end))

    print()
    for name, seconds in took.items():
        print(f"time of {name}: {seconds:.0f} s")
    for name, count in counts.items():
        print(f"tests of {name}: {count}")
    total = sum(counts.values(), Count())
    print(total, flush=True)
    return 0 if total.failed == 0 and total.passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
