"""Run `ps-cluster …` as `python -m ps_cluster …`."""

from ps_cluster.cli.main import main

if __name__ == "__main__":
    main()
