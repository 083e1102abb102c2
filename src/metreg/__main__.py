"""`python -m metreg` is `metreg`."""

from metreg.cli import main

if __name__ == "__main__":
    main()
