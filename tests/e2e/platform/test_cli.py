"""The command line against a running node."""

import json
import os
import pty
import re
import select
import subprocess
import time

import pytest
from harness.paths import AENV
from harness.shell import CommandFailed

SUBCOMMANDS = (
    "serve",
    "setup",
    "doctor",
    "auth",
    "pull",
    "template",
    "start",
    "exec",
    "cp",
    "ls",
    "rm",
    "logs",
    "layer",
)


@pytest.fixture(scope="module")
def started(node):
    """A sandbox made by `aenv start -d`."""
    sandbox_id = json.loads(node.aenv("--json", "start", "agent", "-d", "--timeout", "900", "--name", "cli").stdout)[
        "sandboxID"
    ]
    yield sandbox_id
    node.aenv("rm", sandbox_id, check=False)


def execute(node, sandbox_id: str, *command: str, **options) -> subprocess.CompletedProcess:
    return node.aenv("exec", sandbox_id, "--", *command, check=False, **options)


def test_help_names_every_command(node):
    text = node.aenv("--help").stdout.decode()
    for command in SUBCOMMANDS:
        assert re.search(rf"^\s+{command}\b", text, re.MULTILINE), f"{command} is not in the help"


def test_auth_gives_what_the_sdks_need(node):
    given = json.loads(node.aenv("auth", "--json").stdout)
    assert given == {"apiKey": node.api_key, "apiUrl": node.url, "sandboxUrl": node.url}
    assert re.fullmatch(r"e2b_[0-9a-f]{40}", node.api_key), "the oldest SDK refuses keys of another shape"
    lines = 'set -eu; eval "$1"; echo $E2B_API_KEY $E2B_API_URL $E2B_SANDBOX_URL'
    shell = subprocess.run(["sh", "-c", lines, "sh", node.aenv("auth").stdout], capture_output=True, timeout=10)
    assert shell.stdout.decode().split() == [node.api_key, node.url, node.url]


def test_secrets_are_for_their_owner_alone(node):
    assert node.api_key_file.stat().st_mode & 0o077 == 0
    assert node.data_dir.stat().st_mode & 0o077 == 0
    assert node.runtime_dir.stat().st_mode & 0o077 == 0


def test_version(node):
    assert re.fullmatch(r"aenv \d+\.\d+\.\d+.*\n", node.aenv("--version").stdout.decode())


def test_ls_is_json_when_piped(node, started):
    listed = json.loads(node.aenv("ls").stdout)
    mine = next(item for item in listed if item["sandboxID"] == started)
    assert mine["state"] == "running"
    assert mine["metadata"] == {"name": "cli"}


def test_ls_is_a_table_on_a_terminal(node, started):
    text = on_terminal(node, "ls")
    assert started in text
    assert not text.lstrip().startswith(("[", "{"))


def test_exec_passes_output_and_exit_code(node, started):
    result = execute(node, started, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (result.stdout, result.stderr, result.returncode) == (b"out\n", b"err\n", 7)


def test_exec_passes_arguments_unchanged(node, started):
    arguments = ["a b", "", "$HOME", "'", '"', "*", "--flag", "é"]
    script = "import sys, json; print(json.dumps(sys.argv[1:]))"
    result = execute(node, started, "python3", "-c", script, *arguments)
    assert json.loads(result.stdout) == arguments


def test_exec_passes_standard_input(node, started):
    data = os.urandom(300_000)
    result = execute(node, started, "sh", "-c", "cat; echo end", input=data)
    assert result.stdout == data + b"end\n"
    assert result.returncode == 0


def test_exec_in_an_unknown_sandbox(node):
    result = execute(node, "i" + "0" * 19, "true")
    assert result.returncode not in (0, 1) or result.stderr
    assert b"i" + b"0" * 19 in result.stderr


def test_exec_of_an_unknown_program(node, started):
    result = execute(node, started, "no-such-program")
    assert result.returncode != 0
    assert b"no-such-program" in result.stderr


def test_copy_in_and_out(node, started, tmp_path):
    data = os.urandom(1_000_000)
    source, back = tmp_path / "source 中.bin", tmp_path / "back.bin"
    source.write_bytes(data)
    node.aenv("cp", source, f"{started}:/home/user/copied.bin")
    assert execute(node, started, "wc", "-c", "/home/user/copied.bin").stdout.split()[0] == b"1000000"
    node.aenv("cp", f"{started}:/home/user/copied.bin", back)
    assert back.read_bytes() == data


def test_copy_of_a_missing_file_says_which(node, started, tmp_path):
    with pytest.raises(CommandFailed, match="/home/user/missing"):
        node.aenv("cp", f"{started}:/home/user/missing", tmp_path / "x")
    with pytest.raises(CommandFailed, match="no-such-local-file"):
        node.aenv("cp", tmp_path / "no-such-local-file", f"{started}:/home/user/x")


def test_copy_of_a_folder_in_and_out(node, started, tmp_path):
    source, back = tmp_path / "source", tmp_path / "back"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "file 中").write_text("content")
    (source / "link").symlink_to("sub")
    (source / "script").write_text("#!/bin/sh\n")
    (source / "script").chmod(0o755)
    node.aenv("cp", source, f"{started}:/home/user/folder")
    node.aenv("cp", f"{started}:/home/user/folder", back)
    assert (back / "sub" / "file 中").read_text() == "content"
    assert os.readlink(back / "link") == "sub"
    assert (back / "script").stat().st_mode & 0o777 == 0o755
    assert execute(node, started, "stat", "-c", "%U", "/home/user/folder/script").stdout == b"user\n"


