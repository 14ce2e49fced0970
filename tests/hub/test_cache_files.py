"""Files of the compile cache: manifests, what is listed, what is removed and what never is."""

import json
import os
from pathlib import Path

import pytest

from rustedvino.hub import cache_files
from rustedvino.hub.cache_files import (
    BLOBS,
    MANIFEST,
    Manifest,
    ManifestProblem,
    close_after_load,
    list_cache,
    open_cache,
    open_for_load,
    read_manifest,
    remove_blobs,
    write_manifest,
)


def blob(root, folder, name="1.blob", content=b"12345"):
    place = root / folder / BLOBS if folder else root
    place.mkdir(parents=True, exist_ok=True)
    (place / name).write_bytes(content)
    return place / name


def names(listing):
    return {(found.folder, found.name) for found in listing.blobs}


# --- manifests -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("manifest", [Manifest("m"), Manifest("ü/x", {"1.blob": (3, 10**18)}), Manifest("m", {})])
def test_a_manifest_is_read_as_written(tmp_path, manifest):
    write_manifest(tmp_path, Manifest("before", {"9.blob": (1, 1)}))
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"version": 1, "mod',
        b"\xff\xfe",
        b"[" * 100_000,
        b"[]",
        b'{"version": 2, "model": "m"}',
        b'{"version": 1, "model": 7}',
        b'{"version": 1, "model": "m", "unfinished": [1]}',
        b'{"version": 1, "model": "m", "unfinished": {"1.blob": [1, "now"]}}',
        b'{"version": 1, "model": "m", "unfinished": {"1.blob": 1}}',
    ],
)
def test_a_corrupt_manifest_costs_nothing_but_itself(tmp_path, content):
    kept = blob(tmp_path, "m")
    (tmp_path / "m" / MANIFEST).write_bytes(content)
    with pytest.raises(ManifestProblem, match=r"manifest\.json"):
        read_manifest(tmp_path / "m")

    stranger = list_cache(tmp_path, ())
    assert [found.manifest_model for found in stranger.blobs] == [None]
    assert "nobody's" in stranger.problems[0]

    listing = list_cache(tmp_path, ("m",))
    assert [found.manifest_model for found in listing.blobs] == ["m"]
    assert "written anew" in listing.problems[0]
    assert read_manifest(tmp_path / "m") == Manifest("m")
    assert list_cache(tmp_path, ("m",)).problems == []

    (tmp_path / "m" / MANIFEST).write_bytes(content)
    opened = open_for_load(tmp_path, "m", distrusted=False)
    assert (opened.place, opened.before, opened.problems) == (kept.parent, 1, [])
    assert "written anew" in opened.notes[0]
    assert kept.exists()


def test_a_manifest_that_cannot_be_replaced_stays_whole(tmp_path, monkeypatch):
    write_manifest(tmp_path, Manifest("before"))

    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_manifest(tmp_path, Manifest("after"))
    assert read_manifest(tmp_path) == Manifest("before")
    monkeypatch.undo()
    write_manifest(tmp_path, Manifest("after"))  # what was left of the attempt is in nobody's way
    assert read_manifest(tmp_path) == Manifest("after")


# --- listing -------------------------------------------------------------------------------------------------------


def test_only_blobs_are_listed_and_links_are_not_followed(tmp_path):
    root, outside = tmp_path / "cache", tmp_path / "outside"
    root.mkdir()
    blob(root, "m")
    blob(root, "m", "22.cl_cache", b"1")
    blob(root, "m", "333.onednn.cl_cache", b"1")
    blob(root, "", "4444.blob", b"1")
    for name in ("x.blob", "1.blob.txt", "1.bin", ".1.blob", "123456789012345678901.blob", "notes.md"):
        blob(root, "m", name)
    (root / "m" / "5.blob").write_bytes(b"beside, not among the blobs")
    (root / "m" / BLOBS / "6.blob").mkdir()
    (root / "m" / BLOBS / "deeper").mkdir()
    (root / "m" / BLOBS / "deeper" / "7.blob").write_bytes(b"deeper")
    blob(outside, "n")
    (root / "m" / BLOBS / "8.blob").symlink_to(outside / "n" / BLOBS / "1.blob")
    (root / "linked").symlink_to(outside / "n", target_is_directory=True)
    (root / "half").mkdir()
    (root / "half" / BLOBS).symlink_to(outside / "n" / BLOBS, target_is_directory=True)

    listing = list_cache(root, ("m", "linked", "half"))
    assert names(listing) == {
        ("m", "1.blob"),
        ("m", "22.cl_cache"),
        ("m", "333.onednn.cl_cache"),
        ("", "4444.blob"),
    }
    assert listing.total_bytes == 8


