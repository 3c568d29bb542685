"""Measure how many small mistakes in a module the tests find. This needs the package `cosmic-ray`.

    python -m benchmarks.mutants ps_cluster/server/shard.py --output shard.json

A mutant is a module with one small mistake, such as `<` instead of `<=`. Each mutant is written into a copy of the
project. The tests that import the module, directly or through a helper, run on it until a test fails. First the quick
tests run, as in `make test-quick`. With --all, the other tests then run on the mutants that the quick tests did not
find. Docstrings, annotations and the words of messages are left as they are.
"""

from __future__ import annotations

import ast
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import click

from benchmarks.records import Column, keep
from ps_cluster.cli.command_line import OneLineCommand
from ps_cluster.cli.value_types import OUTPUT_FILE, Integer
from ps_cluster.errors import UserError
from ps_cluster.installation import IMPORT_FOLDER
from ps_cluster.report.terminal import print_line

QUICK, OTHERS = "not cluster and not slow", "cluster or slow"
_LEFT_OUT = {"fstring", "raise_stmt", "annassign", "tfpdef"}  # nodes of messages and annotations in parso's grammar
_UNION = re.compile(r"[A-Z]\w*(\s*\|\s*[A-Z]\w*)*")  # a union of classes, such as `A | B`
COLUMNS = {"line": Column(heading="line"), "mutant": Column(heading="mutant"), "result": Column(heading="result")}


def mutants_of(source: str, chance: random.Random) -> Iterator[tuple[int, str, str]]:
    """Yield the mutants of a module that Python can compile, in random order.

    A mutant is its line number, a description of the change, and the source of the changed module.
    """
    from cosmic_ray.ast import ast_nodes, get_ast  # type: ignore[import-not-found]
    from cosmic_ray.mutating import mutate_code  # type: ignore[import-not-found]
    from cosmic_ray.operators.provider import OperatorProvider  # type: ignore[import-not-found]

    nodes, provider = list(ast_nodes(get_ast(source))), OperatorProvider()
    places = []
    for operator in (provider[name]() for name in provider if not provider[name].arguments()):
        positions = [(node, start) for node in nodes for start, _ in operator.mutation_positions(node)]
        places += [(operator, at, line) for at, (node, (line, _)) in enumerate(positions) if not _is_left_out(node)]
    chance.shuffle(places)
    for operator, at, line in places:
        if _compiles(mutated := mutate_code(source, operator, at)):
            pairs = zip(source.splitlines(), mutated.splitlines())
            before, now = next(((old, new) for old, new in pairs if old != new), ("", ""))
            yield line, f"{before.strip()} → {now.strip()}", mutated


def _is_left_out(node: Any) -> bool:
    """Return whether a node of parso's tree is in an annotation, a message, or a union of types."""
    while node.parent is not None:
        is_result = node.parent.type == "funcdef" and node.parent.annotation is node
        is_union = node.type == "expr" and _UNION.fullmatch(node.get_code(include_prefix=False))
        if node.type in _LEFT_OUT or is_result or is_union:
            return True
        node = node.parent
    return False


def _compiles(source: str) -> bool:
    with contextlib.suppress(SyntaxError, ValueError), warnings.catch_warnings(action="ignore"):
        compile(source, "mutant", "exec")
        return True
    return False


def related_tests(project: Path, module: str) -> list[str]:
    """Return the test files that import a module, directly or through other files of the tests."""
    dotted = module.removesuffix(".py").replace("/", ".")
    imports = {path: set(_imported(path)) for path in sorted((project / "tests").rglob("*.py"))}
    wanted, related = {dotted}, set[Path]()
    while more := {path for path, names in imports.items() if names & wanted} - related:
        related |= more
        wanted |= {".".join(path.relative_to(project).with_suffix("").parts) for path in more}
    return [str(path.relative_to(project)) for path in sorted(related) if path.name.startswith("test_")]


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{name.name}" for name in node.names))


