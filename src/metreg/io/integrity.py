"""Damage that a file shows and its reader passes over: checksums that do not fit, bytes that are missing or left over."""

from __future__ import annotations

import gzip
import hashlib
import re
import struct
import zlib
from collections.abc import Sequence
from io import BufferedIOBase, BytesIO
from pathlib import Path

import numpy as np

GZIP = b"\x1f\x8b"
PNG = b"\x89PNG\r\n\x1a\n"
JPEG = b"\xff\xd8\xff"
BMP = b"BM"
TIFF = {b"II*\0": "<", b"MM\0*": ">"}
"""By how a TIFF file begins, the order of its bytes."""
TIFF_PIXELS = {273: "offsets", 279: "sizes", 324: "offsets", 325: "sizes"}
"""Tags of strips and of tiles: where they begin, and how many bytes they have."""
TIFF_NUMBERS = {3: "H", 4: "I"}
"""Types of numbers that these tags may have: 2 or 4 bytes."""
SEAL = b"metreg blake2b "
"""Before the checksum in the block that precedes an HDF5 file of ours."""
SEAL_BYTES = 512
"""Length of that block; HDF5 allows for 512 and its doubles."""
HEADER_BYTES = {".gipl": 256, ".mrc": 1024, ".rec": 1024}
"""Length of what precedes the pixels, which are not compressed, in formats whose readers make up those that are missing."""


class DamagedFileError(ValueError):
    """What is wrong with a file, without its name."""


def unpack(packed: bytes) -> bytes:
    """All that gzip packed. Readers take as many bytes as they need and never see the checksum at the end; this does."""
    return gzip.GzipFile(fileobj=BytesIO(packed)).read()


def inflate(packed: bytes) -> bytes:
    """All of one zlib or gzip stream, its checksum compared."""
    stream = zlib.decompressobj(zlib.MAX_WBITS + 32)
    content = stream.decompress(packed)
    if not stream.eof:
        raise DamagedFileError("its compressed data end too early")
    check_length(len(packed) - len(stream.unused_data), len(packed))
    return content


def check_length(wanted: int, got: int, *, more: bool = False) -> None:
    """Refuse another number of bytes than the header announces; `more` of them may be allowed."""
    if got < wanted:
        raise DamagedFileError(f"its header announces {wanted} bytes, {wanted - got} are missing")
    if got > wanted and not more:
        raise DamagedFileError(f"its header announces {wanted} bytes, {got - wanted} more follow")


def check_pixels(path: Path, count: int) -> None:
    """Refuse a file whose `count` bytes of pixels, as its header announces them, are not all there and as they were.

    It is about what ITK's readers let through. NIfTI is read by nibabel, and DICOM's reader misses nothing that is there.
    """
    raw = path.read_bytes()
    suffix = path.suffix.lower()
    if raw.startswith(b"NRRD"):
        _check_nrrd(path, raw, count)
    elif suffix in (".mha", ".mhd"):
        _check_metaimage(path, raw, count)
    elif raw.startswith(PNG):
        _check_png(raw)
    elif raw.startswith(JPEG):
        if raw.rfind(b"\xff\xd9") < raw.rfind(b"\xff\xda"):  # the end of the image, and the start of its last scan
            raise DamagedFileError("it ends too early")
    elif raw.startswith(BMP):
        _check_bmp(raw)
    elif raw[:4] in TIFF:
        _check_tiff(raw)
    elif raw.startswith(GZIP):
        _check_plain(Path(path.stem).suffix.lower(), unpack(raw), count)
    else:
        _check_plain(suffix, raw, count)


def _check_plain(suffix: str, raw: bytes, count: int) -> None:
    if suffix in HEADER_BYTES:
        check_length(HEADER_BYTES[suffix] + count, len(raw), more=True)
    elif suffix == ".vtk" and b"\nBINARY" in raw[:1000]:
        start = re.search(rb"^(?:COLOR_SCALARS|SCALARS|VECTORS|TENSORS) .*\n(?:LOOKUP_TABLE .*\n)?", raw, re.MULTILINE)
        check_length(count, len(raw) - (start.end() if start else 0), more=True)


