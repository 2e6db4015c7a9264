"""Images: layers on top of each other, sharing, odd ones, other sources, and refusals."""

import json
import os
import re
import time
from pathlib import Path

import pytest
from e2b import NotEnoughSpaceException, Sandbox
from harness import images, oci
from harness.shell import CommandFailed, run

MIB = 1 << 20


@pytest.fixture
def pulled(node, lab):
    """Pulls test images under their own name and removes the templates after the test."""
    names = []

    def pull(image: str, name: str | None = None) -> str:
        name = name or image
        node.pull(lab.reference(image), name)
        names.append(name)
        return name

    yield pull
    for name in names:
        node.request("DELETE", f"/templates/{name}")


def pull_events(node, **body) -> list[dict]:
    answer = node.request("POST", "/aenv/v1/templates/pull", body, timeout_s=120)
    assert answer.status == 200, answer.body
    assert answer.headers["Content-Type"].split(";")[0] == "application/x-ndjson"
    return [json.loads(line) for line in answer.body.splitlines()]


def pull_error(node, **body) -> dict:
    """The error of a pull, whether it was found before the first line or after."""
    answer = node.request("POST", "/aenv/v1/templates/pull", body, timeout_s=120)
    if answer.status != 200:
        return answer.json()
    last = json.loads(answer.body.splitlines()[-1])
    assert "error" in last, last
    return last["error"]


def test_upper_layer_hides_replaces_and_adds(sandbox):
    output = sandbox.commands.run(
        "cd /opt/layers && find . -mindepth 1 -printf '%y %P\\n' | LC_ALL=C sort -k2"
        " && stat -c %h linked && cat linked becomes-file",
    ).stdout
    assert output.splitlines() == [
        "d becomes-directory",
        "f becomes-directory/upper",
        "f becomes-file",
        "l dangling",
        "d kept",
        "f kept/lower",
        "f kept/upper",
        "f linked",
        "d opaque",
        "f opaque/upper",
        "2",
        "lower",
        "upper",
    ]


def test_packages_of_the_image_work(sandbox):
    script = "git --version && python3 -c 'import ssl, sqlite3; print(1)' && curl --version | head -1 && sudo -n true"
    assert "git version" in sandbox.commands.run(script).stdout
    assert sandbox.commands.run("dpkg --audit", user="root").stdout == ""


def test_owners_modes_and_times_are_those_of_the_layer(sandbox):
    output = sandbox.commands.run(
        "stat -c '%a %u:%g %Y' /etc/shadow /etc/sudoers.d/user /home/user", user="root"
    ).stdout
    assert output.splitlines()[:2] == [f"640 0:42 {oci.EPOCH_S}", f"440 0:0 {oci.EPOCH_S}"]
    assert output.splitlines()[2].startswith("755 1000:1000 ")
    assert sandbox.commands.run("stat -c %a /usr/bin/sudo /tmp").stdout.split() == ["4755", "1777"]


def test_root_disk_is_the_users_and_has_room(sandbox):
    output = sandbox.commands.run("df -B1 --output=size,fstype / | tail -1").stdout.split()
    assert int(output[0]) > 14 << 30
    assert output[1] == "ext4"


def test_tools_of_the_platform_are_read_only(sandbox):
    output = sandbox.commands.run("touch /agentenv/x 2>&1 || true", user="root").stdout
    assert "Read-only file system" in output


def test_pulling_again_reuses_the_layers(node, lab):
    before = node.request("GET", "/aenv/v1/templates").json()
    layers = {path for path in (node.data_dir / "layers").rglob("*") if path.is_file()}
    began = time.monotonic()
    events = pull_events(node, source=lab.reference("agent"), name="agent-again")
    assert time.monotonic() - began < 5, "the layers were converted again"
    template = events[-1]["template"]
    agent = next(item for item in before if item["name"] == "agent")
    assert template["manifestDigest"] == agent["manifestDigest"]
    phases = {event["progress"]["phase"] for event in events[:-1]}
    assert "convert" not in phases
    assert {path for path in (node.data_dir / "layers").rglob("*") if path.is_file()} == layers
    assert node.request("DELETE", "/templates/agent-again").status == 204
    assert node.request("DELETE", "/templates/agent-again").status == 404
    assert Sandbox.create(template="agent", timeout=60).kill()


