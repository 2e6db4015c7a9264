"""SIGKILL to the node's processes while sandboxes run: nothing acknowledged is lost, and sandboxes go on."""

import contextlib
import os
import signal
import time

import pytest
from e2b import Sandbox, SandboxException

WRITER = """
i=0
while [ ! -e /home/user/stop ]; do
  i=$((i + 1))
  if echo $i > /home/user/data/$i && sync /home/user/data/$i; then echo $i; else echo "failed $i"; fi
done
echo last $i
"""


@pytest.fixture
def own_node(lab):
    """A node for this test alone: what is done to it must not hurt the others."""
    with lab.another_node(templates=("tiny",)) as node:
        yield node


@pytest.fixture
def options(own_node) -> dict:
    """How the SDK reaches `own_node`."""
    return {"api_key": own_node.api_key, "api_url": own_node.url, "sandbox_url": own_node.url}


def wait_until(condition, timeout_s: float, what: str):
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def assert_no_io_error(node, sandbox) -> None:
    console = node.request("GET", f"/aenv/v1/sandboxes/{sandbox.sandbox_id}/console").body.decode(errors="replace")
    for sign in ("I/O error", "EXT4-fs error", "Buffer I/O", "Remounting filesystem read-only"):
        assert sign not in console, console[-2000:]


@pytest.mark.timeout(120)
def test_guest_daemon_that_was_killed_serves_its_owner_again_and_nobody_else(own_node, options):
    sandbox = Sandbox.create(template="tiny", timeout=600, envs={"KEPT": "yes"}, **options)
    with contextlib.suppress(SandboxException):
        sandbox.commands.run("kill -9 $(pidof aenv-envd)", user="root")
    wait_until(sandbox.is_running, 20, "the guest daemon did not come back")
    assert sandbox.commands.run("echo $KEPT").stdout == "yes\n"
    takeover = """{"accessToken": "evil", "defaultUser": "root"}"""
    request = "POST /init HTTP/1.0\\r\\nContent-Type: application/json\\r\\nContent-Length: %d\\r\\n\\r\\n%s"
    answer = sandbox.commands.run(f"printf '{request % (len(takeover), takeover)}' | nc 127.0.0.1 49983").stdout
    assert answer.startswith("HTTP/1.0 401") or answer.startswith("HTTP/1.1 401"), answer


@pytest.mark.timeout(240)
def test_sandboxes_survive_sigkill_of_the_node(own_node, options):
    sandboxes = [Sandbox.create(template="tiny", timeout=600, **options) for _ in range(2)]
    first = sandboxes[0]
    first.files.write("/home/user/before", "kept")
    ticking = first.commands.run("i=0; while :; do i=$((i+1)); echo $i; sleep 0.2; done", background=True)
    machines = set(own_node.virtual_machine_pids())
    assert len(machines) == 2

    own_node.kill()
    assert machines == set(own_node.virtual_machine_pids()), "a virtual machine died with the node"
    own_node.start()

    assert set(own_node.sandbox_ids()) == {sandbox.sandbox_id for sandbox in sandboxes}
    assert set(own_node.virtual_machine_pids()) == machines
    again = Sandbox.connect(first.sandbox_id, **options)
    assert again.files.read("/home/user/before") == "kept"
    assert again.commands.run("echo alive").stdout == "alive\n"

    # The command that ran all the time is still there, and its output goes on where it is now.
    seen = []
    for stdout, _, _ in again.commands.connect(ticking.pid):
        seen += [int(line) for line in (stdout or "").split()]
        if len(seen) >= 3:
            break
    assert seen == list(range(seen[0], seen[0] + len(seen)))
    assert seen[0] > 1

    for sandbox in sandboxes:
        assert Sandbox.connect(sandbox.sandbox_id, **options).kill() is True
    wait_until(lambda: not own_node.virtual_machine_pids(), 20, "a virtual machine outlived its sandbox")


@pytest.mark.timeout(240)
def test_timeout_of_an_adopted_sandbox_is_kept(own_node, options):
    sandbox = Sandbox.create(template="tiny", timeout=600, **options)
    before = sandbox.get_info()
    own_node.kill()
    own_node.start()
    after = sandbox.get_info()
    assert (after.started_at, after.end_at) == (before.started_at, before.end_at)
    sandbox.set_timeout(1)
    wait_until(lambda: not own_node.virtual_machine_pids(), 20, "the adopted sandbox did not expire")


