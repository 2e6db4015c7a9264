"""The images the tests use. Each is made from Debian packages by a recipe; none is fetched.

`agent` is what an agent's image looks like; the others are small and each odd in one way.
"""

import hashlib
import inspect
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from . import oci
from .shell import run, text

BUSYBOX = Path("/usr/bin/busybox") if Path("/usr/bin/busybox").exists() else Path("/bin/busybox")

AGENT_PACKAGES = ("bash", "ca-certificates", "curl", "git", "procps", "python3", "sudo")

_LEFT_OUT = ("doc", "info", "lintian", "locale", "man")


def _debian_sources() -> str:
    """The machine's own Debian sources as one-line entries, so that its mirror is used; else Debian's."""
    lines = text(
        [
            "apt-get",
            "indextargets",
            "--format",
            "deb $(REPO_URI) $(RELEASE) $(COMPONENT)|$(ORIGIN)|$(IDENTIFIER)|$(CODENAME)",
        ]
    )
    found = set()
    for line in lines.splitlines():
        entry, _, rest = line.partition("|")
        if rest.startswith("Debian|Packages|"):
            found.add(entry)
    if found:
        return "".join(f"{entry}\n" for entry in sorted(found))
    return "deb http://deb.debian.org/debian bookworm main\n"


def _debian_base() -> bytes:
    """A minimal Debian with the agent's packages, as one tar."""
    sources = _debian_sources()
    suite = sources.split()[2].partition("-")[0].partition("/")[0]
    with tempfile.TemporaryDirectory(prefix="aenv-image-") as folder:
        target = Path(folder) / "base.tar"
        command = [
            "mmdebstrap",
            "--quiet",
            "--variant=minbase",
            f"--include={','.join(AGENT_PACKAGES)}",
            *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _LEFT_OUT),
            # What the second layer of the image changes, replaces and hides.
            '--customize-hook=mkdir -p "$1/opt/layers/opaque" "$1/opt/layers/kept" "$1/opt/layers/becomes-file"',
            "--customize-hook=for f in removed kept/lower opaque/lower becomes-file/lower becomes-directory;"
            ' do echo lower > "$1/opt/layers/$f"; done',
            suite,
            target,
            "-",
        ]
        environment = dict(os.environ, SOURCE_DATE_EPOCH=str(oci.EPOCH_S))
        run(command, timeout_s=600, input=sources.encode(), env=environment)
        return target.read_bytes()


def agent() -> oci.Image:
    """Debian with bash, python3, git, curl and sudo; user `user` with password-less sudo comes in the second layer."""
    base = _debian_base()

    def appended(name: str, line: str) -> bytes:
        return oci.member_bytes(base, name) + line.encode()

    top = oci.LayerTar()
    top.file("etc/passwd", appended("etc/passwd", "user:x:1000:1000::/home/user:/bin/bash\n"))
    top.file("etc/group", appended("etc/group", "user:x:1000:\nagents:x:1001:user\n"))
    top.file("etc/shadow", appended("etc/shadow", "user:*:19000:0:99999:7:::\n"), mode=0o640, gid=42)
    top.file("etc/sudoers.d/user", b"user ALL=(ALL:ALL) NOPASSWD: ALL\n", mode=0o440)
    top.directory("home/user", uid=1000, gid=1000)
    for name in (".bashrc", ".profile"):
        top.file(f"home/user/{name}", b"", uid=1000, gid=1000)
    top.whiteout("opt/layers/removed")
    top.directory("opt/layers/opaque")
    top.opaque("opt/layers/opaque")
    top.file("opt/layers/opaque/upper", b"upper\n")
    top.file("opt/layers/kept/upper", b"upper\n")
    top.whiteout("opt/layers/becomes-file")
    top.file("opt/layers/becomes-file", b"upper\n")
    top.directory("opt/layers/becomes-directory")
    top.file("opt/layers/becomes-directory/upper", b"upper\n")
    top.hard_link("opt/layers/linked", "opt/layers/kept/lower")
    top.symlink("opt/layers/dangling", "nowhere")
    return oci.Image(
        layers=[oci.Layer(base, "gzip"), oci.Layer(top.bytes(), "zstd")],
        env={
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "IMAGE_VARIABLE": "from the image",
        },
        command=["/bin/bash"],
    )


def _busybox(tar: oci.LayerTar, *, directories: bool = True) -> None:
    tar.directory("bin")
    tar.file("bin/busybox", BUSYBOX.read_bytes(), mode=0o755)
    for applet in text([BUSYBOX, "--list"]).split():
        if applet != "busybox":
            tar.symlink(f"bin/{applet}", "busybox")
    if directories:
        for name in ("dev", "etc", "proc", "root", "sys", "usr"):
            tar.directory(name)
        tar.directory("tmp", mode=0o1777)


def tiny() -> oci.Image:
    """busybox with what the SDKs' way of running commands needs (a /bin/bash that is busybox's shell) and a `user`."""
    tar = oci.LayerTar()
    _busybox(tar)
    tar.file("bin/bash", b'#!/bin/sh\nexec /bin/sh "$@"\n', mode=0o755)
    tar.file("etc/passwd", b"root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n")
    tar.file("etc/group", b"root:x:0:\nuser:x:1000:\n")
    tar.directory("home")
    tar.directory("home/user", uid=1000, gid=1000)
    return oci.Image(layers=[oci.Layer(tar.bytes(), "zstd")], env={"PATH": "/bin"})


def bare() -> oci.Image:
    """busybox alone: no bash, no libc, no account of any kind, one layer that is not compressed."""
    tar = oci.LayerTar()
    _busybox(tar)
    return oci.Image(layers=[oci.Layer(tar.bytes(), "tar")], env={"PATH": "/bin"})


def dangling_resolv_conf() -> oci.Image:
    """/etc/resolv.conf is a symbolic link to nowhere, and there is no /proc, /dev, /sys, /run or /tmp at all."""
    tar = oci.LayerTar()
    _busybox(tar, directories=False)
    tar.directory("etc")
    tar.file("etc/passwd", b"root:x:0:0::/root:/bin/sh\n")
    tar.file("etc/group", b"root:x:0:\n")
    tar.symlink("etc/resolv.conf", "../run/systemd/resolve/stub-resolv.conf")
    return oci.Image(layers=[oci.Layer(tar.bytes(), "gzip")], env={"PATH": "/bin"})


def etc_is_missing() -> oci.Image:
    """Only /bin/busybox and its links: not even /etc."""
    tar = oci.LayerTar()
    _busybox(tar, directories=False)
    return oci.Image(layers=[oci.Layer(tar.bytes(), "gzip")])


RECIPES: dict[str, Callable[[], oci.Image]] = {
    "agent": agent,
    "tiny": tiny,
    "bare": bare,
    "dangling-resolv-conf": dangling_resolv_conf,
    "etc-is-missing": etc_is_missing,
}


def recipe_key() -> str:
    """Changes when any recipe, or the code that writes images, changes."""
    source = inspect.getsource(oci) + inspect.getsource(sys.modules[__name__])
    return hashlib.sha256(source.encode() + BUSYBOX.read_bytes()).hexdigest()[:16]
