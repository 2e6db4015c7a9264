"""The part of `make demo` after compiling: a registry, a node, an image, two sandboxes, and nothing left behind."""

import argparse
import contextlib
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from e2b import Sandbox
from harness import leftovers
from harness.node import Node, Settings
from harness.paths import AENV
from harness.registry import with_test_images

MIB = 1 << 20


class Narrator:
    """Says what happens and how long it took."""

    def __init__(self, seconds_before: float) -> None:
        self._began = time.monotonic() - seconds_before
        self._bold = "\033[1m{}\033[0m" if sys.stdout.isatty() else "{}"

    def seconds(self) -> float:
        return time.monotonic() - self._began

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        print("\n" + self._bold.format(f"[{self.seconds():4.0f} s] {text}"), flush=True)
        began = time.monotonic()
        yield
        self.say(f"took {time.monotonic() - began:.1f} s")

    def say(self, text: str) -> None:
        for line in text.rstrip("\n").splitlines():
            print(f"         {line}", flush=True)


def allocated_bytes(folder: Path) -> int:
    """What the files of a folder take on the host's disk; their holes take nothing."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def mebibytes(count: int) -> str:
    return f"{count / MIB:.1f} MiB"


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise RuntimeError(f"the demo expected {what}")


def tour(node: Node, registry_reference: str, tell: Narrator) -> None:
    with tell.step(f"aenv pull {registry_reference} --name agent"):
        tell.say(node.pull(registry_reference, "agent").stdout.decode())
        layers = node.data_dir / "layers"
        for path in sorted(layers.rglob("*")):
            if path.is_file() and path.stat().st_size > MIB:
                tell.say(f"layer file {path.relative_to(layers)}: {mebibytes(path.stat().st_blocks * 512)}")

    os.environ.update(node.sdk_environment())
    before = node.observe()
    sandboxes = []
    with tell.step("Two sandboxes from the same layers, with the published e2b package"):
        for _ in range(2):
            began = time.monotonic()
            sandbox = Sandbox.create(template="agent", timeout=600)
            sandboxes.append(sandbox)
            tell.say(f"sandbox {sandbox.sandbox_id} is up after {time.monotonic() - began:.1f} s")

    with tell.step("Each is a machine with its own kernel"):
        boots = {Path("/proc/sys/kernel/random/boot_id").read_text().strip()}
        tell.say(f"this host: Linux {platform.release()}")
        for sandbox in sandboxes:
            release, boot_id = sandbox.commands.run("uname -r; cat /proc/sys/kernel/random/boot_id").stdout.split()
            boots.add(boot_id)
            tell.say(f"{sandbox.sandbox_id}: Linux {release}, boot {boot_id}")
            expect(release != platform.release(), "another kernel than the host's")
        expect(len(boots) == 3, "three kernels that booted at different times")

    for sandbox in sandboxes:
        with tell.step(f"A command in {sandbox.sandbox_id}, its output as it comes"):
            sandbox.commands.run(
                'for i in 1 2 3; do echo "$(date +%T) line $i, user $(id -un)"; sleep 1; done',
                on_stdout=lambda chunk: tell.say(f"{time.strftime('%T')} received: {chunk}"),
            )

    with tell.step("A file in each; their disks are private"):
        for sandbox in sandboxes:
            sandbox.files.write("/home/user/note.txt", f"written in {sandbox.sandbox_id}\n")
        sandboxes[0].commands.run("head -c 20000000 /dev/urandom > /home/user/data && sync")
        for sandbox in sandboxes:
            content = sandbox.files.read("/home/user/note.txt")
            tell.say(f"{sandbox.sandbox_id} reads: {content.strip()}")
            expect(sandbox.sandbox_id in content, "each sandbox to read what it wrote")
        expect(not sandboxes[1].files.exists("/home/user/data"), "the second disk without the first one's file")
        tell.say("the first one's 20 MB file does not exist in the second one")

    with tell.step("What it takes on this host's disk"):
        tell.say(f"shared layers, once: {mebibytes(allocated_bytes(node.data_dir / 'layers'))}")
        for sandbox in sandboxes:
            folder = node.data_dir / "sandboxes" / sandbox.sandbox_id
            tell.say(f"{sandbox.sandbox_id}'s own layer: {mebibytes(allocated_bytes(folder))}")

    with tell.step("Killing both; what is left of them"):
        for sandbox in sandboxes:
            expect(sandbox.kill(), "the sandbox to be killed")
        rest = leftovers.settled(before, node.scope, 20)
        tell.say("\n".join(rest) or "nothing: no process, namespace, interface, mount, loop device, port or file")
        expect(not rest, "nothing to be left")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds-before", type=float, default=0)
    tell = Narrator(parser.parse_args().seconds_before)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    node = None
    try:
        with contextlib.ExitStack() as stack:
            with tell.step("A registry with an image made of Debian packages"):
                registry = stack.enter_context(with_test_images(["agent"]))
                tell.say(f"docker-registry on {registry.host}")
            node = stack.enter_context(Node(Settings(insecure_registries=[registry.host])))
            with tell.step("aenv setup: guest kernel, initramfs and tools disk"):
                tell.say(node.set_up_assets().stdout.decode())
            with tell.step("aenv serve"):
                node.start()
                tell.say(f"{AENV.name} serve answers on {node.url}; its folders are in {node.folder}")
            tour(node, registry.reference("agent"), tell)
            with tell.step("Stopping the node as an operator does; what is left of it"):
                node.stop()
                rest = [line for line in leftovers.appeared({}, node.observe()) if not line.startswith("file:")]
                tell.say("\n".join(rest) or "nothing but the files in its data folder, which are removed now")
                expect(not rest, "nothing to be left")
            with tell.step("Stopping the registry and removing the folders of this demo"):
                stack.close()
        expect(not leftovers.appeared({}, node.observe()), "nothing to be left")
    except KeyboardInterrupt:
        print("\ndemo: stopped; everything it started is removed", file=sys.stderr)
        return 130
    except Exception as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    print(f"\nThe demo is done after {tell.seconds():.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
