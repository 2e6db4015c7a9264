"""Writes OCI image layouts, byte for byte the same for the same input.

Layout and media types: OCI image specification 1.1 (`image-layout.md`, `manifest.md`, `config.md`, `layer.md`).
"""

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

EPOCH_S = 1_700_000_000
"""The time of everything in a test image."""

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"

_MEDIA_TYPE = {
    "tar": "application/vnd.oci.image.layer.v1.tar",
    "gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
    "zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
}


class LayerTar:
    """A layer being written: members in the order added, fixed time, numeric owners."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._tar = tarfile.TarFile(fileobj=self._buffer, mode="w", format=tarfile.PAX_FORMAT)

    def _add(self, name: str, mode: int, uid: int, gid: int, data: bytes | None = None, **fields) -> None:
        member = tarfile.TarInfo(name)
        member.mode, member.uid, member.gid, member.mtime = mode, uid, gid, EPOCH_S
        for key, value in fields.items():
            setattr(member, key, value)
        member.size = len(data) if data is not None else 0
        self._tar.addfile(member, io.BytesIO(data) if data is not None else None)

    def directory(self, name: str, mode: int = 0o755, uid: int = 0, gid: int = 0) -> None:
        self._add(name, mode, uid, gid, type=tarfile.DIRTYPE)

    def file(self, name: str, data: bytes, mode: int = 0o644, uid: int = 0, gid: int = 0) -> None:
        self._add(name, mode, uid, gid, data)

    def symlink(self, name: str, target: str) -> None:
        self._add(name, 0o777, 0, 0, type=tarfile.SYMTYPE, linkname=target)

    def hard_link(self, name: str, target: str) -> None:
        self._add(name, 0o644, 0, 0, type=tarfile.LNKTYPE, linkname=target)

    def whiteout(self, name: str) -> None:
        """Hides what lower layers hold under `name`."""
        folder, _, base = name.rpartition("/")
        self._add(f"{folder}/{WHITEOUT}{base}" if folder else f"{WHITEOUT}{base}", 0o644, 0, 0, b"")

    def opaque(self, folder: str) -> None:
        """Hides everything lower layers hold inside `folder`."""
        self._add(f"{folder}/{OPAQUE}", 0o644, 0, 0, b"")

    def bytes(self) -> bytes:
        self._tar.close()
        return self._buffer.getvalue()


@dataclass
class Layer:
    """An uncompressed layer and how it is to be compressed: `tar` (not), `gzip` or `zstd`."""

    tar: bytes
    compression: str = "gzip"


@dataclass
class Image:
    """What goes into the image configuration, and the layers from the bottom."""

    layers: list[Layer]
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    working_dir: str = ""
    command: list[str] = field(default_factory=list)


def _compress(layer: Layer) -> bytes:
    if layer.compression == "tar":
        return layer.tar
    if layer.compression == "gzip":
        return gzip.compress(layer.tar, compresslevel=1, mtime=0)
    command = ["zstd", "-q", "-3", "-c"]
    return subprocess.run(command, input=layer.tar, capture_output=True, check=True, timeout=300).stdout


def write_layout(image: Image, folder: Path, tag: str) -> str:
    """Writes `image` as an OCI layout into `folder` (which must not exist) and returns its manifest digest."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(data: bytes, media_type: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    def document(value: object, media_type: str) -> dict[str, object]:
        return blob(json.dumps(value, sort_keys=True, separators=(",", ":")).encode(), media_type)

    created = "2023-11-14T22:13:20Z"
    config = {
        "architecture": "amd64",
        "os": "linux",
        "created": created,
        "config": {
            "Env": [f"{key}={value}" for key, value in sorted(image.env.items())],
            "User": image.user,
            "WorkingDir": image.working_dir,
            "Cmd": image.command,
        },
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{hashlib.sha256(layer.tar).hexdigest()}" for layer in image.layers],
        },
        "history": [{"created": created, "created_by": "agentenv tests"} for _ in image.layers],
    }
    manifest = document(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": document(config, "application/vnd.oci.image.config.v1+json"),
            "layers": [blob(_compress(layer), _MEDIA_TYPE[layer.compression]) for layer in image.layers],
        },
        "application/vnd.oci.image.manifest.v1+json",
    )
    manifest["annotations"] = {"org.opencontainers.image.ref.name": tag}
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    }
    (folder / "index.json").write_text(json.dumps(index, sort_keys=True))
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    return str(manifest["digest"])


def member_bytes(tar: bytes, name: str) -> bytes:
    """Content of the regular file `name` of an uncompressed tar."""
    with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as archive:
        for member in archive:
            if member.name.removeprefix("./") == name and member.isreg():
                reader = archive.extractfile(member)
                if reader is not None:
                    return reader.read()
    raise KeyError(f"{name} is not a regular file of the layer")
