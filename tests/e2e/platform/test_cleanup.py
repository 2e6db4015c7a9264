"""Nothing of a sandbox is left on the host when it is gone."""

import os
import signal
import time

import pytest
from e2b import Sandbox
from harness import leftovers

SETTLE_TIMEOUT_S = 20


@pytest.mark.timeout(420)
def test_twenty_sandboxes_leave_nothing_behind(lab, node):
    before = node.observe()
    for index in range(20):
        sandbox = Sandbox.create(template="tiny", timeout=600)
        if index % 5 == 0:
            assert sandbox.commands.run("echo ok > /home/user/x && cat /home/user/x").stdout == "ok\n"
        if index == 0:
            during = leftovers.appeared(before, node.observe())
            kinds = {line.partition(":")[0] for line in during}
            assert {"process", "network namespace", "file"} <= kinds, "the observation does not see sandboxes"
        assert sandbox.kill() is True
    assert leftovers.settled(before, node.scope, SETTLE_TIMEOUT_S) == []
    assert node.sandbox_ids() == []


@pytest.mark.timeout(240)
def test_several_sandboxes_at_once_leave_nothing_behind(lab, node):
    before = node.observe()
    sandboxes = [Sandbox.create(template="tiny", timeout=600) for _ in range(4)]
    for sandbox in sandboxes:
        sandbox.commands.run("sleep 1000 & echo", background=False)
    for sandbox in reversed(sandboxes):
        assert sandbox.kill() is True
    assert leftovers.settled(before, node.scope, SETTLE_TIMEOUT_S) == []


@pytest.mark.timeout(240)
def test_expired_sandbox_leaves_nothing_behind(lab, node):
    before = node.observe()
    sandbox = Sandbox.create(template="tiny", timeout=3)
    deadline = time.monotonic() + 20
    while sandbox.sandbox_id in node.sandbox_ids():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert leftovers.settled(before, node.scope, SETTLE_TIMEOUT_S) == []


@pytest.mark.timeout(240)
def test_create_that_is_abandoned_leaves_nothing_behind(lab, node):
    """The client goes away in the middle of a create and the sandbox is killed as soon as it shows."""
    before = node.observe()
    with pytest.raises(TimeoutError):
        node.request("POST", "/v2/sandboxes", {"templateID": "tiny", "timeout": 600}, timeout_s=0.3)
    deadline = time.monotonic() + 30
    while leftovers.appeared(before, node.observe()):
        node.kill_sandboxes()
        assert time.monotonic() < deadline, leftovers.appeared(before, node.observe())
        time.sleep(0.5)


@pytest.mark.timeout(240)
def test_node_that_starts_again_sweeps_what_a_killed_one_left(lab):
    with lab.another_node(templates=("tiny",)) as node:
        before = node.observe()
        for _ in range(2):
            assert node.request("POST", "/v2/sandboxes", {"templateID": "tiny", "timeout": 600}).status == 201
        node.kill()
        for pid in node.virtual_machine_pids():
            os.kill(pid, signal.SIGKILL)
        node.start()
        rest = leftovers.settled(before, node.scope, SETTLE_TIMEOUT_S)
        # The node itself is another process than before.
        assert [line for line in rest if not (line.startswith("process:") and line.endswith(" serve"))] == []


@pytest.mark.timeout(240)
def test_stopped_node_leaves_nothing_but_its_data(lab):
    with lab.another_node(templates=("tiny",)) as node:
        sandbox = node.request("POST", "/v2/sandboxes", {"templateID": "tiny", "timeout": 600}).json()
        assert node.request("DELETE", f"/sandboxes/{sandbox['sandboxID']}").status == 204
        node.stop()
        rest = leftovers.appeared({}, node.observe())
        data = f"file: {node.data_dir}/"
        assert [line for line in rest if not line.startswith(data)] == []
