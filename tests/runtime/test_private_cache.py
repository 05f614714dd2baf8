"""The cache trusts only the user: folders and files of others, links and planted entries are ignored."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kiln.runtime.cache import private_folder
from kiln.runtime.cache.private_folder import KEY_FILE, CacheNotWritten, CacheWarning, UnsafeCacheFolder, seal_key
from kiln.runtime.cache.store import HEADER, MAGIC, DiskStore, content_key, default_folder, sealed

NAME = content_key("an entry")


@pytest.fixture(autouse=True)
def forget_warnings() -> Iterator[None]:
    private_folder.warn_once.cache_clear()
    yield
    private_folder.warn_once.cache_clear()


def refused(folder: Path, code: str) -> None:
    """Nothing is read or written, and the reason is given once."""
    with pytest.warns(CacheWarning, match=code) as caught:
        for _ in range(2):
            store = DiskStore(folder)
            store.put("plan", NAME, b"contents")
            assert store.get("plan", NAME) is None and store.file("library", NAME) is None
            assert not store.has("plan", NAME)
            with pytest.raises(OSError):
                store.put_file("library", b"contents")
    assert len(caught) == 1


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_folders_and_files_are_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    folder, before = tmp_path / "parent" / "kiln", os.umask(umask)
    try:
        store = DiskStore(folder)
        store.put("plan", NAME, b"contents")
        store.put_file("library", b"contents")
    finally:
        os.umask(before)
    for path in [folder.parent, folder, *folder.rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    assert store.get("plan", NAME) == b"contents"


def test_an_old_entry_of_a_folder_that_is_mounted_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be marked as used, and serves all the same."""
    store = DiskStore(tmp_path / "kiln")
    store.put("plan", NAME, b"contents")
    os.utime(store.path("plan", NAME), (0, 0))

    def read_only(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", read_only)
    assert store.get("plan", NAME) == b"contents"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a_folder_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    refused(tmp_path, UnsafeCacheFolder.code)
    assert os.listdir(tmp_path) == []


def test_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    refused(tmp_path / "link", UnsafeCacheFolder.code)


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DiskStore(tmp_path).put("plan", NAME, b"contents")
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    refused(tmp_path, UnsafeCacheFolder.code)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", CacheNotWritten.code)
    refused(tmp_path / "file" / "below", CacheNotWritten.code)


def test_a_folder_with_other_things_keeps_its_mode(tmp_path: Path) -> None:
    """The folders in it are closed, and a sweep leaves the other things."""
    tmp_path.chmod(0o755)
    (tmp_path / "ab").mkdir()
    for path in ("notes.txt", "ab/abc.py", "ab/abc"):
        (tmp_path / path).write_bytes(bytes(5000))
    store = DiskStore(tmp_path, max_bytes=1000)
    store.put("plan", NAME, bytes(900))
    store.put("plan", NAME, bytes(900))
    store.sweep()
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "plan").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "notes.txt").exists() and (tmp_path / "ab/abc.py").exists() and (tmp_path / "ab/abc").exists()


def bad_key(write: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        write(path)

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.chmod(0o644),  # readable by others
        lambda path: path.write_bytes(b"short"),
        lambda path: path.write_bytes(bytes(33)),
        bad_key(lambda path: path.symlink_to("/dev/zero")),
        bad_key(lambda path: path.symlink_to("/nowhere")),
        bad_key(os.mkfifo),
        bad_key(lambda path: None),
    ],
)
def test_a_bad_key_is_replaced(tmp_path: Path, change: Callable[[Path], None]) -> None:
    DiskStore(tmp_path).put("plan", NAME, b"contents")
    old = seal_key(tmp_path)
    change(tmp_path / KEY_FILE)
    store = DiskStore(tmp_path)
    assert seal_key(tmp_path) != old and (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert store.get("plan", NAME) is None
    store.put("plan", NAME, b"contents")
    assert DiskStore(tmp_path).get("plan", NAME) == b"contents"


def test_a_key_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).mkdir()
    refused(tmp_path, CacheNotWritten.code)


PLANTED = b"planted"


def unkeyed_entry(folder: Path) -> None:
    """An entry written with the format but without the key."""
    digest = hashlib.blake2b(PLANTED, digest_size=32).digest()
    DiskStore(folder).path("plan", NAME).write_bytes(HEADER.pack(MAGIC, len(PLANTED), digest) + PLANTED)


def entry_with_another_key(folder: Path) -> None:
    DiskStore(folder).path("plan", NAME).write_bytes(sealed(PLANTED, bytes(32), "plan", NAME))


def entry_of_another_name(folder: Path) -> None:
    """Genuine entries under exchanged names."""
    store, other = DiskStore(folder), content_key("other")
    store.put("plan", other, PLANTED)
    store.path("plan", other).replace(store.path("plan", NAME))


