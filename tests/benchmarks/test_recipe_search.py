"""The search for a better recipe: how much work a variant is, and that each variant can be trained."""

import pytest

from benchmarks.recipe_search import HELD_OUT, RATE, variants
from benchmarks.trials import Choice
from ps_cluster.config import build_config


def test_work_counts_whole_images():
    work = {variant.name: round(variant.work, 3) for variant in variants()}
    assert work["11 epochs"] == round(11 * (0.25 * 0.25 + 0.5 * 0.5625 + 0.25), 3)
    assert work["8 epochs, 24x24 pixels until 40 %"] == round(8 * (0.4 * 0.5625 + 0.6), 3)


@pytest.mark.parametrize("variant", variants(), ids=lambda variant: variant.name)
def test_each_variant_is_trained_at_one_rate_with_settings_that_fit_together(variant):
    (choice,) = variant.missing({})
    assert variant.missing({choice: 0.9}) == [] and variant.held_out == HELD_OUT
    assert choice == Choice(rate=choice.rate, momentum=None) and choice.rate / RATE in {0.5, 1.0, 2.0, 4.0, 8.0}
    config = build_config(None, {**variant.settings, "optimizer.learning_rate": choice.rate})
    assert config.optimizer.rule == ("nesterov" if "Nesterov" in variant.name else "muon")
