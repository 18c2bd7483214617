"""What a home holds, file by file, read without any code of ours."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class File:
    """Content and time of a file or of an object."""

    digest: str
    time_ns: int
    shard: str | None
    """Of a receipt: its shard, relative to the store."""


def files_of(folder: Path) -> dict[str, File]:
    """Every file below a folder, by its relative path."""
    found: dict[str, File] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content, name = path.read_bytes(), path.relative_to(folder).as_posix()
            shard = json.loads(content)["shard"] if _is_receipt(name) else None
            digest = hashlib.blake2b(content).hexdigest()
            found[name] = File(digest, path.stat().st_mtime_ns, shard)
    return found


def committed(files: Mapping[str, File]) -> dict[str, File]:
    """Those that a home promises to keep: receipts with their shards, tables of segments, whole artifacts
    that have their manifest, and records of runs."""
    done: dict[str, File] = {}
    for name, file in files.items():
        if is_draft(name):
            continue
        parts = name.split("/")
        if _is_receipt(name):
            shard = f"{parts[0]}/{parts[1]}/{file.shard}"
            assert shard in files, f"{name} is there and its shard is not"
            done |= {name: file, shard: files[shard]}
        elif parts[0] == "artifacts" and parts[-1] == "artifact.json":
            folder = name.removesuffix("artifact.json")
            done |= {n: f for n, f in files.items() if n.startswith(folder)}
        elif "/segments/" in name or parts[:2] == ["runs", "history"]:
            done[name] = file
    return {name: file for name, file in done.items() if not name.endswith(".lock")}


def is_draft(name: str) -> bool:
    """Whether it lies in, or is, an unfinished write."""
    return any(part.startswith(".draft-") for part in name.split("/"))


def _is_receipt(name: str) -> bool:
    return "/receipts/" in name and name.endswith(".json") and not is_draft(name)
