"""Write files for schedulers: manifests for Kubernetes, or a script for Slurm. Each task runs `ps-cluster task`."""
