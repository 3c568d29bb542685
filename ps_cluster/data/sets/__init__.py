"""The package's own data sets, one file each. A new file is found without being named anywhere else."""
