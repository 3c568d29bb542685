"""The JSON schemas in configs/: up to date, and of one mind with the classes that validate."""

import json

import pytest
from jsonschema import Draft7Validator
from referencing import Registry

from ps_cluster.config import build_config
from ps_cluster.config.schema import known_keys, section_classes
from ps_cluster.config.sections import flat
from ps_cluster.files.yaml_files import parse_yaml, read_yaml
from ps_cluster.installation import CONFIG_FOLDER
from ps_cluster.tools.compare.schemas import texts

COMPARISON = "compare.schema.json"
FILES = sorted(path.name for path in CONFIG_FOLDER.glob("*.yaml"))


def schema_of(file) -> str:
    return COMPARISON if "compare" in file else "schema.json"


@pytest.fixture(scope="module")
def validators():
    schemas = {name: json.loads(text) for name, text in texts().items()}
    beside = Registry().with_contents(schemas.items())  # as an editor finds one file beside the other
    return {name: Draft7Validator(schema, registry=beside) for name, schema in schemas.items()}


@pytest.fixture(scope="module")
def wrong(validators):
    """wrong(text) → whether an editor marks a mistake in a configuration."""
    return lambda text, name="schema.json": not validators[name].is_valid(parse_yaml(text))


@pytest.mark.parametrize("name", texts())
def test_the_schema_in_configs_is_up_to_date(name):
    again = "write it anew: python -m ps_cluster.tools.compare.schemas"
    assert (CONFIG_FOLDER / name).read_text(encoding="utf-8") == texts()[name], again


def test_the_schemas_are_schemas():
    for text in texts().values():
        Draft7Validator.check_schema(json.loads(text))


@pytest.mark.parametrize("file", FILES)
def test_every_file_that_is_shipped_is_valid_and_names_its_schema(file, validators):
    content = read_yaml(CONFIG_FOLDER / file)
    assert [error.message for error in validators[schema_of(file)].iter_errors(content)] == []
    first = (CONFIG_FOLDER / file).read_text().splitlines()[0]
    assert first == f"# yaml-language-server: $schema={schema_of(file)}"


@pytest.mark.parametrize("values", [{}, {"mode.name": "bounded"}, {"model.name": "mlp", "data.dataset": "mnist"}])
def test_the_config_of_a_run_is_valid(values, validators):
    config = parse_yaml(build_config(None, values).to_yaml())
    assert [error.message for error in validators["schema.json"].iter_errors(config)] == []
    assert set(flat(config)) <= set(known_keys()) and set(section_classes()) <= set(known_keys())


@pytest.mark.parametrize(
    "text",
    [
        "cluster: {wrokers: 2}",
        "clster: {workers: 2}",
        "cluster: {workers: 0}",
        "cluster: {pin_workers: maybe}",
        "mode: {name: sync, max_staleness: 2}",
        "data: {augmentation: {flip: sometimes}}",
        "data: {augmentation: {contrast_range: [0.8]}}",
        "optimizer: {rule: sgd, momentum: 0.9}",
        "extends: [a.yaml]",
        "3",
    ],
)
def test_what_a_run_refuses_is_marked(wrong, text):
    assert wrong(text)


@pytest.mark.parametrize(
    "text",
    [
        "extends: base.yaml\nmode: {max_staleness: 2}",
        "mode: {name: 'mine.py:Toy'}",
        "data: {dataset: ../prices.csv, target: price}",
        "optimizer: {rule: adam, beta_2: 0.99, learning_rate: 1}",
        "staleness: {method: dc_constant, strength: 1.0}",
        "checkpoints: {every_seconds: auto, every_epochs: 0.5}",
        "training: {class_weights: {cat: 2}}",
    ],
)
def test_what_a_run_takes_is_not_marked(wrong, text):
    assert not wrong(text)


def test_a_comparison_takes_dotted_keys_and_sections_and_no_others(wrong):
    assert not wrong("arms: [{mode: async, set: {cluster.workers: 2}}]\nsettings: {training: {epochs: 1}}", COMPARISON)
    assert not wrong("settings: {data.augmentation.flip: random}", COMPARISON)
    for text in (
        "settings: {cluster.wrokers: 2}",
        "arms: [{mode: asink}]",
        "settings: {cluster.workers: 0}",
        "sedes: 3",
    ):
        assert wrong(text, COMPARISON), text
