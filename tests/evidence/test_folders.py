import stat

import pytest

from capplan.evidence import folders
from capplan.evidence.folders import new_folder, part_folder, swap_in, write_file
from capplan.schema import DataError


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def write_then_fail(target):
    with new_folder(target) as part:
        (part / "a").write_text("1")
        raise RuntimeError


@pytest.fixture
def hurry(monkeypatch):
    monkeypatch.setattr(folders, "STALE_S", -1.0)


def test_a_folder_appears_only_when_its_block_ends(tmp_path):
    with new_folder(tmp_path / "deep" / "run") as part:
        (part / "a").write_text("1")
        assert not (tmp_path / "deep" / "run").exists()
    assert (tmp_path / "deep" / "run" / "a").read_text() == "1"
    assert names(tmp_path / "deep") == ["run"]


def test_a_failing_block_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError):
        write_then_fail(tmp_path / "run")
    assert names(tmp_path) == []


def test_a_folder_that_holds_something_is_not_replaced(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("1")
    with pytest.raises(OSError, match="not empty"), new_folder(tmp_path / "run"):
        pass
    assert names(tmp_path) == ["run"]
    assert (tmp_path / "run" / "mine").read_text() == "1"


def test_new_folders_and_files_have_the_rights_the_user_gives_by_default(tmp_path):
    with new_folder(tmp_path / "run") as part:
        write_file(part / "a", b"1")
    (tmp_path / "plain").mkdir()
    (tmp_path / "file").write_text("")
    assert (
        stat.S_IMODE((tmp_path / "run").stat().st_mode)
        == (tmp_path / "plain").stat().st_mode & 0o777
    )
    assert (tmp_path / "run" / "a").stat().st_mode == (tmp_path / "file").stat().st_mode


@pytest.mark.usefixtures("hurry")
def test_a_part_that_a_killed_writer_left_is_cleared_away(tmp_path):
    (tmp_path / ".run.part-dead").mkdir()
    (tmp_path / ".run.part-dead" / "half").write_text("1")
    (tmp_path / ".other.part-dead").mkdir()
    with new_folder(tmp_path / "run"):
        pass
    assert names(tmp_path) == [".other.part-dead", "run"]


@pytest.mark.usefixtures("hurry")
def test_a_part_that_is_still_written_is_left_alone(tmp_path):
    with part_folder(tmp_path / "run") as first, new_folder(tmp_path / "run"):
        assert first.is_dir()


def test_a_swap_replaces_the_whole_folder(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "old").write_text("1")
    with part_folder(tmp_path / "run") as part:
        (part / "new").write_text("2")
        swap_in(part, tmp_path / "run")
    assert names(tmp_path) == ["run"]
    assert names(tmp_path / "run") == ["new"]


def test_a_swap_that_was_killed_half_way_is_undone(tmp_path):
    (tmp_path / ".run.old-x").mkdir()
    (tmp_path / ".run.old-x" / "report").write_text("1")
    with part_folder(tmp_path / "run"):
        assert (tmp_path / "run" / "report").read_text() == "1"


def test_a_file_is_replaced_as_a_whole(tmp_path):
    write_file(tmp_path / "a", b"1")
    write_file(tmp_path / "a", b"2")
    assert (tmp_path / "a").read_bytes() == b"2"
    assert names(tmp_path) == ["a"]


def test_a_file_in_the_way_of_a_folder_is_named(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for write in (write_below, lambda path: write_file(path, b"x")):
        with pytest.raises(DataError, match=r"notes.txt: a folder, to hold what .* got 'a file'"):
            write(tmp_path / "notes.txt" / "runs" / "one")
    assert (tmp_path / "notes.txt").read_text() == "mine"


def write_below(path):
    with new_folder(path):
        pass
