"""`python -m metreg` is `metreg`."""

from metreg.cli import main

main()
