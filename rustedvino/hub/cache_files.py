"""Files of the compile cache: where each model's blobs lie, and how they are listed and removed.

``<ov_cache_dir>/<model id>/blobs/`` is the folder that the runtime is given for a model, so what lies there is that
model's by construction; names say nothing, for the runtime makes them of hashes. ``manifest.json`` beside it tells
whose the folder is once the model is no longer configured, and which blobs were there when a load began. That load is
unfinished while it does: a blob of its own may have been cut short, since the runtime writes blobs in place.

Everything here waits for the disk: call it in a thread.
"""

import contextlib
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from attrs import define, field, frozen

MANIFEST: Final = "manifest.json"
BLOBS: Final = "blobs"
"""Not the model id, which may end like a file: for the runtime ``CACHE_DIR`` "x.bin" is one file for everything."""
MAX_LISTED: Final = 100_000
"""Blobs that one look at the cache remembers; those beyond are counted in its size only."""
MAX_MANIFEST_BYTES: Final = 16 * 2**20
_VERSION: Final = 1
_BLOB: Final = re.compile(r"[0-9]{1,20}\.(?:blob|cl_cache|onednn\.cl_cache)")
"""Compiled models, compiled GPU kernels, and oneDNN's kernels, each by a 64-bit hash."""

Stamps = dict[str, tuple[int, int]]
"""Blobs of one folder: size in bytes and time of the last change in ns, by name."""


@frozen
class Blob:
    """A file of the runtime. ``folder`` is the model's folder, "" for one that lies in the cache's own."""

    folder: str
    name: str
    size: int
    changed_ns: int
    used_ns: int
    """The later of the times of change and of access, in ns since 1970. Linux moves the latter once a day at least
    unless the file system is mounted ``noatime``; then the age of a blob is that of its content."""
    manifest_model: str | None
    """The model that the folder's manifest names, if there is one."""


@define
class Listing:
    """What lies in the cache. ``total_bytes`` is None when a part of it could not be read."""

    blobs: list[Blob] = field(factory=list)
    total_bytes: int | None = 0
    problems: list[str] = field(factory=list)

    def unreadable(self, problem: str) -> None:
        """Note what could not be read."""
        self.total_bytes = None
        self.problems.append(problem)


@frozen
class Manifest:
    """Whose the blobs of a folder are. ``unfinished`` is what was there when a load began that never got ready."""

    model: str
    unfinished: Stamps | None = None


class ManifestProblem(Exception):
    """A manifest is there and cannot be used; the text says why."""


# The manifest.


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a model's folder; None when there is none. Raises ManifestProblem and OSError."""
    path = folder / MANIFEST
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_MANIFEST_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(content) > MAX_MANIFEST_BYTES:
        raise ManifestProblem(f"{path} is too large")
    try:
        raw = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ManifestProblem(f"{path} is no JSON: {error}") from error
    if not isinstance(raw, dict) or raw.get("version") != _VERSION or not isinstance(raw.get("model"), str):
        raise ManifestProblem(f"{path} is no manifest of version {_VERSION}")
    return Manifest(raw["model"], _stamps(path, raw.get("unfinished")))


def _stamps(path: Path, raw: object) -> Stamps | None:
    if raw is None:
        return None
    if not isinstance(raw, dict):
        raise ManifestProblem(f"{path}: unfinished is no object")
    stamps: Stamps = {}
    for name, stamp in raw.items():
        match stamp:
            case [int(size), int(changed_ns)]:
                stamps[name] = (size, changed_ns)
            case _:
                raise ManifestProblem(f"{path}: unfinished.{name} is no size and time")
    return stamps


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest at once: at any moment the old or the new one is there, whole. One writer at a time.

    Raises OSError.
    """
    raw = {"version": _VERSION, "model": manifest.model}
    content = json.dumps(raw if manifest.unfinished is None else raw | {"unfinished": manifest.unfinished})
    temporary = folder / f"{MANIFEST}.tmp"
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()  # of a process that was killed here; and never written through, were it a link
    with temporary.open("xb") as stream:
        stream.write(content.encode())
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, folder / MANIFEST)


# Looking.


def _regular_blobs(place: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The blobs in a folder; links and whatever else lies there are passed over. Raises OSError."""
    with os.scandir(place) as entries:
        for entry in entries:
            if _BLOB.fullmatch(entry.name) is None:
                continue
            try:
                status = os.lstat(entry.path)  # a directory entry of Windows knows no times of others' changes
            except FileNotFoundError:
                continue  # removed meanwhile
            if stat.S_ISREG(status.st_mode):
                yield entry.name, status


