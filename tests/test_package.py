"""The package as pip installs it: built, put into an empty environment, and used from another folder."""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from cli import what_to_do
from ps_cluster import __version__
from ps_cluster.installation import install_command, program
from tests.helpers.processes import assert_none_left
from tests.helpers.real_cluster import FEW_EXAMPLES, PROJECT, small

pytestmark = pytest.mark.slow

# Commands and files that only a checkout has.
OF_A_CHECKOUT = r"python -m benchmarks|benchmarks/\S+\.txt|\bmake (install|clean|run|test|lint|lock)\b"
# These files check how the package is installed, or write a page of the project.
KNOW_WHERE_THEY_ARE = ("ps_cluster/installation.py", "ps_cluster/cli/reference.py")
ELSEWHERE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    subprocess.run([sys.executable, *build, "--wheel-dir", folder, PROJECT], env=ELSEWHERE, check=True, timeout=200)
    return next(folder.glob("ps_cluster-*.whl"))


@pytest.fixture(scope="module")
def bin_folder(wheel, tmp_path_factory):
    """Return the bin folder of an environment that has the wheel. It finds all other packages where these tests find them."""
    environment = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], env=ELSEWHERE, check=True, timeout=100)
    python = environment / "bin" / "python"
    install = ("-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index")
    subprocess.run([sys.executable, *install, wheel], env=ELSEWHERE, check=True, timeout=100)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "of_the_tests.pth").write_text(sysconfig.get_path("purelib"))
    return python.parent


