"""Running programs with a deadline and an error that shows what they said."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

Argument = str | Path


class CommandFailed(Exception):
    """A program ended with a non-zero status or outlived its deadline."""


def run(
    command: Sequence[Argument],
    *,
    timeout_s: float = 60,
    env: Mapping[str, str] | None = None,
    input: bytes | None = None,
    cwd: Path | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess:
    """Runs `command` without standard input of ours and returns its bytes; raises `CommandFailed` with its output."""
    arguments = [str(argument) for argument in command]
    try:
        result = subprocess.run(
            arguments,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            timeout=timeout_s,
            env=env,
            cwd=cwd,
        )
    except subprocess.TimeoutExpired as error:
        said = ((error.stdout or b"") + (error.stderr or b"")).decode(errors="replace")[-4000:]
        raise CommandFailed(f"{' '.join(arguments)}: no end within {timeout_s} s; it said:\n{said}") from None
    if check and result.returncode != 0:
        said = (result.stdout + result.stderr).decode(errors="replace")[-4000:]
        raise CommandFailed(f"{' '.join(arguments)}: exit status {result.returncode}; it said:\n{said}")
    return result


def text(command: Sequence[Argument], **options) -> str:
    """Standard output of `command` as text."""
    return run(command, **options).stdout.decode(errors="replace")
