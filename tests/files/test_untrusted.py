"""Folders of other users, and folders that others may write to."""

import os
import stat

import pytest

from ps_cluster.files import untrusted
from ps_cluster.files.untrusted import Foreign, check_folder
from tests.helpers.users import SOMEBODY, SOMEBODY_ELSE, as_user, common  # noqa: F401

ME = os.geteuid()


def check(folder):
    """Return the lines about a folder."""
    lines = []
    check_folder(folder, "run directory", lines.append)
    return lines


def test_a_folder_of_the_user_or_of_root_is_accepted_without_a_notice_even_before_it_exists(tmp_path, common):  # noqa: F811
    assert check(tmp_path) == [] and check(tmp_path / "new" / "newer") == []
    with as_user(SOMEBODY):
        assert check(common.parent / "configs") == []


def test_a_folder_of_another_user_is_refused_and_root_gets_a_notice(common):  # noqa: F811
    """A container often runs as root and has a user's folder mounted."""
    home = common / "home"
    with as_user(SOMEBODY):
        home.mkdir(mode=0o755)
        assert check(home) == []
    with as_user(SOMEBODY_ELSE), pytest.raises(Foreign) as refusal:
        check(home)
    assert str(refusal.value) == (
        f"run directory '{home}' belongs to another user (uid {SOMEBODY}), who could change the files in it: "
        "choose another folder"
    )
    (line,) = check(home)
    assert line.startswith(
        f"run directory '{home}' belongs to another user (uid {SOMEBODY}), but this command runs as root: "
    )


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o757])
def test_a_folder_that_everybody_may_write_to_is_said(tmp_path, mode):
    tmp_path.chmod(mode)
    assert check(tmp_path) == [
        f"run directory '{tmp_path}': everybody on this machine may write to '{tmp_path}'; to prevent this: "
        f"chmod o-w '{tmp_path}'"
    ]


@pytest.mark.parametrize(("mode", "lines"), [(0o777, 1), (0o1777, 0)])
def test_a_folder_above_it_counts_where_others_could_put_another_in_its_place(tmp_path, mode, lines):
    (tmp_path / "above" / "run").mkdir(parents=True)
    (tmp_path / "above").chmod(mode)
    assert len(check(tmp_path / "above" / "run")) == len(check(tmp_path / "above" / "new" / "run")) == lines


@pytest.mark.parametrize("where", ["link", "link/run", "mine", "mine/new"])
def test_a_way_through_somebody_elses_link_is_refused_also_behind_a_link_of_ones_own(tmp_path, where):
    if ME:
        pytest.skip("only root can give a link to somebody else")
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "mine").symlink_to(tmp_path / "link")
    assert check(tmp_path / where) == []
    os.lchown(tmp_path / "link", SOMEBODY, SOMEBODY)
    with pytest.raises(Foreign, match=rf"reached through '{tmp_path}/link', a link that another user .uid {SOMEBODY}"):
        check(tmp_path / where)


def test_links_that_lead_in_a_circle_end(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert check(tmp_path / "a" / "run") == []


def test_nothing_is_made_behind_somebody_elses_link(common):  # noqa: F811
    from ps_cluster.files.locks import sole_use

    (common / "target").mkdir()
    (common / "target").chmod(0o777)
    with as_user(SOMEBODY):
        (common / "link").symlink_to("target")
    with as_user(SOMEBODY_ELSE), pytest.raises(Foreign), sole_use(common / "link" / "run", "run directory", print):
        pytest.fail("it went on")
    assert list((common / "target").iterdir()) == []


def test_files_are_made_so_that_nobody_else_writes_to_them(tmp_path):
    from ps_cluster.files.writing import open_append, write_whole

    before = os.umask(0)
    try:
        open_append(tmp_path / "rows").close()
        write_whole(tmp_path / "whole", "")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o644}


@pytest.mark.parametrize(("mapping", "unknown"), [("0 0 4294967295", set()), ("1000 1000 1", {65534}), ("", {65534})])
def test_a_task_in_the_private_network_of_its_run_trusts_what_belongs_to_root_outside(tmp_path, mapping, unknown):
    """A user namespace knows the user alone: root's files belong to the id there is for everybody else."""
    for name, content in (("uid_map", f"   {mapping}\n"), ("overflowuid", "65534\n")):
        (tmp_path / name).write_text(content)
    assert untrusted.unknown_owners(tmp_path / "uid_map", tmp_path / "overflowuid") == unknown
    assert untrusted.unknown_owners(tmp_path / "missing") == set()