def test_a_cache_that_is_not_there_is_empty_and_one_that_is_a_file_is_unknown(tmp_path):
    missing = list_cache(tmp_path / "missing", ())
    assert (missing.blobs, missing.total_bytes, missing.problems) == ([], 0, [])
    (tmp_path / "file").write_bytes(b"")
    wrong = list_cache(tmp_path / "file", ())
    assert (wrong.blobs, wrong.total_bytes) == ([], None)
    assert "Not a directory" in wrong.problems[0]


def test_a_folder_that_cannot_be_read_makes_the_size_unknown(tmp_path, monkeypatch):
    blob(tmp_path, "m")
    blob(tmp_path, "closed")
    scandir = os.scandir

    def guarded(path):
        if "closed" in str(path):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    listing = list_cache(tmp_path, ("m", "closed"))
    assert names(listing) == {("m", "1.blob")}
    assert listing.total_bytes is None
    assert "closed" in listing.problems[0]


def test_what_is_not_remembered_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_files, "MAX_LISTED", 3)
    for number in range(3):
        blob(tmp_path, "a", f"{number}.blob", b"1")
        blob(tmp_path, "b", f"{number}.blob", b"1")
    listing = list_cache(tmp_path, ("a", "b"))
    assert (len(listing.blobs), listing.total_bytes) == (3, 6)


def test_the_age_is_that_of_the_last_use(tmp_path):
    path = blob(tmp_path, "m")
    os.utime(path, ns=(50, 20))
    assert [found.used_ns for found in list_cache(tmp_path, ("m",)).blobs] == [50]
    os.utime(path, ns=(50, 70))
    assert [found.used_ns for found in list_cache(tmp_path, ("m",)).blobs] == [70]


# --- removing ------------------------------------------------------------------------------------------------------


def test_what_changed_since_it_was_listed_is_not_removed(tmp_path):
    root, outside = tmp_path / "cache", tmp_path / "outside"
    rewritten = blob(root, "rewritten")
    vanished = blob(root, "vanished")
    became_link = blob(root, "became-link")
    became_folder = blob(root, "became-folder")
    moved = blob(root, "moved")
    plain = blob(root, "plain")
    plain.chmod(0o440)  # as the runtime leaves it
    listed = list_cache(root, ()).blobs
    target = blob(outside, "t")
    rewritten.write_bytes(b"another blob")
    vanished.unlink()
    became_link.unlink()
    became_link.symlink_to(target)
    became_folder.unlink()
    became_folder.mkdir()
    (root / "moved").rename(outside / "moved")
    (root / "moved").symlink_to(outside / "moved", target_is_directory=True)

    removal = remove_blobs(root, listed)
    assert [found.folder for found in removal.removed] == ["plain"]
    assert {found.folder for found in removal.gone} == {"vanished", "became-link", "became-folder", "moved"}
    assert [found.folder for found in removal.kept] == ["rewritten"]
    assert removal.problems == []
    assert not plain.exists()
    assert rewritten.exists()
    assert target.exists()
    assert became_link.is_symlink()
    assert (outside / "moved" / BLOBS / moved.name).exists()


def test_what_cannot_be_removed_is_a_problem_of_its_own(tmp_path, monkeypatch):
    blob(tmp_path, "fixed")
    free = blob(tmp_path, "free")
    unlink = Path.unlink

    def guarded(path, **options):
        if "fixed" in path.parts:
            raise OSError(30, "Read-only file system")
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", guarded)
    removal = remove_blobs(tmp_path, list_cache(tmp_path, ()).blobs)
    assert [found.folder for found in removal.kept] == ["fixed"]
    assert "Read-only file system" in removal.problems[0]
    assert not free.exists()


# --- around a load -------------------------------------------------------------------------------------------------


