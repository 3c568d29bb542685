"""Parsers return a value for any text, or raise the documented error. A value that was written is read back unchanged."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ps_cluster.config import parse_assignment
from ps_cluster.config.stragglers import MOST_EXTRA_S, MOST_TIMES, Slowness, Stragglers, parse_stragglers
from ps_cluster.config.tasks import Task
from ps_cluster.errors import UserError
from ps_cluster.files.values import Malformed, parse_decimal, parse_integer
from ps_cluster.files.yaml_files import dump_yaml, parse_yaml
from ps_cluster.launch.cluster_files import from_tf_config
from ps_cluster.launch.topology import ClusterTopology

pytestmark = pytest.mark.slow

NUMBERS = st.text("0123456789+-._eEnaif \uff11", max_size=12) | st.text(max_size=8)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
TREES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
# Only characters with a meaning in YAML, so that some of the texts are nearly valid.
YAML = st.text("ab:,-[]{}&*!|>'\"#%@`<~ \n\t0.1?\\", max_size=40) | st.text()
STRAGGLERS = st.text("0123456789:x+s.; random:gamma", max_size=20) | st.text()

ADDRESSES = st.lists(st.integers(1, 65_535), min_size=1, max_size=9, unique=True).map(
    lambda ports: [f"machine-{port % 3}.example:{port}" for port in ports]
)
JSON_TREES = st.recursive(
    st.none() | st.integers() | st.sampled_from(["a:1", "b:2", "chief", "worker"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["cluster", "task", "chief", "ps", "worker", "type", "index"]), inner)
    ),
    max_leaves=9,
)


def read_or_refused(read, text, refusal):
    """Return the value that `read` returns, or None if it raises `refusal`. Any other error fails the test."""
    try:
        return read(text)
    except refusal:
        return None


@given(NUMBERS)
@example("१")
def test_a_whole_number_is_what_python_reads_or_is_refused(text):
    value = read_or_refused(parse_integer, text, Malformed)
    assert value is None or (value == int(text) and text.isascii())


@given(NUMBERS)
def test_a_decimal_number_is_what_python_reads_or_is_refused(text):
    value = read_or_refused(parse_decimal, text, Malformed)
    assert value is None or (value == float(text) and text.isascii())


@given(st.integers(), st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_read_back(integer, number):
    assert parse_integer(str(integer)) == integer and parse_decimal(repr(number)) == number


@given(YAML | st.binary())
@example("a: &a [*a]")
def test_yaml_is_read_or_refused(text):
    value = read_or_refused(parse_yaml, text, Malformed)
    assert repr(parse_yaml(dump_yaml(value))) == repr(value)  # as texts, because nan differs from nan


@given(TREES)
def test_yaml_that_is_written_is_read_back(tree):
    assert parse_yaml(dump_yaml(tree)) == tree


@given(YAML | st.builds("training.epochs={}".format, YAML))
def test_an_assignment_is_read_or_refused(text):
    found = read_or_refused(parse_assignment, text, UserError)
    key, _, value = text.partition("=")
    assert found is None or repr(found) == repr((key.strip(), parse_yaml(value)))


@given(st.lists(st.from_regex(r"[a-z_]{1,9}", fullmatch=True), min_size=2, max_size=4), TREES)
def test_an_assignment_that_is_written_is_read_back(names, value):
    key = ".".join(names)
    assert parse_assignment(f"{key}={dump_yaml(value)}") == (key, value)


@given(STRAGGLERS)
def test_stragglers_are_read_or_refused(text):
    found = read_or_refused(parse_stragglers, text, ValueError)
    assert found is None or bool(found) == (text != "none")
    for slow in found.slow if found else ():
        assert 1 <= slow.factor <= MOST_TIMES and 0 <= slow.extra_s <= MOST_EXTRA_S and str(slow.worker) in text


@given(
    st.dictionaries(st.integers(0, 99_999), st.integers(100, 100_000) | st.integers(0, 360_000).map(float), min_size=1)
)
def test_stragglers_that_are_written_are_read_back(slow):
    """An integer stands for hundredths of a factor, a float for hundredths of a delay in seconds."""
    texts, expected = [], []
    for worker, hundredths in slow.items():
        is_delay, value = isinstance(hundredths, float), hundredths / 100
        texts.append(f"{worker}:+{value:.2f}s" if is_delay else f"{worker}:{value:.2f}x")
        expected.append(Slowness(worker, extra_s=value) if is_delay else Slowness(worker, factor=value))
    assert parse_stragglers("; ".join(texts)) == Stragglers(tuple(expected))


@given(JSON_TREES.map(json.dumps) | st.text())
def test_tf_config_is_read_or_refused(text):
    found = read_or_refused(from_tf_config, text, UserError)
    if found is not None:
        topology, task = found
        assert from_tf_config(topology.tf_config(task)) == found


@given(ADDRESSES, st.integers(0, 7), st.data())
def test_tf_config_that_is_written_is_read_back(addresses, servers, data):
    if len(addresses) > servers + 1 and servers:
        cluster = {"chief": addresses[:1], "ps": addresses[1 : servers + 1], "worker": addresses[servers + 1 :]}
    else:
        cluster = {"worker": addresses}
    topology = ClusterTopology(cluster)
    task = data.draw(st.sampled_from([Task(kind, index) for kind in cluster for index in range(len(cluster[kind]))]))
    assert from_tf_config(topology.tf_config(task)) == (topology, task)


def test_a_parser_that_fails_in_another_way_would_be_noticed():
    with pytest.raises(ZeroDivisionError):
        read_or_refused(lambda text: 1 / 0, "", ValueError)
