"""The commands `ps-cluster data list | fetch | verify | show | rm`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ps_cluster.cli.command_line import (
    OneLineErrors,
    confirmed,
    examples,
    json_option,
    option,
    write_json_to,
    yes_option,
)
from ps_cluster.cli.options import GivenSettings, config_and_set_options, config_options
from ps_cluster.cli.value_types import INPUT_PATH, OUTPUT_FILE, Integer, NameOf
from ps_cluster.config.datasets import DATASETS, DataSettings
from ps_cluster.config.sections import DATA_SET
from ps_cluster.errors import RunFailed, UserError
from ps_cluster.installation import PROGRAM
from ps_cluster.report.terminal import make_console, print_line

if TYPE_CHECKING:
    from ps_cluster.data.packed import PackedDataset

_OPTIONS = ("--data-dir", "--target", "--image-size", "--skip-bad/--no-skip-bad")  # these choose the data

_data_set = click.argument("name", type=NameOf(DATASETS), metavar="NAME")


@click.group(
    cls=OneLineErrors, epilog=examples("data list", "data fetch cifar10", "data show mnist --output digits.png")
)
def data() -> None:
    """List, fetch, verify, show and remove data sets."""


@data.command(
    "list",
    epilog=examples("data list", "data list --data-dir ~/Downloads", "data list --json - | jq '.data_sets[].name'"),
)
@option("--data-dir", type=INPUT_PATH, help="Look for archives in this folder too.")
@json_option("list")
def list_(data_dir: Path | None, json_file: Path | None) -> None:
    """List the data sets, with their copies and archives on this machine."""
    from ps_cluster.data import cache, inventory
    from ps_cluster.report import data_tables

    if data_dir and not Path(os.path.expanduser(data_dir)).is_dir():
        raise UserError(f"--data-dir: got '{data_dir}': there is no such folder: correct it, or leave it out")
    cache_dir = cache.default_cache_dir()
    entries = inventory.entries(cache_dir, data_dir)
    folder = cache.packed_folder(cache_dir)
    if json_file:
        content = {"packed_folder": str(folder), "data_sets": data_tables.entries_as_json(entries)}
        if write_json_to(json_file, content):
            return
    data_tables.print_entries(entries, make_console())
    print_line(f"packed copies are in {folder}")


@data.command(
    epilog=examples("data fetch cifar10", "data fetch mnist --data-dir ~/Downloads", "data fetch my.py:load"),
)
@_data_set
@config_options(*_OPTIONS)
@config_and_set_options
def fetch(given: GivenSettings, name: str) -> None:
    """Find or download a data set, pack it, and print where it is."""
    dataset = _found(given.with_values({DATA_SET.setting: name}).resolved().config.data)
    count = f"{dataset.train_examples} + {dataset.test_examples} examples"
    origin = f", packed from {dataset.source}" if dataset.source else ""
    print_line(f"{dataset.name} ({dataset.kind}), {count}: {dataset.directory}{origin}")


def _found(settings: DataSettings) -> PackedDataset:
    """Find or download the data set that the settings choose, pack it, and show the progress."""
    from ps_cluster.data import cache, sources
    from ps_cluster.report.byte_progress import byte_progress

    with byte_progress(make_console()) as (notify, progress):
        return sources.resolve(settings, cache.default_cache_dir(), notify=notify, progress=progress)


@data.command(epilog=examples("data verify", "data verify cifar10 mnist", "data verify cifar10.1-5740d428"))
@click.argument("names", nargs=-1, metavar="[NAME]...")
def verify(names: tuple[str, ...]) -> None:
    """Read packed copies completely and check them.

    The command checks manifest, sizes, targets, and the checksum of each file. Without NAME, it checks all copies.
    """
    from ps_cluster.data import cache, inventory
    from ps_cluster.report.byte_progress import byte_progress
    from ps_cluster.report.terminal import megabytes

    cache_dir = cache.default_cache_dir()
    found = inventory.copies(cache_dir)
    damaged = []
    for copy in inventory.copies_named(names, found, cache_dir) if names else found:
        with byte_progress(make_console(), lines=False) as (notify, progress):
            checked = inventory.verify(copy, progress)
            what = f"{copy.name} ({megabytes(copy.bytes)}) {copy.directory}"
            if checked.dataset is None:
                damaged.append(copy.directory.name)
                notify(f"DAMAGED  {what}: {checked.problem}")
            else:
                notify(f"sound    {what}")
    if not found:
        print_line(f"there are no packed copies in {cache.packed_folder(cache_dir)}")
    if damaged:
        raise RunFailed(
            f"{len(damaged)} of the packed copies are damaged: remove them ({PROGRAM} data rm {shlex.join(damaged)}), "
            "and the next command that needs one of them packs it again"
        )


@data.command(epilog=examples("data rm mnist", "data rm cifar10.1-5740d428", "data rm mnist synthetic --yes"))
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@yes_option
def rm(names: tuple[str, ...], yes: bool) -> None:
    """Remove packed copies.

    NAME is the name of a single copy, or of a data set. For a data set, all its copies are removed. Archives are not
    removed.
    """
    from ps_cluster.data import cache, inventory
    from ps_cluster.files import untrusted
    from ps_cluster.report.terminal import megabytes

    cache_dir = cache.default_cache_dir()
    untrusted.check_folder(cache_dir, "cache (PS_CLUSTER_CACHE)", print_line)
    chosen = inventory.copies_named(names, inventory.copies(cache_dir), cache_dir)
    for copy in chosen:
        print_line(f"{copy.name} ({megabytes(copy.bytes)}) {copy.directory}")
    if not yes and not confirmed(len(chosen), "copies"):
        return
    for copy in chosen:
        inventory.remove(copy)
        print_line(f"removed {copy.directory}")


@data.command(
    epilog=examples(
        "data show cifar10",
        "data show mnist --output digits.html --seed 3",
        "data show cifar10 --set data.augmentation.cutout_pixels=8",
    ),
)
@_data_set
@config_options(*_OPTIONS, "--model")
@config_and_set_options
@option(
    "--output",
    type=OUTPUT_FILE,
    metavar="FILE.html",
    help="The page to write; default: NAME.html in the current folder.",
)
@option(
    "--seed",
    type=Integer(0, 2**31 - 1),
    default=0,
    help="Seed that decides which examples are shown, and how they are varied.",
)
def show(given: GivenSettings, name: str, output: Path | None, seed: int) -> None:
    """Show images of each class on a page, or print columns and rows of other data.

    The page shows each image as it is, and as training varies it.
    """
    from ps_cluster.report.data_tables import print_table_of

    settings = given.with_values({DATA_SET.setting: name}).resolved().config.data
    dataset = _found(settings)
    if dataset.spec.unit == "images":
        from ps_cluster.report.data_page import write_data_page

        print_line(f"written: {write_data_page(dataset, settings, output, seed)}")
        return
    if output:
        raise UserError(f"--output: got '{output}': only data sets of images are shown on a page: leave --output out")
    print_table_of(dataset, make_console())
