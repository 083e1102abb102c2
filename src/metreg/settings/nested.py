"""Settings as nested mappings, before they are checked: from TOML files and `key=value` strings."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metreg.errors import MetregError


def read_toml(path: Path) -> dict[str, Any]:
    """What a file says."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MetregError(f"config: cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise MetregError(f"config: {path} is not a TOML file: {error}") from None


def split_change(change: str) -> tuple[str, Any]:
    """The dotted key and the value of `key=value`, a value of TOML or plain text."""
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise MetregError(f"--set: wanted key=value, got '{change}'; e.g. --set solve.regularity=10")
    try:
        value = tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    return key.strip(), value


def nest(key: str, value: Any) -> dict[str, Any]:
    """A mapping with one value, under a dotted key."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """What `over` says, and `base` where it says nothing, at every depth."""
    both = {
        k: merge(base[k], v) if isinstance(v, Mapping) and isinstance(base.get(k), Mapping) else v for k, v in over.items()
    }
    return {**base, **both}
