"""Fixtures of the end-to-end tests: a lab for the session, sandboxes for modules and tests."""

import os
from collections.abc import Callable, Iterator

import pytest
from e2b import Sandbox
from harness import lab as labs
from harness.lab import Lab
from harness.node import Node

SANDBOX_TIMEOUT_S = 900
"""Longer than any module runs, so that a sandbox only ends when a test ends it."""


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    with labs.current() as found:
        os.environ.update(found.node.sdk_environment())
        yield found


@pytest.fixture(scope="session")
def node(lab: Lab) -> Node:
    return lab.node


def _killing(node: Node) -> Iterator[Callable[..., Sandbox]]:
    made = []

    def create(template: str = "agent", timeout: int = SANDBOX_TIMEOUT_S, **options) -> Sandbox:
        sandbox = Sandbox.create(template=template, timeout=timeout, **options)
        made.append(sandbox)
        return sandbox

    yield create
    for sandbox in made:
        node.request("DELETE", f"/sandboxes/{sandbox.sandbox_id}")


@pytest.fixture
def create(node: Node) -> Iterator[Callable[..., Sandbox]]:
    """Makes sandboxes that are killed after the test."""
    yield from _killing(node)


@pytest.fixture(scope="module")
def create_for_module(node: Node) -> Iterator[Callable[..., Sandbox]]:
    """Makes sandboxes that are killed after the module."""
    yield from _killing(node)


@pytest.fixture(scope="module")
def sandbox(create_for_module: Callable[..., Sandbox]) -> Sandbox:
    """One sandbox of the `agent` image for the whole module."""
    return create_for_module()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failure shows what the node and the consoles said."""
    outcome = yield
    report = outcome.get_result()
    found = getattr(item, "funcargs", {}).get("lab")
    if report.failed and found is not None:
        report.sections.append(("node logs", found.node.logs()))