def test_every_file_of_the_package_and_every_configuration_is_in_the_wheel(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    ours = {
        path.relative_to(PROJECT) for path in (PROJECT / "ps_cluster").rglob("*") if "__pycache__" not in path.parts
    }
    wanted = {str(path) for path in ours if (PROJECT / path).is_file()}
    wanted |= {f"ps_cluster/{path.relative_to(PROJECT)}" for path in (PROJECT / "configs").rglob("*.*")}
    assert wanted - held == set()
    outside = {name for name in held - wanted if not name.startswith(f"ps_cluster-{__version__}.dist-info/")}
    assert outside == set()


def test_no_text_in_the_wheel_tells_people_to_run_what_only_a_checkout_has(wheel):
    told = []
    with zipfile.ZipFile(wheel) as held:
        for name in set(held.namelist()) - set(KNOW_WHERE_THEY_ARE):
            if name.endswith(".py"):
                nodes = ast.walk(ast.parse(held.read(name)))
                texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
                found = rf"{OF_A_CHECKOUT}|python cli\.py"
            else:
                texts = [held.read(name).decode(errors="ignore")] if not name.endswith("METADATA") else []
                found = OF_A_CHECKOUT
            told += [(name, match[0]) for text in texts if (match := re.search(found, text))]
    assert not told


def test_the_command_tells_its_version_and_its_mistakes_from_any_folder(bin_folder, tmp_path):
    told = _run(bin_folder, tmp_path, "--version")
    assert told.stdout == f"ps-cluster, version {__version__}\n"
    told = _run(bin_folder, tmp_path, "simulate", "--costs", "gone.yaml", expected=2)
    assert "gone.yaml" in told.stderr and told.stderr.count("\n") == 1
    assert "3000 steps" in _run(bin_folder, tmp_path, "simulate", "--workers", "1", "--ps", "1").stdout, "no configs/"
    told = _python(bin_folder, tmp_path, "from ps_cluster.installation import *; print(how_to_install('python3.13'))")
    assert told == "install this package again, with python3.13\n"


@pytest.mark.cluster
def test_a_training_runs_where_there_is_nothing_of_this_project_and_drops_late_gradients_of_a_backup_worker(
    bin_folder, tmp_path
):
    mode = ("--mode", "sync-ps", "--backup-workers", 1, "--workers", 3, "--straggler", "2:+0.3s")
    options = small(*mode, *FEW_EXAMPLES, "--steps", 40, "--no-evaluator", draws=True)
    told = _run(bin_folder, tmp_path, "run", *map(str, options), "--run-dir", "run")
    assert_none_left(tmp_path)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["outcome"] == "completed" and summary["updates"]["applied"] == 40
    assert summary["machine"]["commit"] is None, "it was the code of this checkout that ran"
    assert "ps-cluster evaluate --checkpoint-dir" in told.stdout
    gradients = summary["gradients"]
    assert (gradients["applied"], gradients["per_update"]) == (80, 2) and gradients["dropped"] > 0
    assert summary["workers"][2]["updates"] < 10


def test_an_extra_is_installed_by_the_names_of_its_packages_in_a_checkout_and_where_pip_has_installed_this(bin_folder):
    """A registry may have a package of somebody else under the name of this one."""
    code = "from ps_cluster.installation import install_command; print(install_command('onnx'))"
    elsewhere = subprocess.run([bin_folder / "python", "-c", code], env=ELSEWHERE, capture_output=True, text=True)
    for told, python in ((install_command("onnx"), sys.executable), (elsewhere.stdout, str(bin_folder / "python"))):
        command, *packages = re.split(" install ", told.strip())[0], *shlex.split(re.split(" install ", told)[1])
        assert command == f"{python} -m pip", elsewhere.stderr
        assert sorted(re.split("[<>]", package)[0] for package in packages) == ["onnx", "onnxruntime", "tf2onnx"]


def test_no_message_and_no_page_installs_a_package_by_a_name_that_is_not_registered():
    texts = [PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md"), *(PROJECT / "ps_cluster").rglob("*.py")]
    assert [str(path) for path in texts if re.search(r"install .*ps-cluster\b", path.read_text("utf-8"))] == []


@pytest.mark.exhaustive
def test_make_install_lets_any_folder_import_the_package(tmp_path):
    checkout = tmp_path / "a checkout"
    checkout.mkdir()
    shutil.copy(PROJECT / "Makefile", checkout)
    (checkout / "requirements.txt").write_text("# none: the packages are those of these tests\n")
    (checkout / "ps_cluster").symlink_to(PROJECT / "ps_cluster")
    done = subprocess.run(["make", "install", f"PYTHON={sys.executable}"], cwd=checkout, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = subprocess.run(
        [checkout / ".venv" / "bin" / "python", "-c", "import ps_cluster; print(*ps_cluster.__path__)"],
        cwd="/", env=ELSEWHERE, capture_output=True, text=True,
    )  # fmt: skip
    assert told.stdout == f"{checkout}/ps_cluster\n", told.stderr
    command = checkout / ".venv" / "bin" / "ps-cluster"
    environment = ELSEWHERE | {"PYTHONPATH": sysconfig.get_path("purelib")}
    told = subprocess.run([command, "--version"], cwd="/", env=environment, capture_output=True, text=True)
    assert told.stdout == f"ps-cluster, version {__version__}\n", told.stderr


def test_a_python_without_the_packages_is_told_to_activate_the_environment(tmp_path):
    checkout = tmp_path / "a checkout"
    checkout.mkdir()
    shutil.copy(PROJECT / "cli.py", checkout)
    (checkout / "ps_cluster").symlink_to(PROJECT / "ps_cluster")
    for do in ("make install, then: . .venv/bin/activate", f"activate .venv, by: . '{checkout}/.venv/bin/activate'"):
        bare = [sys.executable, "-S", checkout / "cli.py", "doctor"]
        told = subprocess.run(bare, cwd="/", env=ELSEWHERE, capture_output=True, text=True)
        assert (told.returncode, told.stdout) == (2, "")
        assert re.fullmatch(rf"Error: .* has no package 'click': {re.escape(do)}\n", told.stderr)
        (checkout / ".venv" / "bin").mkdir(parents=True, exist_ok=True)
        (checkout / ".venv" / "bin" / "activate").touch()


def test_a_python_with_other_versions_of_the_packages_is_told_so_in_one_line(tmp_path):
    for copied in ("checkout", "packages/click"):
        (tmp_path / copied).mkdir(parents=True)
    shutil.copy(PROJECT / "cli.py", tmp_path / "checkout")
    (tmp_path / "checkout" / "ps_cluster").symlink_to(PROJECT / "ps_cluster")
    reason = "TypeError: type 'ParamType' is not subscriptable"
    (tmp_path / "packages" / "click" / "__init__.py").write_text(
        "raise TypeError(\"type 'ParamType'\\nis not subscriptable\")"  # as this program meets an old click
    )
    told = subprocess.run(
        [sys.executable, tmp_path / "checkout" / "cli.py", "doctor"], cwd="/", capture_output=True, text=True,
        env=ELSEWHERE | {"PYTHONPATH": str(tmp_path / "packages")},
    )  # fmt: skip
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr == (
        f"Error: {sys.executable} can't import this program, probably because requirements.txt has other versions of "
        f"packages ({reason}): make install, then: . .venv/bin/activate\n"
    )


@pytest.mark.parametrize("version", [(3, 10), (3, 14)])
@pytest.mark.parametrize("error", [ImportError("cannot import name 'Unpack'"), ModuleNotFoundError(name="click")])
def test_a_python_of_another_version_is_told_the_versions_that_work(error, version):
    line = what_to_do(error, version)
    assert f"is Python 3.{version[1]}, but TensorFlow needs Python 3.11 to 3.13: " in line and "\n" not in line


@pytest.mark.parametrize(
    ("typed", "folder", "expected"),
    [
        ("cli.py", PROJECT, "python cli.py"),
        (f"{PROJECT}/cli.py", "/", f"python {shlex.quote(f'{PROJECT}/cli.py')}"),
        ("/a b/cli.py", "/", "{ps-cluster}"),  # a user's script
        ("/somewhere/pytest", PROJECT, "python cli.py"),
        ("/somewhere/pytest", "/", "{ps-cluster}"),
        ("/{bin}/ps-cluster", PROJECT, "{ps-cluster}"),
        ("/usr/lib/ps_cluster/__main__.py", "/", "{ps-cluster}"),
    ],
)
def test_hints_name_the_command_that_works(tmp_path, monkeypatch, typed, folder, expected):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    without = f"{python} -m ps_cluster"
    assert program(typed, Path(folder), str(python)) == expected.replace("{ps-cluster}", without)
    script = python.with_name("ps-cluster")
    script.touch(0o755)
    assert program(typed, Path(folder), str(python)) == expected.replace("{ps-cluster}", str(script))
    monkeypatch.setenv("PATH", str(python.parent))
    assert program(typed, Path(folder), str(python)) == expected.replace("{ps-cluster}", "ps-cluster")


def _run(bin_folder, folder, *arguments, expected=0):
    command = [bin_folder / "ps-cluster", *arguments]
    environment = ELSEWHERE | {"PS_CLUSTER_CACHE": os.environ["PS_CLUSTER_CACHE"]}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
    assert ended.returncode == expected, ended.stdout + ended.stderr
    return ended


def _python(bin_folder, folder, program):
    command = [bin_folder / "python", "-c", program]
    return subprocess.run(command, cwd=folder, env=ELSEWHERE, capture_output=True, text=True, check=True).stdout
