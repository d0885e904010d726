"""`python -m leakcore.cli`."""

from leakcore.cli import main

if __name__ == "__main__":
    main()
