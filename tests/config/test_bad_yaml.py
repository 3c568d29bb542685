"""YAML that is wrong, or that others read as something else: in files of settings, files of comparisons, and --set."""

import pytest

from ps_cluster.config import build_config
from ps_cluster.errors import UserError
from ps_cluster.files.values import Malformed
from ps_cluster.files.yaml_files import dump_yaml, parse_yaml
from tests.helpers.bad_input import Row, assert_told, make_folder

TYPES = [
    ("cluster: {workers: true}", ["cluster.workers", "True", "valid integer"]),
    ("cluster: {workers: '3'}", ["cluster.workers", "'3'", "valid integer"]),
    ("cluster: {workers: 3.0}", ["cluster.workers", "3.0", "valid integer"]),
    ("cluster: {workers: {a: 3}}", ["cluster.workers", "{'a': 3}", "valid integer"]),
    ("cluster: {workers: \uff13}", ["cluster.workers", "'\uff13'", "valid integer"]),
    ("cluster: {evaluator: 1}", ["cluster.evaluator", "got 1", "valid boolean"]),
    ("cluster: {isolation: false}", ["cluster.isolation", "False", "'off'"]),
    ("cluster: {isolation: [off]}", ["cluster.isolation", "['off']", "interface=NAME"]),
    ("cluster: {isolation: interface=}", ["cluster.isolation", "'interface='", "interface=wg0"]),
    ("cluster: {isolation: 'interface=wg*'}", ["cluster.isolation", "'interface=wg*'", "interface=wg0"]),
    ("cluster: {straggler: 5}", ["cluster.straggler", "got 5", "valid string"]),
    ("cluster: {straggler: '2:1e400x'}", ["cluster.straggler", "2:1e400x"]),
    ("training: {epochs: '3'}", ["training.epochs", "'3'", "valid number"]),
    ("training: {epochs: 2024-01-01}", ["training.epochs", "'2024-01-01'", "valid number"]),
    ("training: {epochs: .nan}", ["training.epochs", "nan", "finite"]),
    ("training: {seed: -1}", ["training.seed", "-1"]),
    ("mode: {name: [async]}", ["mode.name", "['async']"]),
    ("data: {data_dir: 3}", ["data.data_dir", "got 3"]),
    ('data: {data_dir: "a\\0b"}', ["data.data_dir", "null character"]),
    ("data: {augmentation: {contrast_range: [1.0]}}", ["data.augmentation.contrast_range"]),
    ("data: {augmentation: {contrast_range: ['0.5', 1]}}", ["contrast_range.0", "'0.5'", "valid number"]),
    ("data: {augmentation: {contrast_range: [1, 1e300]}}", ["contrast_range.1", "1e+300"]),
    ("optimizer: {learning_rate: 1e300}", ["optimizer.learning_rate", "1e+300"]),
    ("optimizer: {epsilon: 1e-300}", ["optimizer.epsilon", "1e-300"]),
    ("optimizer: {learning_rate_factors: [{match: a}]}", ["learning_rate_factors.0.factor", "missing"]),
    ("optimizer: {learning_rate_factors: [{match: a, factor: 1e300}]}", ["learning_rate_factors.0.factor", "1e+300"]),
    ("optimizer: {learning_rate_factors: [{match: '(a+)+$', factor: 1}]}", ["0.match", "(a+)+$", "* for any text"]),
    ("optimizer: {learning_rate_factors: [{match: '', factor: 1}]}", ["0.match", "''"]),
    ("checkpoints: {every_seconds: 1e300}", ["checkpoints.every_seconds", "1e+300"]),
    (f"checkpoints: {{keep: {'9' * 300}}}", ["checkpoints.keep", "999"]),
    ("checkpoints: {every_epochs: 0}", ["checkpoints.every_epochs: got 0: ", "greater than 0"]),
    ("model: {name: mlp, hidden: [128, 0]}", ["model.hidden.1: got 0: ", "greater than or equal to 1"]),
    ("evaluation: {validation_examples: -1}", ["validation_examples: got -1: ", "greater than or equal to 0"]),
    ("cluster: {pin_workers: maybe}", ["cluster.pin_workers: got 'maybe': ", "'auto', True or False"]),
]
TEXTS = [
    ("cluster: {workers: 010}", ["line 1", "'010'", "plain decimal"]),
    ("cluster: {workers: 0x3}", ["line 1", "'0x3'"]),
    ("training:\n  steps: 1_000", ["line 2", "'1_000'"]),
    ("training:\n  steps: 1:30", ["line 2", "'1:30'"]),
    ("training: {epochs: 00.5}", ["line 1", "'00.5'"]),
    ("training: {epochs: 1e400}", ["line 1", "too large a number"]),
    ("cluster: {workers: 1, workers: 2}", ["line 1", "'workers'", "twice"]),
    ("cluster: {workers: 1}\ncluster: {workers: 2}", ["line 2", "'cluster'", "twice"]),
    ("a: &a 3\ncluster: {workers: *a}", ["line 1", "anchors and aliases"]),
    ("cluster: {workers: *a}", ["line 1", "anchors and aliases"]),
    ("cluster:\n  <<: {workers: 3}", ["line 2", "merge keys"]),
    ("cluster: {workers: !!int '3'}", ["line 1", "tags"]),
    ("cluster: !!python/object/apply:os.system [true]", ["line 1", "tags"]),
    ("cluster: {3: 4}", ["line 1", "a key must be text, not 3"]),
    ("? [a, b]\n: 3", ["line 1", "a key must be text", "['a', 'b']"]),
    ("cluster: {workers: 3}\n---\ntraining: {seed: 1}", ["more than one document"]),
    ("cluster: [", ["not YAML", "line 1"]),
    ("cluster:\n\tworkers: 3", ["not YAML", "line 2"]),
    ("cluster: {workers: \x1b[31m3}", ["not YAML"]),
    ('cluster: {wire: "\\UFFFFFFFF"}', ["not YAML"]),
    ("%YAML 9.9\n--- a", ["not YAML"]),
    (b"\xff\xfe\x00", ["not YAML", "UTF-8"]),
    ("3", ["must hold keys with values", "int"]),
    ("cluster", ["must hold keys with values", "str"]),
]
COMPARISONS = [
    ("arms: []", ["arms", "at least 1 item"]),
    ("arms: [async]", ["arms.0", "'async'"]),
    ("arms: [{set: {}}]", ["arms.0.mode", "missing"]),
    ("arms: [{mode: asink}]", ["arms.0.mode", "asink"]),
    ("arms: [{mode: async, sets: {}}]", ["arms.0.sets", "unknown key"]),
    ("arms: [{mode: async, set: {workers: 3}}]", ["arms.0.set", "workers"]),
    ("arms: [{mode: async, set: {cluster.workers: true}}]", ["cluster.workers", "True"]),
    ("arms: [{mode: async, set: {cluster.wrokers: 3}}]", ["cluster.wrokers"]),
    (f"arms: [{', '.join(['{mode: async}'] * 101)}]", ["arms", "at most 100 items"]),
    ("seeds: true", ["seeds", "True"]),
    ("seeds: 101", ["seeds", "101"]),
    ("stragglers: []", ["stragglers", "at least 1 item"]),
    ("stragglers: [5]", ["stragglers.0", "got 5"]),
    ("stragglers: ['2:infx']", ["2:infx"]),
    ("batches: [same]", ["batches.0", "'same'"]),
    ("learning_rate: square", ["learning_rate", "'square'"]),
    ("target_score: .inf", ["target_score", "inf"]),
    ("settings: {cluster.workers: '2'}", ["cluster.workers", "'2'"]),
    ("settings: {cluster: 3}", ["cluster", "got 3"]),
    ("tragets: 3", ["tragets", "unknown key"]),
]
ASSIGNMENTS = [
    ("cluster.workers=true", ["cluster.workers", "True"]),
    ("cluster.workers='3'", ["cluster.workers", "'3'"]),
    ("cluster.workers=010", ["cluster.workers=010", "plain decimal"]),
    ("cluster.workers=*a", ["anchors"]),
    ("data.augmentation={<<: {flip: none}}", ["merge keys"]),
    ("data.augmentation={flip: none, flip: random}", ["'flip'", "twice"]),
    ("model.name=[", ["not YAML"]),
    (f"training.epochs={'9' * 5000}", ["5,000 digits"]),
    (f"training.epochs={'a' * 60_000}", ["training.epochs"]),
    (f"{'a.' * 30_000}b=1", ["write it as section.key=value"]),
    ("cluster.workers", ["section.key=value"]),
]
CHIEF = {"TF_CONFIG": '{"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", "index": 0}}'}
ROWS = [
    *(Row("run --config bad.yaml", ["bad.yaml", *says], {"bad.yaml": text}) for text, says in (TYPES[0], TEXTS[0])),
    *(Row("compare --dataset synthetic --config bad.yaml", says, {"bad.yaml": text}) for text, says in COMPARISONS),
    *(Row(["run", "--dataset", "synthetic", "--set", text], says) for text, says in ASSIGNMENTS),
    Row("task --run-dir new --config bad.yaml", ["cluster.wire"], {"bad.yaml": "cluster: {wire: true}"}, CHIEF),
    Row("bench --dataset synthetic --set cluster.workers=true", ["cluster.workers", "True"]),
    Row("compare --dataset synthetic --set cluster.workers='2'", ["cluster.workers", "'2'"]),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_bad_yaml_is_told_in_one_line_and_leaves_nothing_behind(row, tmp_path, commands):
    assert_told(row, make_folder(tmp_path / "here"), commands)


@pytest.mark.parametrize(("text", "says"), [*TYPES, *TEXTS], ids=lambda value: repr(value)[:60])
def test_a_file_of_settings_that_is_wrong_is_told_in_one_line_that_names_it(text, says, tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as error:
        build_config(file)
    assert all(part in str(error.value) for part in ("bad.yaml", *says)) and str(error.value).isprintable()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001), ("1E3", 1000.0), ("+3", 3), ("-0.5", -0.5), (".5", 0.5), ("off", "off"), ("yes", "yes"),
        ("2024-01-01", "2024-01-01"), ("2:5x", "2:5x"), ("'010'", "010"), ("True", True), ("~", None), ("", None),
        ("# nothing", None), ("[1, a, {b: null}]", [1, "a", {"b": None}]), ("'<<': 3", {"<<": 3}),
    ],
)  # fmt: skip
def test_values_are_what_they_look_like(text, value):
    found = parse_yaml(text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "1e-3", "010", "0o17", "off", "null", "", "1:30", "a: b", "<<", "2024-01-01", " x", "#", "\x1b[0m", "\U0001f600", "-",
        "[a]", "x\ny", "\udcff", ".inf", "\uff19", "a\0b", "\u2028", "&a", "*a", "!a", "true", "\t", "a" * 300, "1e400",
    ],
)  # fmt: skip
def test_text_is_read_back_as_it_was_written(text):
    value = {"key": [text, text], "other": {"a": 1e-7, "b": 1e300, "c": True, "d": None}}
    assert parse_yaml(dump_yaml(value)) == value


def test_a_text_of_no_end_is_refused_by_its_length():
    with pytest.raises(Malformed, match="more than 65,536 bytes"):
        parse_yaml("a" * 65_537)