def run_tests(project: Path, tests: Sequence[str], marks: str, limit_s: float) -> tuple[str, str]:
    """Run tests in a fork of this process. Return "passed", "failed" or "hung", and what pytest printed.

    `limit_s`: the seconds after which the tests count as hung, and are killed.
    """
    log = project / "mutants.log"
    child = os.fork()
    if child == 0:
        os.setsid()
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        # The tests have to import the modules of the copy, not those of the project that runs this.
        for name in [name for name in sys.modules if name.split(".")[0] in {"ps_cluster", "benchmarks", "tests"}]:
            del sys.modules[name]
        os.chdir(project)
        sys.path[0] = os.environ["PYTHONPATH"] = str(project)
        import pytest

        words = ["-x", "-q", "-n", "0", "--durations=0", "-p", "no:cacheprovider", "-m", marks, *tests]
        os._exit(pytest.main(words))
    end_s = time.monotonic() + limit_s
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end_s:
        time.sleep(0.05)
    result = "passed" if os.waitstatus_to_exitcode(ended[1]) in {0, 5} else "failed"  # 5: no test has these marks
    if ended[0] == 0:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        result = "hung"
    return result, log.read_text(errors="replace")


@click.command(cls=OneLineCommand)
@click.argument("module")
@click.argument("tests", nargs=-1)
@click.option("--sample", type=Integer(1, 10_000), default=30, help="The number of mutants, chosen at random.")
@click.option("--seed", type=Integer(0, 2**32), default=26)
@click.option("--all", "with_others", is_flag=True, help="Also run the tests that are slow, or start clusters.")
@click.option("--output", type=OUTPUT_FILE, help="Also write the mutants to this JSON file, as a record.")
def main(module: str, tests: Sequence[str], sample: int, seed: int, with_others: bool, output: Path | None) -> None:
    """Run tests on mutants of MODULE, a path in the project. TESTS run instead of all tests that import MODULE."""
    import tensorflow  # noqa: F401  once, before the forks

    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        names = subprocess.run(["git", "ls-files", "-z"], cwd=IMPORT_FOLDER, capture_output=True, text=True, check=True)
        for name in filter(os.path.isfile, names.stdout.rstrip("\0").split("\0")):
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(IMPORT_FOLDER / name, project / name)
        source = (project / module).read_text(encoding="utf-8")
        tests = tests or related_tests(project, module)
        limits_s = {}
        for marks in (QUICK, OTHERS) if with_others else (QUICK,):
            begin_s = time.monotonic()
            result, printed = run_tests(project, tests, marks, 3600)
            if result != "passed":
                raise UserError(f"the tests fail without a mutant:\n{printed[-2000:]}")
            limits_s[marks] = 60 + 4 * (time.monotonic() - begin_s)
        rows: list[dict[str, Any]] = []
        chosen = islice(mutants_of(source, random.Random(seed)), sample)
        for number, (line, change, mutated) in enumerate(chosen, start=1):
            (project / module).write_text(mutated, encoding="utf-8")
            os.utime(project / module, (number, number))  # Python compiles a module again if its time has changed.
            for marks, limit_s in limits_s.items():
                result, printed = run_tests(project, tests, marks, limit_s)
                if result != "passed":
                    break
            failed = [text for text in printed.splitlines() if text.startswith(("FAILED", "ERROR"))][:1]
            by = "others" if marks == OTHERS else "quick tests"
            result = "lives" if result == "passed" else f"{result} by {by}"
            rows.append({"line": f"{line}", "mutant": change, "result": result})
            print_line(f"{number}/{sample} line {line}: {change}: {result} {''.join(failed)[:160]}")
            keep(output, rows, COLUMNS)
        found = sum(row["result"] != "lives" for row in rows)
        print_line(f"{module}: {found} of {len(rows)} mutants found by {len(tests)} test files")


if __name__ == "__main__":
    main()
