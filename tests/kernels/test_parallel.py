"""Work that is shared among threads is done once, all of it, whoever asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import get_ident

import pytest
import torch

from metreg.kernels.cpu.parallel import LITTLE, parallel_for


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)


@pytest.mark.parametrize("parts", [0, 1, 2, 3, 7, 100])
@pytest.mark.parametrize("turns", [1, 4])
@pytest.mark.parametrize("numbers", [LITTLE, LITTLE + 1])
def test_every_part_is_done_once(parts: int, turns: int, numbers: int) -> None:
    done = [0] * parts

    def kernel(count: list[int], first: int, last: int) -> None:
        for i in range(first, last):
            count[i] += 1

    parallel_for(kernel, parts, numbers, done, turns=turns)
    assert done == [1] * parts


def test_little_work_stays_in_its_thread() -> None:
    seen = set()
    parallel_for(lambda first, last: seen.add(get_ident()), 50, LITTLE)
    assert seen == {get_ident()}


def test_what_goes_wrong_in_a_thread_is_told() -> None:
    def kernel(first: int, last: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        parallel_for(kernel, 50, LITTLE + 1)


def test_many_may_ask_at_once() -> None:
    def ask(number: int) -> int:
        found: list[int] = []
        parallel_for(lambda first, last: found.extend(range(first, last)), 20, LITTLE + 1)
        return sum(found)

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(ask, range(100))) == {190}


@pytest.mark.parametrize(
    ("given", "found"), [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")]
)
def test_torch_leaves_the_cores_unless_told_otherwise(given: dict[str, str], found: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    command = [sys.executable, "-c", "import os, metreg; metreg.own_process(); print(os.environ.get('GOMP_SPINCOUNT'))"]
    said = subprocess.run(command, env=environment | given, capture_output=True, encoding="utf-8", check=True)
    assert said.stdout.strip() == found
