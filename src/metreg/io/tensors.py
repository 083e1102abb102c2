"""Files of tensors with a header (safetensors), each of a format that names itself. No pickle is ever loaded."""

from __future__ import annotations

import zlib
from pathlib import Path

import torch
from torch import Tensor

from metreg.errors import MetregError
from metreg.io.atomic import as_usual

CHECKSUM = "crc32"
"""The entry of the header with the checksum of all the rest; the format itself has none."""


def write_tensors(path: Path, tensors: dict[str, Tensor], *, form: str, header: dict[str, str]) -> None:
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {"format": form, **header}
    save_file(plain, path, metadata={**metadata, CHECKSUM: _checksum(plain, metadata)})
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
    checksum = header.pop(CHECKSUM, None)
    if checksum is not None and checksum != _checksum(tensors, header):  # files of version 0.1 have none
        raise MetregError(f"{role}: damaged, its checksum does not fit: {path}")
    return tensors, header


def _checksum(tensors: dict[str, Tensor], header: dict[str, str]) -> str:
    """Of names, values and header, in an order that does not depend on the file's."""
    crc = 0
    for name in sorted(header):
        crc = zlib.crc32(f"{name}={header[name]};".encode(), crc)
    for name in sorted(tensors):
        tensor = tensors[name]
        crc = zlib.crc32(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode(), crc)
        if tensor.numel():
            values = tensor.reshape(-1).view(torch.uint8).numpy()
            crc = zlib.crc32(values.data, crc)
    return f"{crc:08x}"
