"""Help: the examples of each command, the name that is most similar to a mistyped one, and completion in a shell."""

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from ps_cluster.cli.main import COMMANDS, GROUPS, SHELLS, main
from ps_cluster.config import build_config
from ps_cluster.installation import PROGRAM
from tests.helpers.bad_input import assert_one_line


def all_commands() -> Iterator[tuple[str, click.Command]]:
    """Yield the full name of each command with the command, including groups and their commands. The main group is ""."""
    yield "", main
    for name in COMMANDS:
        command = main.get_command(None, name)
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {part}", one) for part, one in command.commands.items())


def examples(command: click.Command) -> list[list[str]]:
    """Return the examples in a command's help as words, without the program and without what follows a pipe."""
    joined = re.sub(r" \\\n +", " ", command.epilog or "")  # a long example continues on the next line
    lines = [line.strip() for line in joined.splitlines() if line.strip().startswith(PROGRAM)]
    return [shlex.split(line.removeprefix(PROGRAM).partition("|")[0]) for line in lines]


EXAMPLES = [(name, words) for name, command in all_commands() for words in examples(command)]


@pytest.mark.parametrize(("name", "command"), list(all_commands()), ids=[name or "main" for name, _ in all_commands()])
def test_every_help_has_three_examples_of_its_own_command(name, command):
    found = examples(command)
    assert len(found) >= 3 and all(words[: len(name.split())] == name.split() for words in found)
    told = CliRunner().invoke(main, [*name.split(), "--help"]).stdout
    assert max(map(len, (command.epilog or "").splitlines())) <= 97, "a terminal of 100 columns breaks it in a word"
    assert all(line.strip() in told for line in command.epilog.splitlines() if line.strip() != "\b")


def test_the_list_of_commands_says_in_short_what_each_help_says():
    told = CliRunner().invoke(main, ["--help"]).stdout
    for group in GROUPS.values():
        for name, says in group.items():
            own = main.get_command(None, name).help
            assert f"  {name:12}{says}" in told and own.split()[0] == says.split()[0], own


def test_the_usual_options_come_first_in_the_help_of_run():
    first = CliRunner().invoke(main, ["run", "--help"], terminal_width=80).stdout.splitlines()[:24]
    usual = ("--workers", "--ps", "--mode", "--dataset", "--model", "--epochs", "--learning-rate")
    listed = [line.split()[0] for line in first if line.startswith("  --")]
    assert listed[: len(usual)] == list(usual)


@pytest.mark.parametrize("name", ["run", "k8s render", "sweep"])
def test_options_are_shown_by_groups_and_rare_ones_where_all_are_asked_for(name):
    usual, every = (CliRunner().invoke(main, [*name.split(), option]).stdout for option in ("--help", "--help-all"))
    headings = re.findall(r"^(\w[\w ]*):$", every, re.M)
    assert headings[-1] == "Settings and output" and {"Mode", "Data", "Network", "Training"} <= set(headings)
    command = dict(all_commands())[name]
    rare = {one.opts[0] for one in command.params if getattr(one, "rare", False)}
    assert rare and all(option in every and f"  {option} " not in usual for option in rare)
    assert all(one.opts[0] in usual for one in command.params if one.opts[0] not in rare)
    assert len(usual.splitlines()) < len(every.splitlines())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("rum", "Did you mean 'run'?"),
        ("data lsit", "Did you mean 'list'?"),
        ("run --wrokers 3", "'--workers'"),
        ("run --mode bonded", "did you mean 'bounded'?"),
        ("run --set cluster.wrokers=3", "did you mean 'cluster.workers'?"),
        ("run --set workers=3 --set x", "did you mean 'cluster.workers'?"),
        ("compare --modes asink", "did you mean 'async'?"),
        ("bench --arms clustr", "did you mean 'cluster'?"),
        ("simulate --mode sinc", "did you mean 'sync'?"),
        ("runs sho", "did you mean 'show'?"),
        ("sweep --vary learning_rate=1,2", "did you mean 'optimizer.learning_rate'?"),
        ("runs show docs/imags", "'docs/imags' is not there: "),
    ],
)
def test_a_typo_is_told_with_the_nearest_name(words, told):
    result = CliRunner().invoke(main, words.split())
    assert_one_line(result.exit_code, result.stderr, [told])


