"""Turn pydantic's errors into sentences that name the key, the value, and the nearest valid key."""

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from raydix.runtime.config.nearest import nearest
from raydix.runtime.config.storage_plugins import installed_plugins, loadable_plugins
from raydix.runtime.config.store_section import StoreSection
from raydix.runtime.config.values import shortened

Model = type[BaseModel]


def describe(error: ValidationError, root: Model) -> str:
    """One sentence or two for each thing that is wrong, in the order of the configuration."""
    return " ".join(_describe_one(dict(item), root) for item in error.errors(include_url=False))


def all_keys(root: Model, prefix: str = "") -> Iterator[str]:
    """Every valid key as a dotted path, sections among them."""
    for name, field in root.model_fields.items():
        path = f"{prefix}{name}"
        yield path
        for child in _models_in(field.annotation):
            yield from all_keys(child, f"{path}.")


def _describe_one(item: dict[str, Any], root: Model) -> str:
    key, siblings = _locate(item["loc"], root)
    value = item.get("input")
    message = str(item["msg"])

    match item["type"]:
        case "extra_forbidden":
            others = _backends_that_know(item["loc"], root)
            if others:
                return (
                    f"{key} is a key of the backends {', '.join(others)}, not of "
                    f"{item['loc'][-2]}. Leave it out, also in a file under --set."
                )
            return f"{key} is not a known key. {_suggest(key, siblings, root)}"
        case "missing":
            return f"{key} is missing and has no default.{_how_to_name_a_model(key)}"
        case "value_error":
            return message.removeprefix("Value error, ")
        case "union_tag_invalid":
            return _refuse_tag(f"{key}.backend", item["ctx"]["tag"], _tags_at(item["loc"], root))
        case "union_tag_not_found":
            expected = _expected_tags(_tags_at(item["loc"], root))
            return f"{key}.backend is missing; expected {expected}."
        case "model_type" | "model_attributes_type":
            advice = f" Set {key}.path to it." if key == "model" and isinstance(value, str) else ""
            return f"{key} is {shortened(value)}; expected a section of keys.{advice}"

    return f"{key} is {shortened(value)}; {message.replace('Input should be', 'expected')}."


def _backends_that_know(loc: tuple[int | str, ...], root: Model) -> list[str]:
    """The backends that know a key which its section's backend does not."""
    *parents, key = map(str, loc)
    candidates, alternatives = [root], list[Model]()
    for part in parents:
        chosen = [model for model in candidates if part in _tags(model)]
        alternatives = candidates if chosen else []
        candidates = chosen or _children(candidates, part)
    return [tag for model in alternatives if key in model.model_fields for tag in _tags(model)]


def _refuse_tag(key: str, tag: str, tags: list[str]) -> str:
    near = nearest(tag, [*tags, *installed_plugins()])
    advice = f"Did you mean {near!r}?" if near else "Is the package installed that brings it?"
    return f"{key} is {tag!r}; expected {_expected_tags(tags)}. {advice}"


def _expected_tags(tags: list[str]) -> str:
    plugins = installed_plugins()
    own = ", ".join(repr(tag) for tag in tags if tag not in plugins)
    return f"{own}, or the name of an installed plugin ({', '.join(plugins) or 'there is none'})"


def _how_to_name_a_model(missing: str) -> str:
    """Whoever gave no source at all reads this."""
    if missing not in ("model", "model.path"):
        return ""
    return " Give a YAML file, a checkpoint folder or a name on the Hub, or set model.path."


def _suggest(key: str, siblings: list[str], root: Model) -> str:
    """Name the nearest key beside the unknown one, else the nearest anywhere."""
    parent, _, leaf = key.rpartition(".")
    near = nearest(leaf, siblings)
    if near:
        return f"Did you mean {parent}.{near}?" if parent else f"Did you mean {near}?"
    by_leaf: dict[str, str] = {}
    for path in all_keys(root):
        by_leaf.setdefault(path.rpartition(".")[2], path)
    near = nearest(leaf, by_leaf)
    if near:
        return f"Did you mean {by_leaf[near]}?"
    return f"Valid keys here: {', '.join(siblings)}."


def _locate(loc: tuple[int | str, ...], root: Model) -> tuple[str, list[str]]:
    """The dotted key of an error's location, and the valid keys beside it.

    pydantic's location also names the member of a union by its tag, which is no key.
    """
    parts: list[str] = []
    siblings = list(root.model_fields)
    candidates: list[Model] = [root]
    for part in map(str, loc):
        tagged = [model for model in candidates if len(candidates) > 1 and part in _tags(model)]
        if tagged:
            candidates = tagged
            continue

        parts.append(part)
        siblings = [name for model in candidates for name in model.model_fields]
        candidates = _children(candidates, part)
    return ".".join(parts), siblings


def _tags_at(loc: tuple[int | str, ...], root: Model) -> list[str]:
    """The tags of the union at a location; pydantic's error of a missing tag does not say them."""
    candidates: list[Model] = [root]
    for part in map(str, loc):
        candidates = _children(candidates, part)
    return [tag for model in candidates for tag in _tags(model)]


def _children(models: list[Model], key: str) -> list[Model]:
    annotations = [
        model.model_fields[key].annotation for model in models if key in model.model_fields
    ]
    return [child for annotation in annotations for child in _models_in(annotation)]


def _tags(model: Model) -> tuple[Any, ...]:
    """The values of a model's `backend` key, by which a union of models is told apart."""
    field = model.model_fields.get("backend")
    return get_args(field.annotation) if field and get_origin(field.annotation) is Literal else ()


def _models_in(annotation: Any) -> list[Model]:
    """The models that an annotation admits."""
    if annotation is StoreSection:
        return [plugin.section for plugin in loadable_plugins()]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    origin = get_origin(annotation)
    if origin is Annotated:
        return _models_in(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [model for arg in get_args(annotation) for model in _models_in(arg)]
    return []
