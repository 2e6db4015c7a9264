"""Commands through the published SDK: output, exit, users, signals, standard input, reconnection."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from e2b import (
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    TimeoutException,
)


def test_output_goes_to_its_own_stream(sandbox):
    result = sandbox.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0)


def test_output_streams_while_the_command_runs(sandbox):
    arrivals = []
    sandbox.commands.run(
        "for i in 1 2 3; do echo $i; sleep 0.7; done",
        on_stdout=lambda chunk: arrivals.append((time.monotonic(), chunk)),
    )
    ended = time.monotonic()
    assert "".join(chunk for _, chunk in arrivals) == "1\n2\n3\n"
    assert len(arrivals) == 3
    assert ended - arrivals[0][0] > 1.3, "the first line was held back"


def test_both_streams_keep_their_order(sandbox):
    out, err = [], []
    script = "for i in $(seq 1 200); do echo out$i; echo err$i >&2; done"
    sandbox.commands.run(script, on_stdout=out.append, on_stderr=err.append)
    assert "".join(out) == "".join(f"out{i}\n" for i in range(1, 201))
    assert "".join(err) == "".join(f"err{i}\n" for i in range(1, 201))


def test_exit_code_and_output_of_a_failure(sandbox):
    with pytest.raises(CommandExitException) as caught:
        sandbox.commands.run("echo before; echo why >&2; exit 7")
    assert caught.value.exit_code == 7
    assert caught.value.stdout == "before\n"
    assert caught.value.stderr == "why\n"


def test_unknown_program_is_127(sandbox):
    with pytest.raises(CommandExitException) as caught:
        sandbox.commands.run("no-such-program")
    assert caught.value.exit_code == 127
    assert "no-such-program" in caught.value.stderr


def test_death_by_signal_is_not_an_exit(sandbox):
    with pytest.raises(CommandExitException) as caught:
        sandbox.commands.run("kill -9 $$")
    assert caught.value.exit_code == -1


def test_environment_of_one_command(sandbox):
    assert sandbox.commands.run('echo "$A|$B"', envs={"A": "a b", "B": "é"}).stdout == "a b|é\n"
    assert sandbox.commands.run('echo "[$A]"').stdout == "[]\n"


def test_environment_of_the_image_is_set(sandbox):
    assert sandbox.commands.run('echo "$IMAGE_VARIABLE"').stdout == "from the image\n"


def test_sandbox_is_named_in_the_environment(sandbox):
    output = sandbox.commands.run('echo "$E2B_SANDBOX $E2B_SANDBOX_ID"').stdout
    assert output == f"true {sandbox.sandbox_id}\n"


def test_default_user_and_folder(sandbox):
    assert sandbox.commands.run("id -un; pwd; echo $HOME").stdout == "user\n/home/user\n/home/user\n"


def test_user_root(sandbox):
    assert sandbox.commands.run("id -u; echo $HOME", user="root").stdout == "0\n/root\n"


def test_supplementary_groups_apply(sandbox):
    assert sandbox.commands.run("id -Gn").stdout.split() == ["user", "agents"]


def test_sudo_works_without_a_password(sandbox):
    assert sandbox.commands.run("sudo -n id -u").stdout == "0\n"


def test_unknown_user_is_refused(sandbox):
    with pytest.raises(AuthenticationException, match="nobody-here"):
        sandbox.commands.run("true", user="nobody-here")


def test_working_folder(sandbox):
    assert sandbox.commands.run("pwd", cwd="/usr/share").stdout == "/usr/share\n"


def test_missing_working_folder_is_refused(sandbox):
    with pytest.raises(InvalidArgumentException, match="/no/such/folder"):
        sandbox.commands.run("true", cwd="/no/such/folder")


def test_background_command_is_listed_and_killed(sandbox):
    command = sandbox.commands.run("sleep 300", background=True)
    assert command.pid in [process.pid for process in sandbox.commands.list()]
    assert command.kill() is True
    with pytest.raises(CommandExitException) as caught:
        command.wait()
    assert caught.value.exit_code == -1
    assert command.pid not in [process.pid for process in sandbox.commands.list()]


def test_killed_command_is_reaped(sandbox):
    command = sandbox.commands.run("exec sleep 300", background=True)
    sandbox.commands.run(f"kill -0 {command.pid}")
    assert sandbox.commands.kill(command.pid) is True
    with pytest.raises(CommandExitException):
        sandbox.commands.run(f"kill -0 {command.pid}", user="root")
    assert sandbox.commands.kill(command.pid) is False


def test_reconnect_to_a_running_command(sandbox):
    command = sandbox.commands.run("while :; do echo tick; sleep 0.3; done", background=True)
    command.disconnect()
    again = sandbox.commands.connect(command.pid)
    lines = []
    for stdout, _, _ in again:
        lines.append(stdout)
        if len(lines) == 3:
            break
    assert set("".join(lines).split()) == {"tick"}
    again.disconnect()
    assert sandbox.commands.kill(command.pid) is True


def test_client_that_leaves_does_not_end_the_command(sandbox):
    command = sandbox.commands.run("sleep 2; echo done > /tmp/left-alone", background=True)
    command.disconnect()
    deadline = time.monotonic() + 20
    while not sandbox.files.exists("/tmp/left-alone"):
        assert time.monotonic() < deadline, "the command did not finish"
        time.sleep(0.3)


def test_connect_to_an_unknown_process(sandbox):
    with pytest.raises(NotFoundException):
        sandbox.commands.connect(999999)


def test_standard_input(sandbox):
    command = sandbox.commands.run("cat; echo ended", background=True, stdin=True)
    sandbox.commands.send_stdin(command.pid, "first\n")
    sandbox.commands.send_stdin(command.pid, "second é\n")
    sandbox.commands.close_stdin(command.pid)
    assert command.wait().stdout == "first\nsecond é\nended\n"


def test_standard_input_is_empty_unless_asked_for(sandbox):
    assert sandbox.commands.run("cat; echo ended", timeout=20).stdout == "ended\n"


def test_timeout_ends_the_command(sandbox):
    with pytest.raises(TimeoutException):
        sandbox.commands.run("exec sleep 234", timeout=1)
    deadline = time.monotonic() + 10
    while sandbox.commands.run("pgrep -f '^sleep 23[4]' | wc -l").stdout.strip() != "0":
        assert time.monotonic() < deadline, "the command outlived its timeout"
        time.sleep(0.3)


def test_large_output_is_complete(sandbox):
    lines = 200_000
    assert sandbox.commands.run(f"seq 1 {lines}").stdout == "".join(f"{i}\n" for i in range(1, lines + 1))


def test_multi_byte_characters_survive_chunk_borders(sandbox):
    result = sandbox.commands.run("python3 -c \"print('你' * 50000)\"")
    assert result.stdout == "你" * 50000 + "\n"


def test_bytes_that_are_not_text_become_replacement_characters(sandbox):
    result = sandbox.commands.run("head -c 8191 /dev/zero | tr '\\0' a; printf '\\xe4'")
    assert result.stdout == "a" * 8191 + "\ufffd"


def test_background_child_that_let_go_of_the_output_does_not_hold_the_end(sandbox):
    began = time.monotonic()
    assert sandbox.commands.run("sleep 60 >/dev/null 2>&1 & echo started").stdout == "started\n"
    assert time.monotonic() - began < 30
    sandbox.commands.run("pkill -f 'sleep 6[0]' || true")


def test_many_commands_at_once(sandbox):
    count = 12
    with ThreadPoolExecutor(count) as pool:
        results = list(pool.map(lambda i: sandbox.commands.run(f"sleep 2; echo {i}").stdout, range(count)))
    assert results == [f"{i}\n" for i in range(count)]


def test_one_silent_client_does_not_hold_up_the_others(sandbox):
    flood = sandbox.commands.run("yes", background=True)
    assert sandbox.commands.run("echo through").stdout == "through\n"
    assert sandbox.commands.kill(flood.pid) is True
    flood.disconnect()
