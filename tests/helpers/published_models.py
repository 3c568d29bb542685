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
    """Raise if a document does not fit Kubernetes' own schema, or has unknown fields."""
    kubernetes_validate.validate(document, _KUBERNETES, strict=True)


def check_pod(template):
    """Raise if the template of a pod is not a valid one."""
    check_of_kubernetes({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": template["spec"]})


def check_of_operator(document):
    """Raise if a JobSet, TrainJob or TrainingRuntime has wrong types, or fields that the model does not have."""
    home, name = _MODELS[document["kind"]].split(".")
    # Imported here, because it takes a second, which each process of pytest would need while it collects the tests.
    model = getattr(importlib.import_module(f"kubeflow_trainer_api.models.{home}"), name).from_dict(document)
    assert model.to_dict() == document  # a model leaves out the fields that it does not know
