"""Files of tensors with a header (safetensors), each of a format that names itself. No pickle is ever loaded."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from metreg.checks import MetregError
from metreg.data.whole import as_usual


def write_tensors(path: Path, tensors: dict[str, Tensor], *, form: str, header: dict[str, str]) -> None:
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(plain, path, metadata={"format": form, **header})
    as_usual(path)


def read_tensors(path: Path, *, form: str, role: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and header of a file of the format `form`; anything else is refused in the name of its `role`."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise MetregError(f"{role}: no such file: {path}")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise MetregError(f"{role}: damaged, or not a {role} file ({error}): {path}") from None
    if header.get("format") != form:
        raise MetregError(f"{role}: wanted a file of format {form}, got {header.get('format')}: {path}")
    return tensors, header
