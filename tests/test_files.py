"""Files that are complete or what they were: permissions, links, long names, kills and threads."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from attendre_core.files import replacing, write_text

posix = pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions and links")


def names(folder: Path) -> list[str]:
    return sorted(found.name for found in folder.iterdir())


@posix
def test_permissions_stay(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "new", "a")
        (tmp_path / "private").write_text("b")
        (tmp_path / "private").chmod(0o600)
        with replacing(tmp_path / "private") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            assert mode == 0o600, "nobody else may look meanwhile"
            file.write(b"c")
        (tmp_path / "shown").write_text("d")
        (tmp_path / "shown").chmod(0o444)
        write_text(tmp_path / "shown", "e")
    finally:
        os.umask(before)
    modes = {f.name: stat.S_IMODE(f.stat().st_mode) for f in tmp_path.iterdir()}
    assert modes == {"new": 0o640, "private": 0o600, "shown": 0o444}
    assert (tmp_path / "shown").read_text() == "e"


@posix
def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "file").write_text("old")
    link, loose = tmp_path / "link", tmp_path / "loose"
    link.symlink_to(tmp_path / "far" / "file")
    loose.symlink_to(Path("far") / "not yet")
    for each in (link, loose):
        write_text(each, "new")
        assert each.is_symlink()
        assert each.read_text() == "new"
    assert names(tmp_path / "far") == ["file", "not yet"]
    assert names(tmp_path) == ["far", "link", "loose"]


@posix
def test_a_link_in_the_place_aside_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("keep")
    (tmp_path / ".out.part").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="out"):
        write_text(tmp_path / "out", "new")
    assert (tmp_path / "precious").read_text() == "keep"


@pytest.mark.parametrize("name", ["n" * 255, "\u4e2d" * 85])
def test_names_may_be_as_long_as_the_system_allows(tmp_path: Path, name: str) -> None:
    write_text(tmp_path / name, "a")
    write_text(tmp_path / name, "b")
    assert names(tmp_path) == [name]
    assert (tmp_path / name).read_text() == "b"


def test_what_a_killed_process_left_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / ".out.part").write_text("half of something that was much longer than this")
    write_text(tmp_path / "out", "whole")
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out").read_text() == "whole"


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("old")

    def interrupted() -> None:
        with replacing(tmp_path / "out") as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out").read_text() == "old"


def test_errors_name_the_file_that_was_asked_for(tmp_path: Path) -> None:
    for target in (tmp_path / "nowhere" / "out", tmp_path):
        with pytest.raises(OSError) as caught:  # noqa: PT011
            write_text(target, "a")
        assert str(caught.value.filename).endswith(target.name)
    assert names(tmp_path) == []


@posix
def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    write_text(tmp_path / "pipe", "through")
    reader.join()
    assert read == ["through"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    write_text("/dev/null", "away")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@posix
def test_threads_that_write_one_file_wait_for_each_other(tmp_path: Path) -> None:
    texts = [str(number) * 20_000 for number in range(8)]
    wrong: list[BaseException] = []

    def write(text: str) -> None:
        try:
            for _ in range(5):
                write_text(tmp_path / "out", text)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert (tmp_path / "out").read_text() in texts
    assert names(tmp_path) == ["out"]


@posix
def test_file_and_folder_are_on_disk_before_it_returns(tmp_path: Path) -> None:
    synced: list[str] = []

    def fsync(number: int) -> None:
        synced.append("folder" if stat.S_ISDIR(os.fstat(number).st_mode) else "file")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        write_text(tmp_path / "out", "a")
    assert synced == ["file", "folder"]


@posix
def test_a_folder_that_may_only_be_written_to(tmp_path: Path) -> None:
    """The file is in its place by then: an error would say that it was not written."""
    opened = os.open

    def refused(path: object, *rest: int) -> int:
        if path == tmp_path:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *rest)  # type: ignore[call-overload, no-any-return]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "open", refused)
        write_text(tmp_path / "out", "a")
    assert (tmp_path / "out").read_text() == "a"
    assert names(tmp_path) == ["out"]
