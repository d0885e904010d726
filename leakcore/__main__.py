"""`python -m leakcore`: the command line, where its script is not on the path."""

from leakcore.cli import main

if __name__ == "__main__":
    main(prog_name="leakcore")
