"""Files through the published SDK."""

import hashlib
import os
import unicodedata

import pytest
from e2b import AuthenticationException, FileType, InvalidArgumentException, NotFoundException

AWKWARD_NAMES = [
    "a 中.txt",
    "100%.txt",
    "plus+and&ampersand?.txt",
    "quote'single",
    unicodedata.normalize("NFD", "é.txt"),
    "-leading-hyphen",
    "x" * 255,
]


@pytest.fixture
def folder(sandbox, request) -> str:
    """An empty folder for one test."""
    path = f"/home/user/{hashlib.sha1(request.node.name.encode()).hexdigest()[:12]}"
    sandbox.files.make_dir(path)
    return path


def test_text_round_trip(sandbox, folder):
    written = sandbox.files.write(f"{folder}/note.txt", "line\nzweite Zeile ü\n")
    assert (written.path, written.name, written.type) == (f"{folder}/note.txt", "note.txt", FileType.FILE)
    assert sandbox.files.read(f"{folder}/note.txt") == "line\nzweite Zeile ü\n"


def test_bytes_round_trip(sandbox, folder):
    data = bytes(range(256)) * 5 + b"\x89PNG\r\n\x1a\n"
    sandbox.files.write(f"{folder}/binary", data)
    assert bytes(sandbox.files.read(f"{folder}/binary", format="bytes")) == data


def test_empty_file(sandbox, folder):
    sandbox.files.write(f"{folder}/empty", "")
    assert sandbox.files.read(f"{folder}/empty") == ""
    assert bytes(sandbox.files.read(f"{folder}/empty", format="bytes")) == b""
    assert sandbox.files.get_info(f"{folder}/empty").size == 0


@pytest.mark.timeout(240)
def test_fifty_mebibytes_round_trip(sandbox, folder):
    data = os.urandom(1 << 20) * 50
    wanted = hashlib.sha256(data).hexdigest()
    sandbox.files.write(f"{folder}/large", data, request_timeout=120)
    assert sandbox.commands.run(f"sha256sum < {folder}/large", timeout=60).stdout.split()[0] == wanted
    digest = hashlib.sha256()
    for chunk in sandbox.files.read(f"{folder}/large", format="stream", request_timeout=120):
        digest.update(chunk)
    assert digest.hexdigest() == wanted


@pytest.mark.parametrize("name", AWKWARD_NAMES, ids=range(len(AWKWARD_NAMES)))
def test_awkward_names(sandbox, folder, name):
    sandbox.files.write(f"{folder}/{name}", name)
    assert sandbox.files.read(f"{folder}/{name}") == name
    assert [entry.name for entry in sandbox.files.list(folder)] == [name]
    assert sandbox.files.exists(f"{folder}/{name}")
    sandbox.files.remove(f"{folder}/{name}")
    assert sandbox.files.list(folder) == []


def test_write_makes_parents_and_belongs_to_the_user(sandbox, folder):
    sandbox.files.write(f"{folder}/a/b/c.txt", "deep")
    assert sandbox.commands.run(f"stat -c '%U:%G %a' {folder}/a/b/c.txt {folder}/a").stdout == (
        "user:user 644\nuser:user 755\n"
    )


def test_write_as_root(sandbox):
    sandbox.files.write("/root/secret", "of root", user="root")
    assert sandbox.commands.run("cat /root/secret", user="root").stdout == "of root"
    assert sandbox.files.get_info("/root/secret", user="root").owner == "root"


def test_relative_path_is_in_the_home_folder(sandbox):
    sandbox.files.write("relative.txt", "home")
    assert sandbox.files.read("/home/user/relative.txt") == "home"


def test_overwrite_truncates(sandbox, folder):
    sandbox.files.write(f"{folder}/file", "a much longer content")
    sandbox.files.write(f"{folder}/file", "short")
    assert sandbox.files.read(f"{folder}/file") == "short"


def test_write_several(sandbox, folder):
    files = [{"path": f"{folder}/{i}.txt", "data": f"content {i}"} for i in range(5)]
    written = sandbox.files.write_files(files)
    assert [entry.path for entry in written] == [f"{folder}/{i}.txt" for i in range(5)]
    assert [sandbox.files.read(f"{folder}/{i}.txt") for i in range(5)] == [f"content {i}" for i in range(5)]


