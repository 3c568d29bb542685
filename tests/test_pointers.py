"""Every file that a comment or a docstring names exists."""

import io
import re
import tokenize

import pytest

from tests.helpers.real_cluster import PROJECT

PACKAGE = PROJECT / "ps_cluster"
POINTER = re.compile(r"(?<![\w/.])((?:[a-z_]+/)*[a-z_]+\.py)(?!\w)")
# Files of Keras and torchvision, and a user's file in an example.
ELSEWHERE = {
    "datasets/mnist.py", "datasets/cifar10.py", "datasets/cifar100.py", "prototype/datasets/_builtin/mnist.py",
    "prototype/datasets/_builtin/cifar.py", "keras/src/backend/config.py", "path/to/file.py", "file.py", "my.py",
}  # fmt: skip


def sentences(file):
    """Yield the comments and the strings in triple quotes."""
    for token in tokenize.generate_tokens(io.StringIO(file.read_text()).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.endswith('"""')):
            yield token.string


@pytest.mark.parametrize(
    "room", sorted(path.name for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir())
)
def test_a_comment_that_names_a_file_names_one_that_exists(room):
    files = [PACKAGE / room] if room.endswith(".py") else (PACKAGE / room).rglob("*.py")
    wrong = {}
    for file in files:
        roots = (file.parent, PACKAGE, PROJECT)
        named = {name for text in sentences(file) for name in POINTER.findall(text)} - ELSEWHERE
        if lost := [name for name in named if not any((root / name).is_file() for root in roots)]:
            wrong[str(file.relative_to(PACKAGE))] = lost
    assert not wrong
