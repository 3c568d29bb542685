"""Functions of a script, by value, for processes that do not have the script."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ps_cluster.api.networks import write_network
from ps_cluster.config import user_code
from ps_cluster.errors import UserError
from ps_cluster.process_variables import TRUSTED_FILES
from tests.helpers.bad_input import PROJECT, refusal

pytestmark = pytest.mark.slow

# As in a notebook, or in a script from standard input, no file contains these definitions.
SCRIPT = """
import sys
from pathlib import Path

FACTOR = 3

def helper(value):
    return FACTOR * value

class Layer:
    KINDS = ("a", "b")

    def known(self, kind):
        return kind in {"a", "b", "c", "d"}

def build(examples, settings):
    assert Layer().known("a")
    return helper(examples), settings, __name__

from ps_cluster.api.networks import write_network
print(write_network(build, Path(sys.argv[1])))
"""


def loaded(text):
    """Return the object that a reference names, as if the user had named its file."""
    user_code.trust(user_code.parse(text).file)
    return user_code.load(user_code.parse(text))


def pickled(folder, hash_seed, *scripts):
    """Return the names that a process gives to the functions of these scripts. It runs each script as its main module."""
    code = "import sys\nfor script in sys.argv[2:]:\n    exec(script)\n"
    told = subprocess.run(
        [sys.executable, "-", folder, *scripts],
        input=code,
        cwd=PROJECT,
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return told.stdout.split()


@pytest.fixture(autouse=True)
def trusting_nothing(monkeypatch):
    """Trust no file at the beginning of a test, although other tests have named files."""
    monkeypatch.setenv(TRUSTED_FILES, "")


def test_a_function_without_a_file_takes_along_what_it_names_and_has_a_name_that_tells_it_from_others(tmp_path):
    (name,) = pickled(tmp_path, "1", SCRIPT)
    assert loaded(name)(7, "settings") == (21, "settings", "__main__")
    other_helper = SCRIPT.replace("FACTOR * value", "value * FACTOR")
    other_set = SCRIPT.replace('{"a", "b", "c", "d"}', '{"a", "b", "c", "e"}')
    same, *others = pickled(tmp_path, "2", "# a line before it\n" + SCRIPT, other_helper, other_set)
    assert same == name and len({name, *others}) == 3


def test_a_pickle_that_the_user_has_not_named_is_not_read(tmp_path):
    bomb = tmp_path / "bomb.pickle"
    bomb.write_bytes(b"cos\nmkdir\n(V" + os.fsencode(tmp_path / "ran") + b"\ntR.")
    with pytest.raises(UserError, match="read it, then add --code"):
        user_code.load(user_code.parse(f"{bomb}:build"))
    function = loaded(f"{bomb}:build")
    assert not (tmp_path / "ran").exists(), "it is read when it is called, and not before"
    with pytest.raises(UserError, match="holds no 'build'"):
        function(1, 2)
    assert (tmp_path / "ran").exists(), "this test's pickle does what it should not"


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (
            lambda a, b, c: None,
            "takes 3 arguments: the function of a network takes no argument, or `examples`, or",
        ),
        (lambda: lock, "can't be sent to the processes that train: TypeError"),
    ],
)
def test_a_function_that_can_not_be_used_is_told_in_one_line(tmp_path, build, told):
    assert told in refusal(write_network, build, tmp_path)
    assert not list(tmp_path.iterdir())


lock = threading.Lock()


def test_a_module_that_is_missing_is_told_in_one_line(tmp_path):
    (tmp_path / "gone.pickle").write_bytes(b"cno_such_module\nbuild\n.")
    with pytest.raises(UserError, match="the function can't be read: ModuleNotFoundError"):
        loaded(f"{tmp_path}/gone.pickle:build")(1, 2)


def test_a_keras_model_is_saved_for_training_to_go_on_from(tmp_path):
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    name = write_network(model, tmp_path)
    assert Path(name).parent == tmp_path and name.endswith(".keras")
    saved = keras.models.load_model(name)
    assert (saved.get_weights()[0] == model.get_weights()[0]).all()
    assert write_network(model, tmp_path) == name, "the time at which it is saved is no part of its name"
    model.set_weights([one + 1 for one in model.get_weights()])
    assert write_network(model, tmp_path) != name
