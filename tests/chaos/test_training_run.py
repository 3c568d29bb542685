import time

from ps_cluster.tools.chaos.runs import TrainingRun


def test_the_run_is_of_this_package_whatever_is_in_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "ps_cluster").mkdir()
    (tmp_path / "ps_cluster" / "__init__.py").write_text("raise SystemExit('another one')")
    monkeypatch.chdir(tmp_path)
    run = TrainingRun(tmp_path / "run", tmp_path / "output", ("--workers", "0"), tools=tmp_path)
    try:
        deadline = time.monotonic() + 60
        while run.exit_code is None and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        run.stop()
    assert run.exit_code == 2 and "--workers" in run.last_line