@pytest.mark.timeout(240)
def test_sandbox_that_expired_while_the_node_was_down_is_killed(own_node, options):
    Sandbox.create(template="tiny", timeout=5, **options)
    own_node.kill()
    time.sleep(6)
    own_node.start()
    wait_until(lambda: not own_node.sandbox_ids(), 20, "the expired sandbox is still listed")
    wait_until(lambda: not own_node.virtual_machine_pids(), 20, "the expired sandbox still runs")


@pytest.mark.timeout(240)
def test_virtual_machine_that_died_is_noticed(own_node, options):
    sandbox = Sandbox.create(template="tiny", timeout=600, **options)
    (machine,) = own_node.virtual_machine_pids()
    os.kill(machine, signal.SIGKILL)
    wait_until(lambda: sandbox.sandbox_id not in own_node.sandbox_ids(), 20, "the dead sandbox is still listed")
    assert sandbox.is_running() is False


@pytest.mark.timeout(240)
def test_virtual_machine_that_died_with_the_node_is_noticed(own_node, options):
    sandbox = Sandbox.create(template="tiny", timeout=600, **options)
    (machine,) = own_node.virtual_machine_pids()
    own_node.kill()
    os.kill(machine, signal.SIGKILL)
    own_node.start()
    wait_until(lambda: sandbox.sandbox_id not in own_node.sandbox_ids(), 20, "the dead sandbox is still listed")
    assert Sandbox.create(template="tiny", timeout=60, **options).commands.run("echo ok").stdout == "ok\n"


@pytest.mark.timeout(300)
def test_no_flushed_write_is_lost_by_sigkill_of_storaged(own_node, options):
    sandbox = Sandbox.create(template="tiny", timeout=600, **options)
    sandbox.files.make_dir("/home/user/data")
    acknowledged = []
    writer = sandbox.commands.run(WRITER, background=True, timeout=0)

    def written() -> int:
        return int(sandbox.commands.run("ls /home/user/data | wc -l").stdout)

    for _ in range(3):
        enough = written() + 20
        wait_until(lambda enough=enough: written() >= enough, 60, "the writer does not come on")
        pid = own_node.role_pid("storaged")
        os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda pid=pid: any(
                "storaged" in command.split() and other != pid for other, command in own_node.processes().items()
            ),
            30,
            "storaged was not started again",
        )
    enough = written() + 20
    wait_until(lambda: written() >= enough, 60, "the writer stands still after the last SIGKILL")

    sandbox.files.write("/home/user/stop", "")
    result = writer.wait()
    lines = result.stdout.splitlines()
    assert not [line for line in lines if line.startswith("failed")], result.stdout[-500:]
    acknowledged = [int(line) for line in lines if line.isdigit()]
    assert acknowledged == list(range(1, len(acknowledged) + 1))
    check = 'cd /home/user/data && for f in *; do [ "$(cat $f)" = $f ] || echo $f; done; ls | wc -l'
    assert sandbox.commands.run(check, timeout=120).stdout.split() == [str(len(acknowledged))]
    assert_no_io_error(own_node, sandbox)
    assert sandbox.kill() is True


@pytest.mark.timeout(300)
def test_sandboxes_survive_sigkill_of_node_and_storaged_together(own_node, options):
    sandbox = Sandbox.create(template="tiny", timeout=600, **options)
    sandbox.commands.run("echo kept > /home/user/kept && sync")
    own_node.kill()
    os.kill(own_node.role_pid("storaged"), signal.SIGKILL)
    own_node.start()
    again = Sandbox.connect(sandbox.sandbox_id, **options)
    assert again.commands.run(
        "cat /home/user/kept && echo more > /home/user/more && sync && cat /home/user/more"
    ).stdout == ("kept\nmore\n")
    assert_no_io_error(own_node, again)
    other = Sandbox.create(template="tiny", timeout=60, **options)
    assert other.commands.run("echo ok").stdout == "ok\n"


def test_graceful_stop_keeps_sandboxes(own_node, options):
    sandbox = Sandbox.create(template="tiny", timeout=600, **options)
    machines = set(own_node.virtual_machine_pids())
    own_node.stop()
    assert set(own_node.virtual_machine_pids()) == machines
    own_node.start()
    assert sandbox.commands.run("echo alive").stdout == "alive\n"


def test_second_node_on_the_same_folders_is_refused(own_node):
    result = own_node.aenv("serve", check=False, timeout_s=30)
    assert result.returncode != 0
    assert b"another" in result.stderr
    assert own_node.request("GET", "/health", key=None).status == 200
