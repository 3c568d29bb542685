"""The forms of data that are read from a path, one file each. A new file is found without being named anywhere else."""
