"""From the fields that a message has to a `faust.Record`, a quarter of the time of its constructor.

A plain record is what most are: fields that are taken as they come (no coercion, no validation, no
other names, no tags), the generated `__init__`, no `__post_init__`. It is made without its
constructor and equals what `from_data` makes, extra fields and defaults included. All others go
through `from_data`, and so does a message that lacks a field or names another model: Faust's own
error, or its own choice.

Faust is not imported here: whoever has a record has imported it.
"""

from collections.abc import Callable
from typing import Any, Final

BLESSED: Final = "__faust"
FIELDS_MODULE: Final = "faust.models.fields"
"""Whose descriptors hand a value on as it is, unless they are told to coerce it."""
NOT_PLAIN: Final = (
    "coerce", "coercions", "validation", "polymorphic_fields", "allow_blessed_key", "isodates",
    "decimals",
)  # fmt: skip


def is_model(kind: Any) -> bool:
    """A class that Faust would call a model."""
    return isinstance(kind, type) and hasattr(kind, "__is_model__")


def record_of(model: Any) -> Callable[[Any], Any]:
    """The function from decoded fields to an instance."""

    def from_data(payload: Any) -> Any:
        return model.from_data(payload, preferred_type=model)

    return _plain_record(model, from_data) if is_plain(model) else from_data


def is_plain(model: Any) -> bool:
    """Return whether a record takes its fields as they come."""
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
    options, new = model._options, object.__new__  # noqa: SLF001  # what Faust offers no other way
    template = {name: options.defaults.get(name) for name in options.fieldpos.values()}
    names = frozenset(template)
    required = names - options.optionalset
    defaults = [(name, value) for name, value in template.items() if value is not None]
    blessed = {"ns": options.namespace}
    lazy = any(descriptor.lazy_coercion for descriptor in options.descriptors.values())

    def plain(payload: Any) -> Any:
        """The decoded dict itself becomes the record's."""
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