def test_missing_file_is_not_found(sandbox, folder):
    with pytest.raises(NotFoundException):
        sandbox.files.read(f"{folder}/missing")
    with pytest.raises(NotFoundException):
        sandbox.files.get_info(f"{folder}/missing")
    assert sandbox.files.exists(f"{folder}/missing") is False


def test_reading_or_writing_a_folder_is_refused(sandbox, folder):
    with pytest.raises(InvalidArgumentException):
        sandbox.files.read(folder)
    with pytest.raises(InvalidArgumentException):
        sandbox.files.write(folder, "not a file")


def test_make_dir_says_whether_it_was_new(sandbox, folder):
    assert sandbox.files.make_dir(f"{folder}/new/nested") is True
    assert sandbox.files.make_dir(f"{folder}/new/nested") is False
    assert sandbox.files.get_info(f"{folder}/new/nested").type == FileType.DIR


def test_list_with_depth(sandbox, folder):
    sandbox.files.write(f"{folder}/top", "")
    sandbox.files.write(f"{folder}/sub/inner", "")
    sandbox.files.write(f"{folder}/sub/deeper/leaf", "")
    assert [entry.path for entry in sandbox.files.list(folder)] == [f"{folder}/sub", f"{folder}/top"]
    assert [entry.path.removeprefix(folder) for entry in sandbox.files.list(folder, depth=3)] == [
        "/sub",
        "/sub/deeper",
        "/sub/deeper/leaf",
        "/sub/inner",
        "/top",
    ]


def test_list_of_a_missing_folder_or_a_file(sandbox, folder):
    with pytest.raises(NotFoundException):
        sandbox.files.list(f"{folder}/missing")
    sandbox.files.write(f"{folder}/file", "")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.list(f"{folder}/file")


def test_info(sandbox, folder):
    sandbox.files.write(f"{folder}/file", "12345")
    sandbox.commands.run(f"chmod 0640 {folder}/file")
    info = sandbox.files.get_info(f"{folder}/file")
    assert (info.name, info.type, info.size) == ("file", FileType.FILE, 5)
    assert (info.mode, info.permissions, info.owner, info.group) == (0o640, "-rw-r-----", "user", "user")
    assert info.symlink_target is None


def test_info_of_a_symbolic_link_names_its_target(sandbox, folder):
    sandbox.files.write(f"{folder}/target", "12345")
    sandbox.commands.run(f"ln -s target {folder}/link")
    assert sandbox.files.get_info(f"{folder}/link").symlink_target == f"{folder}/target"
    assert sandbox.files.read(f"{folder}/link") == "12345"


def test_rename(sandbox, folder):
    sandbox.files.write(f"{folder}/old", "content")
    moved = sandbox.files.rename(f"{folder}/old", f"{folder}/sub/new")
    assert moved.path == f"{folder}/sub/new"
    assert sandbox.files.read(f"{folder}/sub/new") == "content"
    assert not sandbox.files.exists(f"{folder}/old")
    with pytest.raises(NotFoundException):
        sandbox.files.rename(f"{folder}/old", f"{folder}/other")


def test_remove_is_recursive(sandbox, folder):
    sandbox.files.write(f"{folder}/sub/inner", "")
    sandbox.files.remove(f"{folder}/sub")
    assert not sandbox.files.exists(f"{folder}/sub")


def test_unknown_user_is_refused(sandbox):
    with pytest.raises(AuthenticationException, match="nobody-here"):
        sandbox.files.read("/etc/hostname", user="nobody-here")


def test_commands_see_files_and_files_see_commands(sandbox, folder):
    sandbox.files.write(f"{folder}/script.py", "print(6 * 7)")
    assert sandbox.commands.run(f"python3 {folder}/script.py").stdout == "42\n"
    sandbox.commands.run(f"printf made > {folder}/by-command")
    assert sandbox.files.read(f"{folder}/by-command") == "made"