def test_pull_tells_its_progress(node, lab):
    events = pull_events(node, source=lab.reference("bare"), name="bare")
    phases = [event["progress"]["phase"] for event in events[:-1]]
    assert phases, "no progress"
    assert set(phases) <= {"resolve", "fetch", "convert", "reuse", "finish"}
    assert events[-1]["template"]["name"] == "bare"
    node.request("DELETE", "/templates/bare")


def test_sandboxes_share_the_layers_and_own_what_they_write(node, create):
    sandboxes = [create("agent") for _ in range(2)]
    layers = sum(path.stat().st_blocks * 512 for path in (node.data_dir / "layers").rglob("*") if path.is_file())

    def own_bytes(sandbox: Sandbox) -> int:
        folder = node.data_dir / "sandboxes" / sandbox.sandbox_id
        return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())

    assert layers > 100 * MIB
    assert all(own_bytes(sandbox) < 32 * MIB for sandbox in sandboxes)
    before = own_bytes(sandboxes[1])
    sandboxes[0].commands.run("head -c 20000000 /dev/urandom > /home/user/data && sync")
    assert own_bytes(sandboxes[0]) > 20_000_000
    assert own_bytes(sandboxes[1]) - before < 8 * MIB


@pytest.mark.parametrize("image", ["bare", "dangling-resolv-conf", "etc-is-missing"])
def test_odd_image_boots_and_runs_a_program(node, pulled, create, image):
    sandbox = create(pulled(image))
    assert sandbox.is_running()
    result = node.aenv("exec", sandbox.sandbox_id, "--", "/bin/busybox", "sh", "-c", "echo alive; id -u; pwd")
    assert result.stdout.decode().split()[:2] == ["alive", "0"]
    assert sandbox.files.write("/made/by/upload", "content").path == "/made/by/upload"
    assert sandbox.files.read("/made/by/upload") == "content"
    script = "mount && ls /proc/self/exe /dev/null /dev/pts /sys/kernel /tmp"
    shown = node.aenv("exec", sandbox.sandbox_id, "--", "/bin/busybox", "sh", "-c", script).stdout.decode()
    assert "proc on /proc" in shown


def test_resolver_works_although_the_link_in_the_image_dangles(node, pulled, create, lab):
    sandbox = create(pulled("dangling-resolv-conf"))
    shown = node.aenv("exec", sandbox.sandbox_id, "--", "/bin/busybox", "cat", "/etc/resolv.conf").stdout.decode()
    assert f"nameserver {lab.outside_public}" in shown


@pytest.mark.timeout(240)
def test_sources_that_are_files(node, create, tmp_path):
    image = images.tiny()
    image.layers[0].compression = "gzip"  # Docker's archives know no zstd
    oci.write_layout(image, tmp_path / "layout", "latest")
    archive, rootfs = tmp_path / "image.tar", tmp_path / "rootfs.tar"
    run(["skopeo", "--insecure-policy", "copy", f"oci:{tmp_path}/layout:latest", f"docker-archive:{archive}:t:latest"])
    rootfs.write_bytes(image.layers[0].tar)
    for kind, source in (("oci", tmp_path / "layout"), ("docker-archive", archive), ("rootfs", rootfs)):
        name = f"from-{kind}"
        node.pull(f"{kind}:{source}", name)
        sandbox = create(name)
        assert sandbox.commands.run("echo $0 works").stdout.endswith("works\n")
        assert node.request("DELETE", f"/templates/{name}").status == 204


def test_unknown_image_is_named(node, lab):
    error = pull_error(node, source=f"{lab.registry_host}/test/no-such-image:latest", name="x")
    assert error["code"] == 404
    assert "no-such-image" in error["message"]


def test_unknown_tag_is_named(node, lab):
    error = pull_error(node, source=f"{lab.registry_host}/test/tiny:no-such-tag", name="x")
    assert error["code"] == 404
    assert "no-such-tag" in error["message"]


def test_digest_that_is_not_there_is_named(node, lab):
    digest = "sha256:" + "0" * 64
    error = pull_error(node, source=f"{lab.registry_host}/test/tiny@{digest}", name="x")
    assert error["code"] == 404
    assert "0" * 12 in error["message"]


def test_unreachable_registry_is_named(node):
    began = time.monotonic()
    error = pull_error(node, source="127.0.0.1:9/test/tiny:latest", name="x")
    assert "127.0.0.1:9" in error["message"]
    assert error["code"] >= 400
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    "source", ["", "UPPER/case", "a b", "oci:/no/such/folder", "rootfs:/no/such/file.tar", "http://x/y"]
)
def test_source_that_cannot_be(node, source):
    error = pull_error(node, source=source, name="x")
    assert 400 <= error["code"] < 500, error