def entry_of_another_kind(folder: Path) -> None:
    store = DiskStore(folder)
    store.put("kernel", NAME, PLANTED)
    store.path("kernel", NAME).replace(store.path("plan", NAME))


def entry_is_a_link(folder: Path) -> None:
    path = DiskStore(folder).path("plan", NAME)
    shutil.copy(path, folder / "copy")
    path.unlink()
    path.symlink_to(folder / "copy")


def entry_is_a_pipe(folder: Path) -> None:
    path = DiskStore(folder).path("plan", NAME)
    path.unlink()
    os.mkfifo(path)


def entry_others_may_write(folder: Path) -> None:
    DiskStore(folder).path("plan", NAME).chmod(0o666)


@pytest.mark.parametrize(
    "plant",
    [
        unkeyed_entry,
        entry_with_another_key,
        entry_of_another_name,
        entry_of_another_kind,
        entry_is_a_link,
        entry_is_a_pipe,
        entry_others_may_write,
    ],
)
def test_a_planted_entry_is_a_miss(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    DiskStore(tmp_path).put("plan", NAME, b"contents")
    plant(tmp_path)
    store = DiskStore(tmp_path)
    assert store.get("plan", NAME) is None and not os.path.lexists(store.path("plan", NAME))
    store.put("plan", NAME, b"contents")
    assert DiskStore(tmp_path).get("plan", NAME) == b"contents"


def test_a_planted_library_is_not_opened(tmp_path: Path) -> None:
    """Its name is the unkeyed digest of its contents, which anybody can compute."""
    store = DiskStore(tmp_path)
    genuine = store.put_file("library", b"genuine")
    assert store.file("library", genuine.name) == genuine
    name = content_key(PLANTED)
    planted = store.path("library", name)
    planted.parent.mkdir(mode=0o700, exist_ok=True)
    planted.write_bytes(PLANTED)
    planted.chmod(0o600)
    assert store.file("library", name) is None and not planted.exists()
    genuine.write_bytes(PLANTED)
    assert store.file("library", genuine.name) is None


def test_nothing_is_written_through_a_linked_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "cache" / "plan").symlink_to(tmp_path / "elsewhere")
    store = DiskStore(tmp_path / "cache")
    with pytest.warns(CacheWarning, match=CacheNotWritten.code):
        store.put("plan", NAME, b"contents")
    assert os.listdir(tmp_path / "elsewhere") == []


def test_damage_is_a_miss_or_changes_nothing(tmp_path: Path) -> None:
    """Seeded mutations of entries: bits, lengths, copies of parts of other entries, zeros."""
    store, pick = DiskStore(tmp_path), random.Random(0)
    bodies = {content_key(str(n)): pick.randbytes(pick.choice([0, 1, 40, 3000])) for n in range(8)}
    for key, body in bodies.items():
        store.put("plan", key, body)
    written = [store.path("plan", key).read_bytes() for key in bodies]
    for _ in range(600):
        key = pick.choice(list(bodies))
        data = bytearray(store.path("plan", key).read_bytes())
        at, other = pick.randrange(len(data)), pick.choice(written)
        match pick.randrange(6):
            case 0:
                data[at] ^= 1 << pick.randrange(8)
            case 1:
                del data[at:]
            case 2:
                data += pick.randbytes(pick.randrange(1, 60))
            case 3:
                data[at : at + 50] = other[at : at + 50]
            case 4:
                data[: HEADER.size] = other[: HEADER.size]
            case 5:
                data[at : at + 16] = bytes(len(data[at : at + 16]))
        store.path("plan", key).write_bytes(data)
        got = DiskStore(tmp_path).get("plan", key)
        assert got is None or got == bodies[key]
        store.put("plan", key, bodies[key])


def test_a_full_disk_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DiskStore(tmp_path)
    store.put("plan", NAME, b"contents")

    def replace(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", replace)
    with pytest.warns(CacheWarning, match="No space left") as caught:
        store.put("plan", content_key("a"), b"contents")
        store.put("plan", content_key("b"), b"contents")
    assert len(caught) == 1 and CacheNotWritten.code in str(caught[0].message)
    assert store.get("plan", NAME) == b"contents" and not list(tmp_path.rglob("*.part"))


def test_users_without_a_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # invalid by the specification
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert default_folder() is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "kiln"
    store = DiskStore(None)
    with pytest.warns(CacheWarning, match="no home folder"):
        store.put("plan", NAME, b"contents")
        assert store.get("plan", NAME) is None and not store.has("plan", NAME) and list(store.entries()) == []


def test_sixteen_processes_agree_on_the_key(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from kiln.runtime.cache.private_folder import seal_key
print(seal_key(Path(sys.argv[1])).hex())
"""
    command = [sys.executable, "-c", script, str(tmp_path / "kiln")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(16)]
    assert len({process.communicate()[0] for process in running}) == 1
    assert all(process.returncode == 0 for process in running)
