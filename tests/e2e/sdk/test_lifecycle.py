"""Create, connect, look at, list, time out and kill sandboxes through the published SDK."""

import re
import time
import uuid

import pytest
from e2b import (
    AuthenticationException,
    CommandExitException,
    NotFoundException,
    Sandbox,
    SandboxException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)


def wait_until_gone(sandbox_id: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            Sandbox.get_info(sandbox_id)
        except NotFoundException:
            return
        time.sleep(0.3)
    pytest.fail(f"sandbox {sandbox_id} is still there after {timeout_s} s")


def listed(**options) -> list:
    pages = Sandbox.list(**options)
    found = []
    while pages.has_next:
        found += pages.next_items()
    return found


def test_info_of_a_running_sandbox(sandbox):
    info = sandbox.get_info()
    assert info.sandbox_id == sandbox.sandbox_id
    assert info.name == "agent"
    assert info.state == SandboxState.RUNNING
    assert info.cpu_count == 1
    assert info.memory_mb == 512
    assert info.started_at < info.end_at
    assert sandbox.is_running()


def test_sandbox_id_fits_a_host_name_label(sandbox):
    assert sandbox.sandbox_id.isalnum()
    assert sandbox.sandbox_id == sandbox.sandbox_id.lower()
    assert len(sandbox.sandbox_id) <= 57, "with a port and a hyphen a DNS label has 63 characters"


def test_host_of_a_port_names_the_sandbox(sandbox, node):
    assert sandbox.get_host(8000) == f"8000-{sandbox.sandbox_id}.{node.domain}"


def test_connect_reaches_the_same_sandbox(sandbox):
    sandbox.files.write("/tmp/who", "the first client")
    again = Sandbox.connect(sandbox.sandbox_id)
    assert again.files.read("/tmp/who") == "the first client"
    assert again.commands.run("echo usable").stdout == "usable\n"


def test_connect_does_not_shorten_the_timeout(sandbox):
    before = sandbox.get_info().end_at
    Sandbox.connect(sandbox.sandbox_id, timeout=30)
    assert sandbox.get_info().end_at >= before


def test_connect_extends_the_timeout(sandbox):
    before = sandbox.get_info().end_at
    Sandbox.connect(sandbox.sandbox_id, timeout=3000)
    assert (sandbox.get_info().end_at - before).total_seconds() > 1500


def test_set_timeout_shortens(sandbox):
    sandbox.set_timeout(1000)
    long = sandbox.get_info().end_at
    sandbox.set_timeout(500)
    assert 450 < (long - sandbox.get_info().end_at).total_seconds() < 550


def test_environment_of_create_is_seen_by_commands(create):
    sandbox = create("tiny", envs={"GREETING": "hello there"})
    assert sandbox.commands.run('echo "$GREETING"').stdout == "hello there\n"
    assert sandbox.commands.run('echo "$GREETING"', envs={"GREETING": "mine"}).stdout == "mine\n"


def test_kill_ends_the_sandbox(create):
    sandbox = create("tiny")
    assert sandbox.kill() is True
    assert sandbox.kill() is False
    assert sandbox.is_running() is False
    with pytest.raises(NotFoundException):
        sandbox.get_info()
    with pytest.raises(NotFoundException):
        Sandbox.connect(sandbox.sandbox_id)


def test_killed_sandbox_is_named_as_the_reason(create):
    sandbox = create("tiny")
    sandbox.kill()
    with pytest.raises(TimeoutException, match=r"killed or reached its|timeout"):
        sandbox.commands.run("true")
    with pytest.raises(TimeoutException, match="was not found"):
        sandbox.files.read("/etc/passwd")


def test_kill_ends_a_running_command_with_a_reason(create):
    sandbox = create("tiny")
    command = sandbox.commands.run("sleep 300", background=True)
    sandbox.kill()
    with pytest.raises(SandboxException) as caught:
        command.wait()
    assert not isinstance(caught.value, CommandExitException)
    # The older SDK words it as the sandbox's timeout, as it does for every sandbox that is gone.
    assert re.search("killed|timeout", str(caught.value))


def test_expired_sandbox_is_killed(create):
    sandbox = create("tiny", timeout=4)
    assert sandbox.is_running()
    wait_until_gone(sandbox.sandbox_id, timeout_s=20)
    assert sandbox.is_running() is False


def test_set_timeout_of_an_expiring_sandbox_keeps_it(create):
    sandbox = create("tiny", timeout=6)
    sandbox.set_timeout(600)
    time.sleep(8)
    assert sandbox.commands.run("echo alive").stdout == "alive\n"


def test_unknown_template_is_not_found(lab):
    with pytest.raises(SandboxException, match="no-such-template"):
        Sandbox.create(template="no-such-template")


def test_unknown_sandbox_is_not_found(lab):
    unknown = "i" + "0" * 19
    with pytest.raises(NotFoundException):
        Sandbox.get_info(unknown)
    with pytest.raises(NotFoundException):
        Sandbox.connect(unknown)
    assert Sandbox.kill(unknown) is False


def test_wrong_key_is_refused(lab):
    with pytest.raises(AuthenticationException):
        Sandbox.list(api_key="e2b_" + "0" * 40).next_items()
    with pytest.raises(AuthenticationException):
        Sandbox.create(template="tiny", api_key="e2b_" + "0" * 40)


def test_list_filters_by_metadata_and_pages(create):
    mark = uuid.uuid4().hex
    made = [create("tiny", metadata={"mark": mark, "odd key": f"a&b={index}"}) for index in range(3)]
    ids = [sandbox.sandbox_id for sandbox in made]

    found = listed(query=SandboxQuery(metadata={"mark": mark}))
    assert [info.sandbox_id for info in found] == ids[::-1], "newest first"
    assert found[0].metadata == {"mark": mark, "odd key": "a&b=2"}
    assert found[0].state == SandboxState.RUNNING

    one = listed(query=SandboxQuery(metadata={"mark": mark, "odd key": "a&b=1"}))
    assert [info.sandbox_id for info in one] == [ids[1]]
    assert listed(query=SandboxQuery(metadata={"mark": mark, "odd key": "other"})) == []

    pages = Sandbox.list(query=SandboxQuery(metadata={"mark": mark}), limit=2)
    first = pages.next_items()
    assert pages.has_next
    second = pages.next_items()
    assert not pages.has_next
    assert [info.sandbox_id for info in first + second] == ids[::-1]


def test_list_filters_by_state(create):
    mark = uuid.uuid4().hex
    sandbox = create("tiny", metadata={"mark": mark})
    running = SandboxQuery(metadata={"mark": mark}, state=[SandboxState.RUNNING])
    assert [info.sandbox_id for info in listed(query=running)] == [sandbox.sandbox_id]
    paused = SandboxQuery(metadata={"mark": mark}, state=[SandboxState.PAUSED])
    assert listed(query=paused) == []


def test_two_sandboxes_of_one_template_have_private_disks(create):
    one, other = create("tiny"), create("tiny")
    one.files.write("/home/user/mine", "one")
    other.files.write("/home/user/mine", "other")
    one.files.write("/home/user/only-one", "")
    assert one.files.read("/home/user/mine") == "one"
    assert other.files.read("/home/user/mine") == "other"
    assert not other.files.exists("/home/user/only-one")


def test_two_sandboxes_have_their_own_kernel_and_name(create):
    one, other = create("tiny"), create("tiny")
    boot_id = "cat /proc/sys/kernel/random/boot_id"
    with open("/proc/sys/kernel/random/boot_id") as file:
        host = file.read()
    assert len({host, one.commands.run(boot_id).stdout, other.commands.run(boot_id).stdout}) == 3
    assert one.commands.run("hostname").stdout.strip() == one.sandbox_id


def test_killing_one_sandbox_leaves_the_other(create):
    one, other = create("tiny"), create("tiny")
    other.files.write("/home/user/kept", "kept")
    one.kill()
    assert other.files.read("/home/user/kept") == "kept"
    assert other.commands.run("echo alive").stdout == "alive\n"