@pytest.mark.parametrize("name", ["", "UPPER", "a/b", "..", "x" * 200, "-x"])
def test_template_name_that_cannot_be(node, lab, name):
    assert pull_error(node, source=lab.reference("tiny"), name=name)["code"] == 400


def _damaged_layout(folder, *, damage):
    """An OCI layout whose layer blob was changed by `damage` without telling the manifest.

    The content is random: a layer that the node has already is not read again, damaged or not.
    """
    tar = oci.LayerTar()
    tar.file("random", os.urandom(100_000))
    oci.write_layout(oci.Image([oci.Layer(tar.bytes(), "gzip")]), folder, "latest")
    index = json.loads((folder / "index.json").read_text())
    manifest = json.loads(blob(folder, index["manifests"][0]["digest"]).read_bytes())
    layer = blob(folder, manifest["layers"][0]["digest"])
    layer.write_bytes(damage(layer.read_bytes()))
    return manifest["layers"][0]["digest"]


def blob(folder, digest: str):
    return folder / "blobs" / "sha256" / digest.partition(":")[2]


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: data[: len(data) // 2], lambda data: data + b"more"],
    ids=["changed", "shortened", "lengthened"],
)
def test_layer_that_is_not_what_its_digest_says_is_refused(node, tmp_path, damage):
    digest = _damaged_layout(tmp_path / "layout", damage=damage)
    name = f"damaged-{digest.removeprefix('sha256:')[:12]}"
    error = pull_error(node, source=f"oci:{tmp_path}/layout", name=name)
    assert digest.removeprefix("sha256:")[:12] in error["message"]
    assert name not in [item["name"] for item in node.request("GET", "/aenv/v1/templates").json()]


def _hostile(kind: str) -> bytes:
    tar = oci.LayerTar()
    if kind == "parent":
        tar.file("a/../../../../escaped", b"x")
    elif kind == "link":
        tar.symlink("out", "/tmp")
        tar.file("out/aenv-escaped", b"x")
    elif kind == "relative-link":
        tar.symlink("out", "../../../../../../tmp")
        tar.file("out/aenv-escaped", b"x")
    elif kind == "hard-link":
        tar.hard_link("shadow", "../../../../../../etc/shadow")
    else:
        return tar.bytes()[:1] + b"not a tar at all" * 100
    return tar.bytes()


@pytest.mark.parametrize("kind", ["parent", "link", "relative-link", "hard-link", "garbage"])
def test_hostile_layer_does_not_touch_the_host(node, tmp_path, kind):
    """Such a layer is refused, or its members stay inside the image; the host never sees them."""
    path = tmp_path / "rootfs.tar"
    path.write_bytes(_hostile(kind))
    error = None
    try:
        node.pull(f"rootfs:{path}", "hostile")
    except CommandFailed as failed:
        error = str(failed)
    assert not Path("/tmp/aenv-escaped").exists()
    assert not Path("/escaped").exists()
    if kind in ("parent", "hard-link", "garbage"):
        assert error, "the layer was accepted"
    node.request("DELETE", "/templates/hostile")


@pytest.mark.timeout(240)
def test_full_disk_is_an_error_of_the_guest_alone(node, lab, create):
    events = pull_events(node, source=lab.reference("tiny"), name="small", virtualSizeBytes=96 * MIB)
    assert events[-1]["template"]["virtualSizeBytes"] == 96 * MIB
    sandbox = create("small")
    output = sandbox.commands.run("dd if=/dev/zero of=/home/user/fill bs=1M 2>&1 || true", timeout=100).stdout
    assert "No space left on device" in output
    with pytest.raises(NotEnoughSpaceException):
        sandbox.files.write("/home/user/more", b"x" * (4 * MIB))
    sandbox.commands.run("rm /home/user/fill")
    sandbox.files.write("/home/user/more", b"x" * MIB)
    assert sandbox.commands.run("wc -c < /home/user/more").stdout.strip() == str(MIB)
    console = node.request("GET", f"/aenv/v1/sandboxes/{sandbox.sandbox_id}/console").body.decode(errors="replace")
    assert not re.search("I/O error|EXT4-fs error", console)
    node.request("DELETE", "/templates/small")
