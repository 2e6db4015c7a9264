"""Where things are. Everything made by tests is under the repository's own scratch folders or a unique /tmp folder."""

import os
import secrets
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
LOGS = CACHE / "logs"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
AENV = Path(os.environ.get("AENV_BIN", TARGET / "debug" / "aenv"))


def unique_name(prefix: str) -> str:
    """Four characters no other run on this machine uses: as long as the name prefix of a node may be."""
    return f"{prefix}{secrets.token_hex(2)[:3]}"
