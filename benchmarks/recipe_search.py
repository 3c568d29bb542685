"""Search a better recipe for the default network: train variants on CIFAR-10, and score each on 5,000 held-out images.

    python -m benchmarks.recipe_search --data-dir DATA
    python -m benchmarks.recipe_search --draw

Variants update the convolutions by Muon unless their name has another rule. They try what the newest public recipes for
94 % do (airbench94_muon, github.com/KellerJordan/cifar10-airbench; Hiverge, github.com/hiverge/cifar10-speedrun), and
other sizes of images. Mode `single` is used except where a variant's name has a staleness, which one worker emulates.
Scores of two seeds differ by some 0.2 points. Most variants are trained with one seed, which shows larger differences
only. The variants in `SEEDS` are trained with several seeds. The same command continues an interrupted search. `--draw`
prints the table of all variants that are in the record, and trains nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.records import RECORDS, Column, keep, print_table
from benchmarks.trials import AT_A_TIME, DATA_DIR, Arm, Choice, Study
from ps_cluster.cli.command_line import OneLineCommand
from ps_cluster.cli.value_types import OUTPUT_FILE
from ps_cluster.config import build_config
from ps_cluster.errors import UserError

HELD_OUT = 5_000
RATE = 0.5  # of the weights outside of convolutions; `_factors` scales it for the others
COLUMNS = {
    "variant": Column(heading="variant"),
    "epochs": Column(heading="epochs", digits=1),
    "work": Column(heading="work [epochs of whole images]", digits=2),
    "score": Column(heading="held-out accuracy [%], median (lowest to highest)", digits=2),
}


def _factors(of_convolutions: float, not_trained: str = "whiten/kernel") -> list[dict[str, Any]]:
    return [
        {"match": not_trained, "factor": 0.0},
        {"match": "norm*/beta", "factor": 64.0},
        {"match": "conv", "factor": of_convolutions},
    ]


BASE: dict[str, Any] = {
    "model.name": "airbench", "data.dataset": "cifar10", "mode.name": "single", "training.batch_size_per_worker": 256,
    "training.epochs": 7, "optimizer.learning_rate": RATE, "optimizer.momentum": 0.6, "optimizer.weight_decay": 0.0033,
    "schedule.image_scales": [{"scale": 0.5, "until": 0.25}, {"scale": 0.75, "until": 0.75}],
    "evaluation.draw_results": False, "evaluation.recompute_updates": False,
}  # fmt: skip
MUON = {
    "optimizer.rule": "muon", "optimizer.matrices": ["conv"], "optimizer.fixed_norm_every": 16,
    "optimizer.rate_of_nesterov": 1.0, "optimizer.learning_rate_factors": _factors(0.16),
}  # fmt: skip
STALE = {"mode.name": "async", "cluster.workers": 1, "cluster.parameter_servers": 1, "mode.simulate_workers": 3}
FREE_NORM = {"optimizer.fixed_norm_every": 0, "optimizer.learning_rate_factors": _factors(0.3)}
LARGER = {"training.epochs": 8, "schedule.image_scales": [{"scale": 0.75, "until": 0.4}]}
SHORT = {"training.epochs": 4.6, "schedule.image_scales": [{"scale": 0.75, "until": 0.5}]}
SMALLER = {"training.epochs": 5.2, "schedule.image_scales": [{"scale": 0.75, "until": 0.7}]}
NESTEROV = {
    "optimizer.rule": "nesterov", "training.batch_size_per_worker": 128,
    "optimizer.learning_rate_factors": _factors(1.0),
}  # fmt: skip
# Every 5 updates, as in airbench (Jordan 2024, arXiv:2404.00498, section 3.4).
AVERAGED = {"lookahead.every_updates": 5, "lookahead.decay": 0.95}
SHORT_NAME = "4.6 epochs, 24x24 pixels until 50 %"
# Hiverge's settings. There the brightness changes by up to 0.14 standard deviations of the pixels. A standard deviation
# is about a quarter of the pixels' range. The contrast changes by up to 13 %.
JITTER = {"data.augmentation.brightness_delta": 0.035, "data.augmentation.contrast_range": [0.87, 1.13]}
CHEAPER_MUON = {"optimizer.momentum": 0.655, "optimizer.orthogonal_steps": 3, "optimizer.fixed_norm_every": 4}
WITH_SEVERAL_SEEDS: Mapping[str, Mapping[str, Any]] = {
    f"{SHORT_NAME}, jitter of brightness (0.035) and contrast (0.13)": {**SHORT, **JITTER},
    f"{SHORT_NAME}, Muon with momentum 0.655, 3 iterations and the norm fixed every 4 updates": {**SHORT, **CHEAPER_MUON},
}  # fmt: skip
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "Muon at 0.08, norm fixed every 16 updates": {},
    "norm not fixed, Muon at 0.15": FREE_NORM,
    "Muon at 0.15": {"optimizer.learning_rate_factors": _factors(0.3)},
    "label smoothing 0.09 instead of 0.2": {"training.label_smoothing": 0.09},
    "bias of the whitening not trained": {"optimizer.learning_rate_factors": _factors(0.16, "whiten/*")},
    "SiLU instead of GELU": {"model.activation": "silu"},
    "no warm-up": {"schedule.warmup_fraction": 0.0},
    "no warm-up, batches of 512, Muon at 0.12, norm fixed every 8 updates": {
        "schedule.warmup_fraction": 0.0, "training.batch_size_per_worker": 512, "optimizer.fixed_norm_every": 8,
        "optimizer.learning_rate_factors": _factors(0.24),
    },
    "11 epochs": {"training.epochs": 11},
    "8 epochs, 24x24 pixels until 40 %": LARGER,
    "8 epochs, 24x24 pixels until 40 %, staleness 2": {**LARGER, **STALE},
    SHORT_NAME: SHORT,
    f"{SHORT_NAME}, staleness 2": {**SHORT, **STALE},
    f"{SHORT_NAME}, staleness 2, Nesterov, batches of 128": {**SHORT, **STALE, **NESTEROV},
    "5.2 epochs, 24x24 pixels until 70 %, staleness 2, Nesterov, batches of 128": {**SMALLER, **STALE, **NESTEROV},
    f"{SHORT_NAME}, staleness 2, weights averaged (lookahead)": {**SHORT, **STALE, **AVERAGED},
    "5.2 epochs, 24x24 pixels until 70 %, staleness 2": {**SMALLER, **STALE},
    f"{SHORT_NAME}, staleness 2, norm not fixed, Muon at 0.15": {**SHORT, **STALE, **FREE_NORM},
    f"{SHORT_NAME}, staleness 2, norm not fixed, Muon at 0.3": {
        **SHORT, **STALE, **FREE_NORM, "optimizer.learning_rate_factors": _factors(0.6)
    },
    **{
        f"{SHORT_NAME}, staleness 2, norm not fixed, batches of 128, Muon at {0.15 * factor}": {
            **SHORT, **STALE, **FREE_NORM, "training.batch_size_per_worker": 128, "optimizer.learning_rate": RATE * factor
        }
        for factor in (1, 0.5)
    },
    **{
        f"{SHORT_NAME}, staleness 2, norm not fixed, batches of 512, Muon at {0.15 * factor}": {
            **SHORT, **STALE, **FREE_NORM, "training.batch_size_per_worker": 512, "optimizer.learning_rate": RATE * factor
        }
        for factor in (1, 2)
    },
    f"{SHORT_NAME}, norm not fixed, Muon at 0.3": {**SHORT, **FREE_NORM, "optimizer.learning_rate": 2 * RATE},
    **WITH_SEVERAL_SEEDS,
    **{
        f"{SHORT_NAME}, sync (batches of 768), norm not fixed, Muon at {0.15 * factor}": {
            **SHORT, **FREE_NORM, "training.batch_size_per_worker": 768, "optimizer.learning_rate": RATE * factor
        }
        for factor in (1, 2, 4, 8)
    },
}  # fmt: skip
# The number of seeds of variants whose differences are smaller than those between two seeds.
SEEDS = dict.fromkeys([SHORT_NAME, *WITH_SEVERAL_SEEDS], 3)


@dataclass(frozen=True)
class Variant(Arm):
    """A variant of the recipe, which is trained at one rate only."""

    def missing(self, tried: Mapping[Choice, float | None]) -> list[Choice]:
        return [] if tried else [Choice(rate=self.rates[0], momentum=None)]

    @property
    def work(self) -> float:
        """The work of the training, in epochs of full-size images.

        An image of half the height and half the width counts as a quarter of an image.
        """
        config = build_config(None, dict(self.settings))
        assert config.training.epochs is not None
        return config.training.epochs * config.schedule.left(0.0) * config.schedule.image_scales[0].scale ** 2


def variants() -> list[Variant]:
    """Return all variants. Each has one checkpoint, at the end of its training, so that nothing is scored earlier."""
    found = []
    for name, changes in VARIANTS.items():
        settings = {**BASE, **({} if "optimizer.rule" in changes else MUON), **changes}
        settings["checkpoints.every_epochs"] = settings["training.epochs"]
        rate, seeds = settings.pop("optimizer.learning_rate"), SEEDS.get(name, 1)
        found.append(Variant(name, settings, (rate,), HELD_OUT, 100.0, tuning_seeds=seeds))
    return found


def draw(record: Path) -> None:
    """Print the table of all variants in a record."""
    study, rows = Study(record, variants()), list[dict[str, Any]]()
    for variant in variants():
        for scores in study.on_held_out(variant).values():
            for score in scores.values():
                epochs = variant.settings["training.epochs"]
                shown = None if score is None else variant.scale * score
                rows.append({"variant": variant.name, "epochs": epochs, "work": variant.work, "score": shown})
    if not rows:
        raise UserError(f"--record: '{record}' has no variants yet: run the search without --draw first")
    print_table(keep(None, rows, COLUMNS))


@click.command(cls=OneLineCommand)
@DATA_DIR
@click.option("--record", type=OUTPUT_FILE, default=RECORDS / "recipe_trials.json", help="Where all trials are kept.")
@AT_A_TIME
@click.option("--draw", "only_draw", is_flag=True, help="Train nothing; only print the trials of the record.")
def main(data_dir: Path | None, record: Path, at_a_time: int, only_draw: bool) -> None:
    """Search a better recipe for the default network on held-out images, or print the trials of a record."""
    if only_draw:
        return draw(record)
    data = {"data.data_dir": f"{data_dir}"} if data_dir else {}
    Study(record, variants()).train(0, at_a_time, data)


if __name__ == "__main__":
    main()
