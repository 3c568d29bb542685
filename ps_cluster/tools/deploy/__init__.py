"""Write what schedulers read, manifests for Kubernetes and a script for Slurm: each task is a `ps-cluster task`."""
