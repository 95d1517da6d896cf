"""`python -m ckptstore`: the command line, where its script is not on the path."""

from ckptstore.cli.main import main

if __name__ == "__main__":
    main()
