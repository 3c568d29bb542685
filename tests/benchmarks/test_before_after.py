from benchmarks.before_after import known_to
from ps_cluster.config import build_config


def test_another_checkout_gets_the_settings_that_it_knows(tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "default.yaml").write_text("{mode: {name: async}, training: {seed: 3, gone: 1}}")
    assert known_to(tmp_path, build_config()) == {"mode": {"name": "async"}, "training": {"seed": 0, "gone": 1}}
    changed = known_to(tmp_path, build_config(overrides={"mode.name": "bounded", "mode.max_clock_lag": 1}))
    assert changed["mode"] == {"name": "bounded", "max_clock_lag": 1}, "it says itself that it has no such setting"
