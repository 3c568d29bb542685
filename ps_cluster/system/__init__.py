"""Start, fork, isolate, limit, watch and end processes of the operating system. Nothing here knows of training."""
