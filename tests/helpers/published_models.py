"""Check manifests against the models that the projects publish as Python packages."""

import ast
from importlib.metadata import files
from typing import Any

import kubernetes_validate
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob
from kubeflow_trainer_api.models.trainer_v1alpha1_training_runtime import TrainerV1alpha1TrainingRuntime

_KUBERNETES = "1.35"
_MODELS = {
    "JobSet": JobsetV1alpha2JobSet,
    "TrainJob": TrainerV1alpha1TrainJob,
    "TrainingRuntime": TrainerV1alpha1TrainingRuntime,
}


def check_of_kubernetes(document):
    """Raise where Kubernetes' own schema has no such object: unknown fields too."""
    kubernetes_validate.validate(document, _KUBERNETES, strict=True)


def check_pod(template):
    """Raise where the template of a pod is none."""
    check_of_kubernetes({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": template["spec"]})


def check_of_operator(document):
    """Raise where a JobSet, TrainJob or TrainingRuntime has wrong types, or fields that the model does not have."""
    model = _MODELS[document["kind"]].from_dict(document)
    assert model.to_dict() == document  # a model leaves out the fields that it does not know


def check_tf_job(document):
    """Raise where a TFJob has fields that its model does not have, or values of other types."""
    _check("KubeflowOrgV1TFJob", document, "tf_job")


def _check(name: str, value: dict[str, Any], *where: str):
    types, names = _fields(name)
    for key, part in value.items():
        kind = types[names[key]]
        _check_value(kind, part, *where, key)


def _check_value(kind: str, value: Any, *where: str):
    if kind.startswith("dict(str, "):
        for key, part in value.items():
            _check_value(kind.removeprefix("dict(str, ").removesuffix(")"), part, *where, key)
    elif kind.startswith("KubeflowOrg"):
        _check(kind, value, *where)
    elif kind in ("str", "int", "bool"):
        assert type(value).__name__ == kind, where


def _fields(name: str):
    """Return name in Python → type, and name in JSON → name in Python, of a class.

    The package's classes can't be imported without a client of Kubernetes. So they are read.
    """
    (source,) = [one for one in files("kubeflow-training") if _class_name(one.stem) == name.lower()]
    body = ast.parse(source.read_text()).body
    (definition,) = [one for one in body if isinstance(one, ast.ClassDef)]
    tables = {one.targets[0].id: ast.literal_eval(one.value) for one in definition.body if isinstance(one, ast.Assign)}
    return tables["openapi_types"], {json: python for python, json in tables["attribute_map"].items()}


def _class_name(file: str) -> str:
    return file.replace("_", "")
