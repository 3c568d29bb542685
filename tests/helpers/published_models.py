"""Check manifests against the models that the projects publish as Python packages."""

import importlib

import kubernetes_validate

_KUBERNETES = "1.35"
_MODELS = {
    "JobSet": "jobset_v1alpha2_job_set.JobsetV1alpha2JobSet",
    "TrainJob": "trainer_v1alpha1_train_job.TrainerV1alpha1TrainJob",
    "TrainingRuntime": "trainer_v1alpha1_training_runtime.TrainerV1alpha1TrainingRuntime",
}


def check_of_kubernetes(document):
    """Raise where Kubernetes' own schema has no such object: unknown fields too."""
    kubernetes_validate.validate(document, _KUBERNETES, strict=True)


def check_pod(template):
    """Raise where the template of a pod is none."""
    check_of_kubernetes({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": template["spec"]})


def check_of_operator(document):
    """Raise where a JobSet, TrainJob or TrainingRuntime has wrong types, or fields that the model does not have."""
    home, name = _MODELS[document["kind"]].split(".")
    # Imported here: it takes a second, which every process of pytest would need to collect the tests.
    model = getattr(importlib.import_module(f"kubeflow_trainer_api.models.{home}"), name).from_dict(document)
    assert model.to_dict() == document  # a model leaves out the fields that it does not know
