"""The command line of a checkout: `python cli.py run --workers 3 --ps 1`; installed, it is `ps-cluster run …`."""

from ps_cluster.cli.main import main

if __name__ == "__main__":
    main()