def test_logs_are_the_console(node, started):
    assert b"aenv-init:" in node.aenv("logs", started).stdout


def test_interactive_start_is_a_shell_and_its_end_removes_the_sandbox(node):
    before = set(node.sandbox_ids())
    text = on_terminal(node, "start", "tiny", typed=b"echo $((6 * 7)) at $(hostname)\nexit\n", timeout_s=60)
    assert re.search(r"42 at [a-z0-9]+", text), text
    assert set(node.sandbox_ids()) == before


def test_rm_removes(node):
    created = node.request("POST", "/v2/sandboxes", {"templateID": "tiny", "timeout": 600}).json()["sandboxID"]
    node.aenv("rm", created)
    assert created not in node.sandbox_ids()
    with pytest.raises(CommandFailed, match=created):
        node.aenv("rm", created)


def test_template_list_and_remove(node, lab):
    node.pull(lab.reference("tiny"), "for-removal")
    listed = json.loads(node.aenv("template", "ls").stdout)
    assert "for-removal" in [item["name"] for item in listed]
    node.aenv("template", "rm", "for-removal")
    assert "for-removal" not in [item["name"] for item in json.loads(node.aenv("template", "ls").stdout)]
    with pytest.raises(CommandFailed, match="for-removal"):
        node.aenv("template", "rm", "for-removal")


def test_pull_of_an_unknown_image_fails_with_its_name(node, lab):
    with pytest.raises(CommandFailed, match="no-such-image"):
        node.pull(f"{lab.registry_host}/test/no-such-image:latest", "x")


def test_pull_prints_plain_lines_when_piped(node, lab):
    result = node.pull(lab.reference("tiny"), "tiny")
    assert b"\x1b" not in result.stdout + result.stderr
    assert b"\r" not in result.stdout + result.stderr


def test_doctor_reports_what_was_chosen(node):
    report = json.loads(node.aenv("doctor", "--json").stdout)
    text = json.dumps(report).lower()
    for word in ("tcg", "fuse", "qemu"):
        assert word in text
    assert on_terminal(node, "doctor")


def test_setup_again_changes_nothing(node):
    began = time.monotonic()
    node.aenv("setup")
    assert time.monotonic() - began < 20


def test_layer_inspect_and_read(node):
    layers = [
        path for path in (node.data_dir / "layers").rglob("*") if path.is_file() and path.stat().st_size > 1 << 20
    ]
    assert layers, "no layer is in the store"
    for layer in layers:
        try:
            shown = node.aenv("layer", "inspect", layer).stdout.decode()
        except CommandFailed:
            continue
        assert re.search(r"virtual", shown, re.IGNORECASE)
        superblock = node.aenv("layer", "read", "--lower", layer, "--offset", "1024", "--length", "1024").stdout
        assert superblock[56:58] == b"\x53\xef", "no ext4 file system in the layer"
        return
    pytest.fail("no file of the store is a layer")


def test_layer_of_damage_is_refused(node, tmp_path):
    garbage = tmp_path / "garbage"
    garbage.write_bytes(os.urandom(8192))
    for arguments in (["inspect", garbage], ["read", "--lower", garbage]):
        result = node.aenv("layer", *arguments, check=False)
        assert result.returncode == 1
        assert b"garbage" in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(node, shell):
    script = node.aenv("completion", shell).stdout
    assert b"template" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, check=True, timeout=10)


def test_wrong_usage_is_2(node):
    assert node.aenv("no-such-command", check=False).returncode == 2
    assert node.aenv("start", check=False).returncode == 2


def test_unreachable_node_is_named(node, tmp_path):
    config = tmp_path / "aenv.toml"
    config.write_text(
        re.sub(r"^listen = .*$", 'listen = "127.0.0.1:9"', node.config_path.read_text(), flags=re.MULTILINE)
    )
    result = subprocess.run([AENV, "--config", config, "ls"], capture_output=True, timeout=30, env=node.environment())
    assert result.returncode != 0
    assert b"127.0.0.1:9" in result.stderr


def test_misspelt_configuration_is_refused(node, tmp_path):
    config = tmp_path / "aenv.toml"
    config.write_text(node.config_path.read_text().replace("listen =", "lisen ="))
    result = subprocess.run([AENV, "--config", config, "ls"], capture_output=True, timeout=30, env=node.environment())
    assert result.returncode != 0
    assert b"lisen" in result.stderr


PROMPT = re.compile(rb"[$#] (\x1b\[\S*)*$")


def on_terminal(node, *arguments: str, typed: bytes = b"", timeout_s: float = 30) -> str:
    """What `aenv` prints when standard input and output are a terminal."""
    controller, terminal = pty.openpty()
    command = [AENV, "--config", node.config_path, *arguments]
    process = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True, env=node.environment()
    )
    os.close(terminal)
    shown, deadline = b"", time.monotonic() + timeout_s
    try:
        while True:
            assert time.monotonic() < deadline, f"no end within {timeout_s} s: {shown!r}"
            if typed and PROMPT.search(shown):
                os.write(controller, typed)
                typed = b""
            if select.select([controller], [], [], 0.2)[0]:
                try:
                    chunk = os.read(controller, 65536)
                except OSError:
                    break  # the other side closed its terminal
                if not chunk:
                    break
                shown += chunk
        process.wait(timeout=10)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(timeout=10)
        os.close(controller)
    return shown.decode(errors="replace")
