"""Construction of a `faust.Record` from decoded fields, in a quarter of its constructor's time.

Most records are plain: fields are taken unchanged (no coercion, no validation, no other names, no
tags), the `__init__` is generated, and there is no `__post_init__`. A plain record is made without
its constructor and equals the result of `from_data`, extra fields and defaults included. All other
records go through `from_data`, and so does a message that lacks a field or names another model:
Faust then raises its own error, or makes its own choice.

Faust is not imported here: a module that has a record has imported Faust already.
"""

from collections.abc import Callable
from typing import Any, Final

BLESSED: Final = "__faust"
FIELDS_MODULE: Final = "faust.models.fields"
"""Module of the descriptors that return a value unchanged, unless they are configured to coerce."""
NOT_PLAIN: Final = (
    "coerce", "coercions", "validation", "polymorphic_fields", "allow_blessed_key", "isodates",
    "decimals",
)  # fmt: skip


def is_model(kind: Any) -> bool:
    """Return whether a class is a model in the sense of Faust."""
    return isinstance(kind, type) and hasattr(kind, "__is_model__")


def record_of(model: Any) -> Callable[[Any], Any]:
    """Return the function from decoded fields to an instance."""

    def from_data(payload: Any) -> Any:
        return model.from_data(payload, preferred_type=model)

    return _plain_record(model, from_data) if is_plain(model) else from_data


def is_plain(model: Any) -> bool:
    """Return whether a record takes its fields unchanged."""
    options = getattr(model, "_options", None)
    if options is None or getattr(options, "descriptors", None) is None:
        return False
    generated = model.__init__ is getattr(model, "_model_init", None)
    if not generated or hasattr(model, "__post_init__"):
        return False
    if any(getattr(options, name) for name in NOT_PLAIN):
        return False
    return all(_is_plain_field(descriptor) for descriptor in options.descriptors.values())


def _is_plain_field(descriptor: Any) -> bool:
    converts = descriptor._to_python is not None and not descriptor.lazy_coercion  # noqa: SLF001
    return (
        type(descriptor).__module__ == FIELDS_MODULE
        and descriptor.field == descriptor.input_name
        and not (converts or descriptor.coerce or descriptor.tag)
    )


def _plain_record(model: Any, from_data: Callable[[Any], Any]) -> Callable[[Any], Any]:
    options = model._options  # noqa: SLF001  # Faust has no public way
    new = object.__new__
    template = {name: options.defaults.get(name) for name in options.fieldpos.values()}
    names = frozenset(template)
    required = names - options.optionalset
    defaults = [(name, value) for name, value in template.items() if value is not None]
    blessed = {"ns": options.namespace}
    lazy = any(descriptor.lazy_coercion for descriptor in options.descriptors.values())

    def plain(payload: Any) -> Any:
        """Make a record whose `__dict__` is the decoded dict itself."""
        if type(payload) is not dict:
            return from_data(payload)
        if BLESSED in payload:
            if payload[BLESSED] != blessed:
                return from_data(payload)
            del payload[BLESSED]
        if not payload.keys() >= names:
            if not payload.keys() >= required:
                return from_data(payload)
            payload = template | payload
        for name, default in defaults:
            if payload[name] is None:
                payload[name] = default
        if lazy:
            payload["__evaluated_fields__"] = set()
        record = new(model)
        record.__dict__ = payload
        return record

    return plain
