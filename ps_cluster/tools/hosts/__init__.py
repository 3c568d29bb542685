"""Several machines on one: hosts with addresses, names, mounts and links of their own."""
