"""`python -m ckptstore`: the command line, for an environment whose scripts are not on the path."""

from ckptstore.cli.main import main

if __name__ == "__main__":
    main()