def stamps(place: Path) -> Stamps:
    """The blobs in a folder; empty when there is no such folder. Raises OSError."""
    try:
        return {name: (status.st_size, status.st_mtime_ns) for name, status in _regular_blobs(place)}
    except FileNotFoundError:
        return {}


def is_own_folder(path: Path) -> bool:
    """Whether a path is a folder and no link to one. Raises OSError, not for one that is missing."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def list_cache(root: Path, registered: Collection[str]) -> Listing:
    """Everything that lies in the cache. Manifests that registered models' folders lack are written.

    A cache that does not exist is empty; what cannot be read is a problem, told in the listing.
    """
    listing = Listing()
    _list_folder(listing, root, "", lambda: None)
    try:
        with os.scandir(root) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return listing
    except OSError:
        return listing  # told above
    for name in names:
        folder = root / name
        try:
            if is_own_folder(folder / BLOBS):
                _list_folder(listing, folder / BLOBS, name, partial(_model_of, folder, name, registered, listing))
        except OSError as error:
            listing.unreadable(f"{folder}: {_reason(error)}")
    return listing


def _list_folder(listing: Listing, place: Path, folder: str, model_of: Callable[[], str | None]) -> None:
    try:
        found = list(_regular_blobs(place))
    except FileNotFoundError:
        return
    except OSError as error:
        listing.unreadable(f"{place} cannot be read: {_reason(error)}")
        return
    if listing.total_bytes is not None:
        listing.total_bytes += sum(status.st_size for _, status in found)
    del found[max(0, MAX_LISTED - len(listing.blobs)) :]
    if not found:
        return
    model = model_of()
    for name, status in found:
        used_ns = max(status.st_mtime_ns, status.st_atime_ns)
        listing.blobs.append(Blob(folder, name, status.st_size, status.st_mtime_ns, used_ns, model))


def _model_of(folder: Path, name: str, registered: Collection[str], listing: Listing) -> str | None:
    """The model that a folder's manifest names. A registered model's is written anew where it is of no use."""
    try:
        manifest = read_manifest(folder)
        why = f"{folder / MANIFEST} is missing"
    except ManifestProblem as error:
        manifest, why = None, str(error)
    except OSError as error:
        listing.problems.append(f"{folder / MANIFEST} cannot be read: {_reason(error)}")
        return None
    if manifest is not None:
        return manifest.model
    if name not in registered:
        listing.problems.append(f"{why}: blobs in that folder are nobody's")
        return None
    try:
        write_manifest(folder, Manifest(name))
    except OSError as error:
        listing.problems.append(f"{why}, and cannot be written: {_reason(error)}")
        return None
    listing.problems.append(f"{why}; it was written anew from the folder's name")
    return name


# Removing.


@define
class Removal:
    """What came of removing blobs."""

    removed: list[Blob] = field(factory=list)
    gone: list[Blob] = field(factory=list)
    """No longer there, or no blob any more."""
    kept: list[Blob] = field(factory=list)
    """Still there: changed since they were listed, or not to be removed."""
    problems: list[str] = field(factory=list)


def remove_blobs(root: Path, blobs: Collection[Blob]) -> Removal:
    """Remove blobs as they were listed. Nothing is removed through a link, and nothing that changed meanwhile."""
    removal = Removal()
    for blob in blobs:
        place = root / blob.folder / BLOBS if blob.folder else root
        path = place / blob.name
        try:
            if blob.folder and not (is_own_folder(place.parent) and is_own_folder(place)):
                removal.gone.append(blob)
                continue
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode):
                removal.gone.append(blob)
            elif (status.st_size, status.st_mtime_ns) != (blob.size, blob.changed_ns):
                removal.kept.append(blob)
            else:
                _unlink(path)
                removal.removed.append(blob)
        except FileNotFoundError:
            removal.gone.append(blob)
        except OSError as error:
            removal.kept.append(blob)
            removal.problems.append(f"blobs in {place} cannot be removed: {_reason(error)}")
    return removal


def _unlink(path: Path) -> None:
    if sys.platform == "win32":
        path.chmod(stat.S_IWRITE)  # the runtime marks blobs read-only, and then they cannot be removed there
    path.unlink()


# Around a load.


@define
class Opened:
    """A model's folder, made ready for a load. ``place`` None: the load does without, for a reason in ``problems``."""

    place: Path | None = None
    before: int = 0
    """Blobs that the load may read."""
    notes: list[str] = field(factory=list)
    problems: list[str] = field(factory=list)


