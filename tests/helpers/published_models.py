"""Check manifests against the models that the projects publish as Python packages."""

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
