"""Whether this process is metreg's own. Only then may metreg change for good what holds for all of it."""

from __future__ import annotations

import os
import shlex
import sys

_OWN = False


def own_process() -> None:
    """Let metreg have the whole process, as the command line does. To be called before torch is imported.

    Registrations then take less time on CPUs: memory that is freed stays with the process, denormal numbers count as zero
    in all of it, threads are kept, and those of torch do not spin while metreg's work. A program that does more than
    register may want none of this; without this call metreg leaves the process as it found it.
    """
    global _OWN
    _OWN = True
    # torch's threads wait for their next work a few microseconds at full speed instead of milliseconds: meanwhile others
    # have some (kernels.cpu.parallel). This is read when torch is first imported; what the user has set stays
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")


def is_own() -> bool:
    """Whether `own_process` was called."""
    return _OWN


def command_line() -> str:
    """The command that this process runs, for reports; nothing in a program that is not metreg's."""
    return shlex.join(sys.argv) if _OWN else ""
