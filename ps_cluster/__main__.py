"""`python -m ps_cluster …` is `ps-cluster …`, wherever this package was found."""

from ps_cluster.commands.main import main

if __name__ == "__main__":
    main()