def open_for_load(root: Path, model_id: str, *, distrusted: bool) -> Opened:
    """Make a model's folder ready: remove blobs that an unfinished load may have cut short, all of them when
    ``distrusted``, and note in the manifest that a load begins."""
    opened = Opened()
    folder = root / model_id
    place = folder / BLOBS
    try:
        if folder.is_symlink() or place.is_symlink():
            opened.problems.append(f"{place} is a link to another place: the model is loaded without the cache")
            return opened
        place.mkdir(parents=True, exist_ok=True)
        manifest = _manifest_for_load(folder, opened)
        there = stamps(place)
        if manifest is None and there and not opened.notes:
            opened.notes.append(f"{folder / MANIFEST} was missing; the blobs there are taken as they are")
        doubtful = _doubtful(there, manifest, distrusted=distrusted)
        for name in doubtful:
            with contextlib.suppress(FileNotFoundError):
                _unlink(place / name)
    except OSError as error:
        opened.problems.append(f"{place}: {_reason(error)}: the model is loaded without the cache")
        return opened
    if doubtful:
        why = "the last load failed with them" if distrusted else "a load that did not end may have cut them short"
        opened.notes.append(f"{len(doubtful)} blobs in {place} were removed: {why}")
    trusted = {name: stamp for name, stamp in there.items() if name not in doubtful}
    try:
        write_manifest(folder, Manifest(model_id, trusted))
    except OSError as error:
        if not _is_read_only(folder):  # a disk that is full cuts blobs short too
            opened.problems.append(f"{folder}: {_reason(error)}: the model is loaded without the cache")
            return opened
        opened.problems.append(f"{folder} is read-only: what is there is used, nothing is added")
    opened.place, opened.before = place, len(trusted)
    return opened


def close_after_load(root: Path, model_id: str) -> list[str]:
    """The load got ready: its blobs are whole. Returns problems."""
    folder = root / model_id
    try:
        write_manifest(folder, Manifest(model_id))
    except OSError as error:
        if not _is_read_only(folder):
            return [f"{folder / MANIFEST} cannot be written: {_reason(error)}: the next load removes new blobs"]
    return []


def _manifest_for_load(folder: Path, opened: Opened) -> Manifest | None:
    try:
        return read_manifest(folder)
    except ManifestProblem as error:
        opened.notes.append(f"{error}; it was written anew, the blobs there are taken as they are")
        return None


def _doubtful(there: Stamps, manifest: Manifest | None, *, distrusted: bool) -> set[str]:
    if distrusted:
        return set(there)
    if manifest is None or manifest.unfinished is None:
        return set()
    return {name for name, stamp in there.items() if manifest.unfinished.get(name) != stamp}


# The whole cache.


def open_cache(root: Path) -> str | None:
    """Create the cache's folder. Returns what is wrong with it."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with os.scandir(root):
            pass
    except OSError as error:
        return f"{root} cannot be used: {_reason(error)}: models are loaded without the compile cache"
    if _is_read_only(root):
        return f"{root} is read-only: what is there is used, nothing is added or removed"
    return None


def _is_read_only(folder: Path) -> bool:
    return not os.access(folder, os.W_OK | os.X_OK)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
