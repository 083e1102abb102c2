"""`python -m metreg` is `metreg`."""

from metreg.cli.main import main

if __name__ == "__main__":
    main()
