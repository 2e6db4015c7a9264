"""Everything an end-to-end test stands on: registry with images, a network outside, and a running node.

Run as a program it keeps a lab up until Ctrl-C and prints how to reach it: `python3 -m harness.lab` in tests/.
"""

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import images
from .node import Identity, Node, Settings
from .outside import Outside
from .paths import unique_name
from .registry import with_test_images

LAB_VARIABLE = "AENV_LAB"
"""Names the file that describes a lab which is up already; tests then use that one."""

TEMPLATES = ("agent", "tiny")
"""Images that a lab's node has pulled, by template name."""


@dataclass
class Lab:
    """How to reach the parts of a lab."""

    registry_host: str
    outside_public: str
    outside_closed: list[str]
    node: Node

    def reference(self, name: str) -> str:
        """Where the test image `name` is in the lab's registry."""
        return f"{self.registry_host}/test/{name}:latest"

    def settings(self, **changes) -> Settings:
        """Settings of a node that uses this lab's registry and DNS server."""
        return Settings(insecure_registries=[self.registry_host], dns=[self.outside_public], **changes)

    @contextlib.contextmanager
    def another_node(self, templates: Sequence[str] = ("tiny",), **settings) -> Iterator[Node]:
        """A further running node of its own, for a test that breaks things."""
        with Node(self.settings(**settings)) as node:
            node.set_up_assets()
            node.start()
            for name in templates:
                node.pull(self.reference(name), name)
            yield node

    def write(self, path: Path) -> None:
        described = {
            "registry_host": self.registry_host,
            "outside_public": self.outside_public,
            "outside_closed": self.outside_closed,
            "node": dataclasses.asdict(self.node.identity),
        }
        path.write_text(json.dumps(described))

    @classmethod
    def read(cls, path: Path) -> "Lab":
        described = json.loads(path.read_text())
        node = Node(Settings(), identity=Identity(**described.pop("node")))
        return cls(node=node, **described)


def _step(text: str, began: float) -> float:
    now = time.monotonic()
    print(f"lab: {text} ({now - began:.1f} s)", flush=True)
    return now


@contextlib.contextmanager
def start() -> Iterator[Lab]:
    """Brings a lab up and takes it down again."""
    now = time.monotonic()
    with contextlib.ExitStack() as stack:
        registry = stack.enter_context(with_test_images())
        now = _step(f"registry on {registry.host} with {len(images.RECIPES)} images", now)
        outside = stack.enter_context(Outside(unique_name("o")))
        settings = Settings(insecure_registries=[registry.host], dns=[outside.dns])
        node = stack.enter_context(Node(settings))
        node.set_up_assets()
        now = _step("guest kernel, initramfs and tools", now)
        node.start()
        now = _step(f"aenv serve on {node.address}, data in {node.data_dir}", now)
        lab = Lab(registry.host, outside.public, outside.closed, node)
        for name in TEMPLATES:
            node.pull(lab.reference(name), name)
            now = _step(f"pulled {name}", now)
        yield lab


@contextlib.contextmanager
def current() -> Iterator[Lab]:
    """The lab that is up already when there is one, else a lab for this process."""
    described = os.environ.get(LAB_VARIABLE)
    if described:
        yield Lab.read(Path(described))
        return
    with start() as lab:
        yield lab


def main() -> None:
    with start() as lab:
        path = lab.node.folder / "lab.json"
        lab.write(path)
        print(f"export {LAB_VARIABLE}={path}")
        for name, value in lab.node.sdk_environment().items():
            print(f"export {name}={value}")
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                time.sleep(3600)


if __name__ == "__main__":
    main()