def test_blobs_of_a_load_that_ended_stay_and_those_of_one_that_did_not_go(tmp_path):
    opened = open_for_load(tmp_path, "m-1.5", distrusted=False)
    assert opened.place == tmp_path / "m-1.5" / BLOBS
    assert (opened.before, opened.notes, opened.problems) == (0, [], [])
    first = blob(tmp_path, "m-1.5", "1.blob")
    assert close_after_load(tmp_path, "m-1.5") == []
    late = blob(tmp_path, "m-1.5", "2.cl_cache")  # written while it ran

    assert open_for_load(tmp_path, "m-1.5", distrusted=False).before == 2
    cut = blob(tmp_path, "m-1.5", "3.blob")
    late.write_bytes(b"began anew and cut short")  # and then the process was killed
    other = open_for_load(tmp_path, "m-1.5", distrusted=False)
    assert other.before == 1
    assert "2 blobs" in other.notes[0]
    assert first.exists()
    assert not cut.exists()
    assert not late.exists()

    # A load of the same kind of end once more: nothing was written, nothing goes.
    again = open_for_load(tmp_path, "m-1.5", distrusted=False)
    assert (again.before, again.notes) == (1, [])


def test_distrusted_blobs_all_go_and_nothing_else(tmp_path):
    kept = blob(tmp_path, "m", "notes.md")
    gone = blob(tmp_path, "m")
    opened = open_for_load(tmp_path, "m", distrusted=True)
    assert opened.place is not None
    assert (opened.before, opened.problems) == (0, [])
    assert "1 blobs" in opened.notes[-1]
    assert kept.exists()
    assert not gone.exists()


@pytest.mark.parametrize("where", ["m", f"m/{BLOBS}"])
def test_a_link_in_the_place_of_a_models_folder_is_not_used(tmp_path, where):
    root, outside = tmp_path / "cache", tmp_path / "outside"
    inside = blob(outside, "x", "1.blob")
    (root / where).parent.mkdir(parents=True)
    (root / where).symlink_to(outside / "x" if where == "m" else outside / "x" / BLOBS, target_is_directory=True)
    opened = open_for_load(root, "m", distrusted=True)
    assert opened.place is None
    assert "link" in opened.problems[0]
    assert inside.exists()


def test_a_place_that_cannot_be_created_costs_the_cache_alone(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    assert "without the compile cache" in str(open_cache(tmp_path / "file"))
    opened = open_for_load(tmp_path / "file", "m", distrusted=False)
    assert opened.place is None
    assert "without the cache" in opened.problems[0]
    assert open_cache(tmp_path / "new" / "cache") is None


def test_distrusted_blobs_that_cannot_be_removed_are_not_used(tmp_path, monkeypatch):
    blob(tmp_path, "m")

    def read_only(path):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(cache_files, "_unlink", read_only)
    assert open_for_load(tmp_path, "m", distrusted=True).place is None
    assert open_for_load(tmp_path, "m", distrusted=False).place is not None


@pytest.mark.parametrize("read_only", [True, False])
def test_without_a_manifest_only_a_read_only_cache_is_used(tmp_path, monkeypatch, read_only):
    """A disk that is full would cut blobs short; one that is read-only takes none at all."""
    blob(tmp_path, "m")
    close_after_load(tmp_path, "m")

    def refuse(folder, manifest):
        raise OSError(30, "Read-only file system") if read_only else OSError(28, "No space left on device")

    monkeypatch.setattr(cache_files, "write_manifest", refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: not read_only)
    opened = open_for_load(tmp_path, "m", distrusted=False)
    assert (opened.place is not None) == read_only
    assert len(opened.problems) == 1
    assert (close_after_load(tmp_path, "m") == []) == read_only
    assert ("read-only" in str(open_cache(tmp_path))) == read_only


def test_a_manifest_holds_no_more_than_it_says(tmp_path):
    open_for_load(tmp_path, "m", distrusted=False)
    assert json.loads((tmp_path / "m" / MANIFEST).read_text()) == {"version": 1, "model": "m", "unfinished": {}}
    blob(tmp_path, "m")
    close_after_load(tmp_path, "m")
    assert json.loads((tmp_path / "m" / MANIFEST).read_text()) == {"version": 1, "model": "m"}
    assert read_manifest(tmp_path / "m") == Manifest("m")
