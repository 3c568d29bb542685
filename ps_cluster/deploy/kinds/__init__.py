"""The kinds of workloads, one file each."""
