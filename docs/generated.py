"""Pages of the reference that are made from the program itself, so that they cannot be out of date. Markdown."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

BAR = r"\|"
"""A bar inside a table."""


def verbs_page() -> str:
    """Every verb with what its `--help` says."""
    return "\n".join(_verb(name, command) for name, command in verbs())


def verbs() -> Iterator[tuple[str, Any]]:
    """The name of every verb, and its command; a group's are `group verb`."""
    import typer.main

    from metreg.cli.main import app

    yield from _commands(typer.main.get_command(app))


def _commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix}{name} ")
        else:
            yield prefix + name, command


def _verb(name: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    needed = [f"{p.opts[-1]} {(p.name or '').upper()}" for p in options if p.required]
    usage = " ".join(["metreg", name, *[p.metavar or p.name.upper() for p in arguments], *needed, "[OPTIONS]"])
    paragraphs = [" ".join(part.split()) for part in (command.help or "").split("\n\n")]
    lines = [f"## {name}", "", "```text", usage, "```", ""]
    for paragraph in paragraphs:
        example = paragraph.removeprefix("Example: ")
        lines += ["```bash", example, "```", ""] if example != paragraph else [_escape(paragraph), ""]
    for title, params in (("argument", arguments), ("option", options)):
        rows = [_row(p, title) for p in params]
        lines += [f"| {title} | what | default |", "|---|---|---|", *rows, ""] if rows else []
    return "\n".join(lines)


def _row(param: Any, kind: str) -> str:
    if kind == "argument":
        name = f"`{param.metavar or param.name.upper()}`"
    else:
        taken = param.metavar or ("" if param.is_flag else (param.name or "").upper())
        name = " / ".join(f"`{opt}`" for opt in (*param.opts, *param.secondary_opts)) + (f" `{taken}`" if taken else "")
    default = "needed" if param.required else ""
    if isinstance(param.show_default, str):
        default = param.show_default
    elif not param.required and param.default not in (None, False):
        default = f"`{param.default}`"
    return f"| {name.replace('|', BAR)} | {_escape(param.help or '')} | {default} |"


def settings_page() -> str:
    """Every setting with its default, what it may be and what it does; then what the presets change."""
    from metreg.settings.model import PRESETS, Settings

    lines = []
    for prefix, model in _models(Settings):
        docs, schema = _attribute_docs(model), model.model_json_schema()
        lines += [f"## `{prefix}`" if prefix else "## At the top", "", _first_line(model), ""]
        lines += ["| setting | default | may be | what |", "|---|---|---|---|"]
        for name, field in model.model_fields.items():
            if _is_model(field.annotation):
                continue
            default = "none" if field.default is None else f"`{json.dumps(field.default)}`"
            key = f"{prefix}.{name}" if prefix else name
            lines.append(f"| `{key}` | {default} | {_wanted(schema['properties'][name])} | {_escape(docs.get(name, ''))} |")
        lines.append("")
    lines += ["## Presets", "", "What a preset changes; all else is as above.", ""]
    names = [name for name, values in PRESETS.items() if values]
    flat = {name: dict(_flat(PRESETS[name])) for name in names}
    lines += [f"| setting | {' | '.join(f'`{name}`' for name in names)} |", f"|---|{'---|' * len(names)}"]
    for key in dict.fromkeys(key for name in names for key in flat[name]):
        cells = [f"`{json.dumps(flat[name][key])}`" if key in flat[name] else "" for name in names]
        lines.append(f"| `{key}` | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def setting_names() -> list[str]:
    """Every dotted key."""
    from metreg.settings.model import Settings

    return [
        f"{prefix}.{name}" if prefix else name
        for prefix, model in _models(Settings)
        for name, field in model.model_fields.items()
        if not _is_model(field.annotation)
    ]


def _models(model: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    yield prefix, model
    for name, field in model.model_fields.items():
        if _is_model(field.annotation):
            yield from _models(field.annotation, f"{prefix}.{name}" if prefix else name)


def _is_model(annotation: Any) -> bool:
    return inspect.isclass(annotation) and hasattr(annotation, "model_fields")


def _first_line(model: Any) -> str:
    return _escape((inspect.getdoc(model) or "").split("\n")[0])


def _attribute_docs(model: Any) -> dict[str, str]:
    """The string that stands below an attribute."""
    body = ast.parse(inspect.getsource(model)).body[0].body  # type: ignore[attr-defined]
    return {
        before.target.id: " ".join(after.value.value.split())
        for before, after in pairwise(body)
        if isinstance(before, ast.AnnAssign)
        and isinstance(before.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
    }


def _wanted(schema: dict[str, Any]) -> str:
    """What a value may be, in words."""
    if "anyOf" in schema:
        return " or ".join(_wanted(part) for part in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema["type"] == "array":
        if "prefixItems" in schema:
            return f"{len(schema['prefixItems'])} times: {_wanted(schema['prefixItems'][0])}"
        return f"a list, each: {_wanted(schema['items'])}"
    words = {"number": "number", "integer": "whole number", "string": "text", "boolean": "`true`, `false`", "null": "none"}
    signs = {"exclusiveMinimum": "above", "minimum": "from", "exclusiveMaximum": "below", "maximum": "to"}
    limits = [f"{sign} {_number(schema[key])}" for key, sign in signs.items() if key in schema]
    return " ".join([words[schema["type"]], *limits])


def _number(value: float) -> str:
    return "2^63" if value == 2**63 else f"{value:g}"


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _escape(text: str) -> str:
    return text.replace("|", BAR).replace("<", r"\<").replace("*", r"\*").replace("_", r"\_") if "`" not in text else text
