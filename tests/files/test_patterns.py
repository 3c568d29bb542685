"""The files that a pattern of names matches."""

from ps_cluster.files.patterns import folder_of, is_pattern, matches


def test_files_are_matched_in_order_without_folders_and_hidden_ones(tmp_path):
    for name in ("b.csv", "a.csv", ".hidden.csv", "c.txt", "deep/er/d.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.csv").mkdir()
    assert [file.name for file in matches(tmp_path / "*.csv")] == ["a.csv", "b.csv"]
    assert [file.name for file in matches(tmp_path / "**" / "*.csv")] == ["a.csv", "b.csv", "d.csv"]
    assert folder_of(tmp_path / "**" / "*.csv") == folder_of(tmp_path / "?.csv") == tmp_path


def test_a_file_of_that_very_name_is_no_pattern(tmp_path):
    assert is_pattern(tmp_path / "a[1].csv") and not is_pattern(tmp_path / "a.csv")
    (tmp_path / "a[1].csv").touch()
    assert not is_pattern(tmp_path / "a[1].csv")
