"""The optimizer of a network's compile() replaces rule `compiled`, and settings that were set besides the rule stay."""

import pytest

from ps_cluster.config import build_config
from ps_cluster.config.changes import changed
from ps_cluster.config.networks import NETWORKS
from ps_cluster.errors import UserError
from ps_cluster.launch import network_check
from ps_cluster.launch.config_completion import complete_config
from ps_cluster.launch.network_check import NetworkFacts, with_rule_of_compile
from tests.helpers.data import only_named

ADAMW = NetworkFacts(optimizer={"rule": "adam", "learning_rate": 0.001, "weight_decay": 0.004})


@pytest.fixture
def of_own_network(tmp_path):
    """of_own_network(**settings) → a configuration with a network of the user, which is never built here."""
    (tmp_path / "my.py").write_text("def network():\n    raise AssertionError\n")
    model = NETWORKS.allow_code_of("my.py:network", tmp_path)
    return lambda **settings: build_config(None, {"model.name": model} | settings)


@pytest.mark.parametrize(
    ("settings", "decay"),
    [({}, 0.004), ({"optimizer.weight_decay": 0.0}, 0.0), ({"optimizer.weight_decay": 0.1}, 0.1)],
)
def test_a_weight_decay_that_was_set_replaces_that_of_compile_also_if_it_is_0(of_own_network, settings, decay):
    assert with_rule_of_compile(of_own_network(**settings), ADAMW).optimizer.weight_decay == decay


def test_a_network_without_compile_gets_adam_without_weight_decay_and_settings_of_the_user_stay(of_own_network):
    trained = with_rule_of_compile(of_own_network(), NetworkFacts()).optimizer
    assert (trained.rule, trained.learning_rate, trained.weight_decay) == ("adam", 0.001, 0.0)
    of_user = of_own_network(**{"optimizer.learning_rate": 0.03, "optimizer.weight_decay": 0.1})
    trained = with_rule_of_compile(of_user, NetworkFacts()).optimizer
    assert (trained.rule, trained.learning_rate, trained.weight_decay) == ("adam", 0.03, 0.1)


@pytest.mark.parametrize("rule", ["compiled", "adam"])
def test_factors_of_learning_rates_that_were_set_stay(of_own_network, rule):
    factors = [{"match": "kernel", "factor": 0.0}]
    config = of_own_network(**{"optimizer.rule": rule, "optimizer.learning_rate_factors": factors})
    (kept,) = with_rule_of_compile(config, ADAMW).optimizer.learning_rate_factors
    assert (kept.match, kept.factor) == ("kernel", 0.0)


@pytest.mark.parametrize(
    ("rule", "settings", "method"), [
        ("adam", {}, "predict"), ("momentum", {}, "gap_aware"), ("nesterov", {}, "gap_aware"), ("sgd", {}, "none"),
        ("adam", {"staleness.method": "none"}, "none"),
        ("momentum", {"staleness.method": "inverse"}, "inverse"), ("momentum", {"staleness.method": "predict"}, "predict"),
        ("adam", {"mode.name": "sync"}, "none"),
    ],
)  # fmt: skip
def test_the_staleness_method_is_the_usual_one_of_the_compiled_rule_unless_somebody_chooses(
    of_own_network, rule, settings, method
):
    facts = NetworkFacts(optimizer={"rule": rule, "learning_rate": 0.1, "weight_decay": 0.0})
    assert with_rule_of_compile(of_own_network(**settings), facts).staleness.method == method


@pytest.mark.parametrize(
    ("settings", "kind"),
    [({}, "keras"), ({"schedule.kind": "constant"}, "constant"), ({"schedule.kind": "cosine"}, "cosine")],
)
def test_the_schedule_is_that_of_compile_unless_somebody_chooses(of_own_network, settings, kind):
    decay = {"kind": "keras", "function": "CosineDecay", "arguments": {"initial_learning_rate": 0.1, "decay_steps": 10}}
    facts = ADAMW.model_copy(update={"schedule": decay})
    assert with_rule_of_compile(of_own_network(**settings), facts).schedule.kind == kind
    assert with_rule_of_compile(of_own_network(**settings), ADAMW).schedule.kind == settings.get(
        "schedule.kind", "constant"
    )


def test_a_schedule_of_compile_that_is_not_used_is_reported(of_own_network, monkeypatch):
    decay = {"kind": "keras", "function": "CosineDecay", "arguments": {"initial_learning_rate": 0.1, "decay_steps": 10}}
    monkeypatch.setattr(network_check, "check_network", lambda *_: ADAMW.model_copy(update={"schedule": decay}))
    said = []
    complete_config(of_own_network(), only_named(), said.append)
    assert said == []
    complete_config(of_own_network(**{"schedule.kind": "cosine"}), only_named(), said.append)
    assert said == ["the schedule of compile() is not used, because schedule.kind is cosine"]


@pytest.mark.parametrize(("settings", "expected"), [({}, set()), ({"staleness.method": "none"}, {"staleness.method"})])
def test_only_what_was_chosen_beside_the_compiled_rule_counts_as_changed(of_own_network, settings, expected):
    trained = with_rule_of_compile(of_own_network(**settings), ADAMW)
    not_of_compile = {key for key in changed(trained) if not key.startswith(("optimizer.", "model."))}
    assert not_of_compile == expected


@pytest.mark.parametrize("key", ["schedule.kind", "staleness.method"])
def test_compile_decides_the_schedule_and_the_method_only_if_it_decides_the_rule(of_own_network, key):
    of_own_network(**{key: "compiled"})
    with pytest.raises(UserError, match=f"{key}: got 'compiled', but optimizer.rule is 'adam'"):
        of_own_network(**{"optimizer.rule": "adam", key: "compiled"})


def test_one_way_to_clip_is_enough(of_own_network):
    facts = NetworkFacts(optimizer={"rule": "sgd", "learning_rate": 0.1, "weight_decay": 0.0, "clip_norm": 1.0})
    trained = with_rule_of_compile(of_own_network(**{"optimizer.clip_value": 0.5}), facts).optimizer
    assert (trained.clip_value, trained.clip_norm) == (0.5, None)


@pytest.mark.parametrize(("mode", "way"), [("layers", "global_clip_norm"), ("width", "clip_norm")])
def test_a_way_to_clip_of_compile_that_the_mode_can_not_do_is_refused(of_own_network, mode, way):
    facts = NetworkFacts(optimizer={"rule": "adam", "learning_rate": 0.1, "weight_decay": 0.0, way: 1.0})
    with pytest.raises(
        UserError,
        match=rf"compile\(\) can.t be used with the other settings: .*optimizer.{way}: got 1.0: mode {mode} does not",
    ):
        with_rule_of_compile(of_own_network(**{"mode.name": mode}), facts)
    trained = with_rule_of_compile(of_own_network(**{"mode.name": mode, "optimizer.clip_value": 0.5}), facts).optimizer
    assert (trained.clip_value, trained.clip_norm, trained.global_clip_norm) == (0.5, None, None)
