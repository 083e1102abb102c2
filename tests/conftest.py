"""What tests find: the image data where it is, and small images made here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch

HERE = Path(__file__).resolve().parent
DATA = Path(os.environ.get("METREG_DATA") or HERE.parents[1] / "shared" / "data")


THREADS = os.environ.get("METREG_TEST_THREADS", "1")
os.environ["OMP_NUM_THREADS"] = THREADS  # workers run side by side, and start others
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels for GPUs are tested in Triton's interpreter


def pytest_configure() -> None:
    torch.set_num_threads(int(THREADS))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("data") and not DATA.is_dir():
            item.add_marker(pytest.mark.skip(reason=f"no image data: set METREG_DATA (looked in {DATA})"))
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(autouse=True)
def _denormals() -> Iterator[None]:
    """Registrations flush them, which other tests must not feel."""
    yield
    torch.set_flush_denormal(False)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Kernels on CPUs are shared among so many threads, however little there is to do."""
    count: int = request.param
    monkeypatch.setattr("metreg.kernels.cpu.parallel.LITTLE", -1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    return count


@pytest.fixture(scope="session")
def data() -> Path:
    return DATA


def blob(points: np.ndarray) -> np.ndarray:
    """A smooth, lopsided picture of about 60 mm around the origin, defined at world points (P, D)."""
    dim = points.shape[1]
    centres = np.array([[0, 0, 0], [14, 5, -6], [-12, 9, 8], [4, -16, 10]])[:, :dim]
    widths, heights = (16.0, 6.0, 7.0, 6.0), (1.0, 0.8, -0.6, 0.7)
    waves = 1 + 0.15 * np.cos(points[:, 0] / 4) * np.cos(points[:, 1] / 5)
    terms = [h * np.exp(-((points - c) ** 2).sum(1) / 2 / w**2) for c, w, h in zip(centres, widths, heights, strict=True)]
    return 1000 * np.clip(sum(terms) * waves - 0.05, 0, None)


def bend(points: np.ndarray) -> np.ndarray:
    """A smooth, known deformation of the world around the origin."""
    far = np.exp(-(points**2).sum(1, keepdims=True) / 2 / 25**2)
    swing = np.zeros_like(points)
    swing[:, 0], swing[:, 1] = np.cos(points[:, 1] / 15), np.sin(points[:, 0] / 15)
    return points + 3 * swing * far


def bent_picture(shape: tuple[int, ...], affine: np.ndarray) -> np.ndarray:
    """The blob after that deformation."""
    from metreg.core.grid import world_points

    return blob(bend(world_points(shape, affine))).reshape(shape).astype(np.float32)


def picture(shape: tuple[int, ...], affine: np.ndarray, move: np.ndarray | None = None) -> np.ndarray:
    """The blob on a grid, after a homogeneous `move` of world points."""
    from metreg.core.grid import transform_points, world_points

    points = world_points(shape, affine)
    return blob(points if move is None else transform_points(move, points)).reshape(shape).astype(np.float32)


def centred(matrix: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The affine with these axes whose middle voxel is the origin."""
    dim = len(shape)
    affine = np.eye(dim + 1)
    affine[:dim, :dim] = matrix
    affine[:dim, dim] = -matrix @ (np.array(shape) - 1) / 2
    return affine


@pytest.fixture
def pair_files(tmp_path: Path) -> tuple[Path, Path]:
    """Two small 3-D NIfTI files of the same thing, one deformed a little."""
    shape = (24, 26, 22)
    affine = centred(np.diag([3.0, 3.0, 3.0]), shape)
    paths = tmp_path / "moving.nii.gz", tmp_path / "fixed.nii.gz"
    for path, values in zip(paths, (picture(shape, affine), bent_picture(shape, affine)), strict=True):
        nib.save(nib.Nifti1Image(values, affine), path)
    return paths
