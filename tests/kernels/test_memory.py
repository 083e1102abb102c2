"""Freed memory is kept while somebody works, and given back when the last one is done."""

from __future__ import annotations

import pytest
import torch

from metreg.kernels import memory
from metreg.kernels.memory import KEEP, USUAL, kept_memory


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "is_own", lambda: True)


class Library:
    def __init__(self) -> None:
        self.told: list[tuple[int, int] | str] = []

    def mallopt(self, name: int, value: int) -> None:
        self.told.append((name, value))

    def malloc_trim(self, pad: int) -> None:
        self.told.append("trimmed")


def test_the_first_one_in_begins_it_and_the_last_one_out_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setattr(memory, "_glibc", lambda: library)
    with kept_memory():
        with kept_memory():
            assert library.told == list(KEEP.items())
        assert library.told == list(KEEP.items())
    assert library.told == [*KEEP.items(), *USUAL.items(), "trimmed"]


def test_in_a_process_of_somebody_else_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setattr(memory, "_glibc", lambda: library)
    monkeypatch.setattr(memory, "is_own", lambda: False)
    with kept_memory():
        assert library.told == []


def test_without_glibc_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_glibc", lambda: None)
    with kept_memory():
        pass


@pytest.mark.skipif(memory._glibc() is None, reason="no glibc")
def test_pages_come_back_without_being_asked_for_again() -> None:
    import resource

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(5):
            torch.ones(2**24)  # 64 MiB
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    usual = faults()
    with kept_memory():
        assert min(faults() for _ in range(10)) < 0.05 * usual