def _check_nrrd(path: Path, raw: bytes, count: int) -> None:
    """The header ends with an empty line, and pixels follow, or it names the files that hold them."""
    blank = re.search(rb"\r?\n\r?\n", raw)
    header = (raw[: blank.start()] if blank else raw).decode("latin-1").splitlines()
    fields: dict[str, str] = {}
    following: list[str] = []
    for line in header:
        key, colon, value = line.partition(":")
        if fields.get("datafile", "").upper().startswith("LIST"):  # it comes last
            following.append(line)
        elif colon and not line.startswith("#") and not value.startswith("="):
            fields[key.replace(" ", "").lower()] = value.strip()
    if "datafile" in fields:
        parts = _read_parts(path, fields["datafile"], following)
    else:
        parts = [raw[blank.end() :] if blank else b""]
    encoding = fields.get("encoding", "raw").lower()
    if encoding not in ("raw", "gzip", "gz"):
        return  # the reader of bzip2 compares checksums; text announces no length
    lines = int(fields.get("lineskip", 0))
    parts = [part.split(b"\n", lines)[-1] for part in parts]
    if encoding != "raw":
        parts = [unpack(part) for part in parts]
    _check_parts(parts, count, header_size=int(fields.get("byteskip", 0)))


def _check_metaimage(path: Path, raw: bytes, count: int) -> None:
    """`ElementDataFile` is the last field of the header; it names the files with the pixels, or they follow it."""
    last = re.search(rb"^ElementDataFile\s*[=:].*$\n?", raw, re.MULTILINE)
    if last is None:
        return  # its reader says so
    fields: dict[str, str] = {}
    for line in raw[: last.end()].decode("latin-1").splitlines():
        key, _, value = line.replace(":", "=", 1).partition("=")
        fields[key.strip()] = value.strip()
    if fields["ElementDataFile"].upper() == "LOCAL":
        parts = [raw[last.end() :]]
    else:
        parts = _read_parts(path, fields["ElementDataFile"], raw[last.end() :].decode("latin-1").splitlines())
    if fields.get("CompressedData", "").upper().startswith("T"):
        _check_parts([inflate(part) for part in parts], count)
    elif fields.get("BinaryData", "").upper().startswith("T"):  # else it is text, which announces no length
        _check_parts(parts, count, header_size=int(fields.get("HeaderSize", 0)))


def _read_parts(header: Path, named: str, following: Sequence[str]) -> list[bytes]:
    """The files with the pixels: one, or a LIST in the lines that follow, or a pattern with its first and last number."""
    words = named.split()
    if words and words[0].upper() == "LIST":
        names = [line.strip() for line in following if line.strip()]
    elif len(words) >= 4 and "%" in words[0]:
        first, last, step = (int(word) for word in words[1:4])
        names = [words[0] % number for number in range(first, last + 1, step)]
    else:
        names = [named]
    return [(header.parent / name).read_bytes() for name in names]


def _check_parts(parts: list[bytes], count: int, header_size: int = 0) -> None:
    """All parts together hold the pixels, each after a header of its own; one of size -1 is as long as it likes."""
    got = sum(len(part) for part in parts)
    check_length(count + max(header_size, 0) * len(parts), got, more=header_size < 0)


def _check_png(raw: bytes) -> None:
    """Every chunk has a length, a kind and a checksum; the last one is IEND."""
    start = len(PNG)
    kind = b""
    while kind != b"IEND":
        if start + 12 > len(raw):
            raise DamagedFileError("it ends too early")
        size, kind = struct.unpack(">I4s", raw[start : start + 8])
        end = start + 12 + size
        if end > len(raw):
            raise DamagedFileError("it ends too early")
        if zlib.crc32(raw[start + 4 : end - 4]) != struct.unpack(">I", raw[end - 4 : end])[0]:
            raise DamagedFileError("a checksum does not fit")
        start = end
    check_length(start, len(raw))