def completed(*words: str) -> set[str]:
    """Return the completions that a shell offers for the last of these words."""
    *before, last = words
    return {
        item.value
        for item in ShellComplete(main, {}, "ps-cluster", "_PS_CLUSTER_COMPLETE").get_completions(before, last)
    }


def test_a_shell_completes_commands_options_settings_and_names():
    assert completed("d") == {"data", "doctor"}
    assert completed("run", "--learn") == {"--learning-rate"}
    assert completed("run", "--mode", "s") == {"single", "sync", "sync-diloco", "sync-ps"}
    assert completed("run", "--precision", "b") == {"bfloat16"}
    assert completed("run", "--set", "optimizer.w") == {"optimizer.weight_decay"}
    assert completed("bench", "--models", "mlp,air") == {"mlp,airbench"}
    assert completed("data", "fetch", "mn") == {"mnist"}
    assert completed("run", "--mode", "nothing") == set()


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_for_a_shell_asks_the_installed_program(shell):
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0 and f"_PS_CLUSTER_COMPLETE={shell}_complete" in result.stdout


def test_variables_of_the_environment_count_in_a_command_and_are_told_by_name(monkeypatch):
    variables = {"PS_CLUSTER__TRAINING__SEED": "7"}
    assert "seed: 7" in CliRunner().invoke(main, ["run", "--dry-run"], env=variables).stdout
    wrong = CliRunner().invoke(main, ["run", "--dry-run"], env={"PS_CLUSTER__TRAINING__SED": "7"})
    assert_one_line(wrong.exit_code, wrong.stderr, ["PS_CLUSTER__TRAINING__SED", "did you mean 'training.seed'?"])
    assert build_config().training.seed == 0, "a configuration that is not a command's is as its arguments say"


def test_a_sweep_and_an_ensemble_list_what_they_would_train_and_start_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rates = "--vary optimizer.learning_rate=0.1,0.2 --dry-run --method"
    for words, lines in (
        (f"sweep {rates} grid", ["trial 0: optimizer.learning_rate=0.1", "trial 1: optimizer.learning_rate=0.2"]),
        (f"sweep {rates} tpe --trials 3", ["not known in advance"]),
        (
            "ensemble --members 2 --split shards --model mlp --dry-run",
            ["0-mlp-seed0 (training examples: shard:0/2)", "1-mlp-seed1"],
        ),
    ):
        told = CliRunner().invoke(main, words.split())
        *listed, mode, last = told.stdout.splitlines()
        assert told.exit_code == 0 and len(listed) == len(lines) and "nothing was started" in last, told.output
        assert "is trained in mode single" in mode
        assert all(part in line for part, line in zip(lines, listed))
    assert list(tmp_path.iterdir()) == []


def test_a_comparison_takes_the_environment_under_its_options_and_plans_without_starting(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    variables = {"PS_CLUSTER__OPTIMIZER__LEARNING_RATE": "0.25", "PS_CLUSTER__CLUSTER__WORKERS": "4"}
    command = ["compare", "--modes", "async,sync", "--seeds", "1", "--batches", "same_per_worker", "--dry-run"]
    told = CliRunner().invoke(main, [*command, "--workers", "2"], env=variables)
    assert told.exit_code == 0 and list(tmp_path.iterdir()) == [], told.output
    *runs, last = told.stdout.splitlines()
    assert sorted(run.split(":")[1] for run in runs) == [" learning rate 0.25", " learning rate 0.5 (scaled)"]
    assert last.startswith("runs: 2, one after the other; memory expected: up to 2.2")
    (tmp_path / "my.py").write_text("def network():\n    raise AssertionError('nobody builds it here')\n")
    told = CliRunner().invoke(main, [*command, "--model", "my.py:network"])
    assert told.exit_code == 0 and told.stdout.count(": learning rate that of compile()\n") == 2, told.output
    of_runs = CliRunner().invoke(main, ["compare", "one", "--dry-run"])
    assert_one_line(of_runs.exit_code, of_runs.stderr, ["--dry-run", "leave --dry-run out"])