def _check_bmp(raw: bytes) -> None:
    """Rows of pixels are as long as a multiple of four bytes."""
    if len(raw) < 34:
        raise DamagedFileError("it ends too early")
    start, header, width, height, _, bits, packing = struct.unpack("<IIiiHHI", raw[10:34])
    if header >= 40 and packing in (0, 3):  # a header with these fields, and pixels that are not compressed
        check_length(start + (width * bits + 31) // 32 * 4 * abs(height), len(raw), more=True)


def check_matlab(raw: bytes) -> None:
    """Refuse a MATLAB file of version 4 that does not end with a matrix: five numbers, a name, and its values."""
    start = 0
    while True:
        if len(raw) < start + 20:
            raise DamagedFileError("it ends too early")
        order = "<" if raw[start + 3] == 0 else ">"  # the first number is small
        kind, rows, columns, imaginary, name = struct.unpack(f"{order}5i", raw[start : start + 20])
        if min(kind, rows, columns, name) < 0 or kind // 10 % 10 > 5:
            raise DamagedFileError("its header makes no sense")
        size = (8, 4, 4, 2, 2, 1)[kind // 10 % 10]
        start += 20 + name + rows * columns * size * (2 if imaginary else 1)
        if start == len(raw):
            return


def check_itk_text(text: str, counts: Sequence[tuple[int, int]]) -> None:
    """Refuse ITK's text of transforms unless it has as many parameters and fixed parameters, by transform, as these take.

    Its reader leaves a transform as it is where lines are missing, and takes the first of several.
    """
    if not text.endswith("\n"):
        raise DamagedFileError("its last line has no end, so a number may be cut short; if it is not, end the line")
    found: list[list[int]] = []
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "Transform" and not value.strip().startswith("Composite"):
            found.append([-1, -1])
        elif key.strip() == "Parameters" and found:
            found[-1][0] = len(value.split())
        elif key.strip() == "FixedParameters" and found:
            found[-1][1] = len(value.split())
    if sorted(found) != sorted(list(pair) for pair in counts):
        raise DamagedFileError("parameters are missing or left over")


def _check_tiff(raw: bytes) -> None:
    """Follow the chain of pages: its reader stops at one that is missing, and gives a smaller volume."""
    order = TIFF[raw[:4]]
    (page,) = _unpack_at(raw, f"{order}I", 4)
    seen = set()
    while page:
        if page in seen:
            raise DamagedFileError("its pages form a circle")
        seen.add(page)
        (count,) = _unpack_at(raw, f"{order}H", page)
        _check_tiff_page(raw, order, page + 2, count)
        (page,) = _unpack_at(raw, f"{order}I", page + 2 + 12 * count)


def _check_tiff_page(raw: bytes, order: str, start: int, count: int) -> None:
    """Refuse a page with a strip or tile that does not lie in the file."""
    found: dict[str, tuple[int, ...]] = {}
    for entry in range(start, start + 12 * count, 12):
        tag, kind, length = _unpack_at(raw, f"{order}HHI", entry)
        if tag not in TIFF_PIXELS or kind not in TIFF_NUMBERS:
            continue
        form = f"{order}{length}{TIFF_NUMBERS[kind]}"
        place = entry + 8
        if struct.calcsize(form) > 4:  # what does not fit into the entry stands elsewhere
            (place,) = _unpack_at(raw, f"{order}I", place)
        found[TIFF_PIXELS[tag]] = _unpack_at(raw, form, place)
    for offset, size in zip(found.get("offsets", ()), found.get("sizes", ()), strict=False):
        if offset + size > len(raw):
            raise DamagedFileError("it ends too early")


def _unpack_at(raw: bytes, form: str, place: int) -> tuple[int, ...]:
    if place + struct.calcsize(form) > len(raw):
        raise DamagedFileError("it ends too early")
    return struct.unpack_from(form, raw, place)


def check_xfm(text: str, count: int) -> None:
    """Refuse an MNI text of another number of transforms, or with matrices whose reader would give the identity instead."""
    if len(re.findall(r"^\s*Transform_Type\s*=", text, re.MULTILINE)) != count:
        raise DamagedFileError("transforms are missing, or it holds several that are not read as one")
    for found in re.findall(r"^\s*Linear_Transform\s*=([^;]*)", text, re.MULTILINE):
        try:
            matrix = np.array([float(word) for word in found.split()]).reshape(3, 4)
        except ValueError:
            raise DamagedFileError("a matrix has not its 12 numbers") from None
        if not np.isfinite(matrix).all() or np.linalg.matrix_rank(matrix[:, :3]) < 3:
            raise DamagedFileError("its matrix is not finite, or singular")


def seal_hdf5(path: Path) -> None:
    """Write a checksum of an HDF5 file into the block before it, which HDF5 leaves to its users (`userblock_size`)."""
    with path.open("r+b") as file:
        digest = _hash_behind_seal(file)
        file.seek(0)
        file.write(SEAL + digest)


def _hash_behind_seal(file: BufferedIOBase) -> bytes:
    file.seek(SEAL_BYTES)
    return hashlib.blake2b(file.read(), digest_size=16).hexdigest().encode()


def check_hdf5(path: Path) -> None:
    """Refuse an HDF5 file whose seal does not fit, or without one that is not as long as its superblock says.

    The libraries that read HDF5 may crash on damaged bytes, and do not see bytes that are left over.
    """
    with path.open("rb") as file:
        head = file.read(64)
        if head.startswith(SEAL):
            if head[len(SEAL) :].rstrip(b"\0") != _hash_behind_seal(file):
                raise DamagedFileError("its checksum is wrong")
            return
    if head[:8] != b"\x89HDF\r\n\x1a\n" or len(head) < 64:
        return  # its reader says so
    place = {0: 40, 1: 44}.get(head[8], 28)  # of the end's address, by version
    if head[13 if head[8] < 2 else 9] != 8:
        return  # addresses are hardly ever of another size than 8 bytes
    (end,) = struct.unpack("<Q", head[place : place + 8])
    check_length(end, path.stat().st_size)
