"""JSON schemas at random, of all keywords that say something of a value."""

from typing import Any

import hypothesis.strategies as st

TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
NAMES = st.sampled_from(["a", "b", "cd", "é", "x y", '"q'])
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 300), st.floats(-5, 5), st.text(max_size=4)
)
PATTERNS = (
    *("^a+$", "b", "^[0-9]{3}$", r"[a-c]+\d", "(x|y)?z", r'^"\w+"$', "a|b", r"^\s.$", "^a|b$"),
    *("[^a]", "^.{2,3}$", r"\/x", "é+", "^(?:ab)+$", r"[\w.-]+@x", r"^a\n", "x$|y", "(?!a)b"),
)
FORMATS = ("date", "time", "date-time", "email", "uuid", "ipv4", "ipv6", "uri", "hostname", "foo")


def _base() -> st.SearchStrategy[Any]:
    strings = {
        "minLength": st.integers(0, 4),
        "maxLength": st.integers(2, 8),
        "pattern": st.sampled_from(PATTERNS),
        "format": st.sampled_from(FORMATS),
    }
    numbers = {
        "minimum": st.one_of(st.integers(-30, 30), st.floats(-3, 3).map(lambda x: round(x, 2))),
        "maximum": st.one_of(st.integers(20, 500), st.floats(20, 50).map(lambda x: round(x, 2))),
        "exclusiveMinimum": st.integers(-30, 10),
        "exclusiveMaximum": st.integers(5, 90),
        "multipleOf": st.sampled_from([1, 2, 7, 0.5, 0.1]),
    }
    values = st.one_of(SCALARS, st.lists(SCALARS, max_size=2), st.dictionaries(NAMES, SCALARS))
    return st.one_of(
        st.just({}),
        st.sampled_from(TYPES).map(lambda kind: {"type": kind}),
        st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True).map(
            lambda kinds: {"type": kinds}
        ),
        st.fixed_dictionaries({"type": st.just("string")}, optional=strings),
        st.fixed_dictionaries({"type": st.sampled_from(["integer", "number"])}, optional=numbers),
        st.lists(values, min_size=1, max_size=4).map(lambda each: {"enum": each}),
        SCALARS.map(lambda each: {"const": each}),
        st.sampled_from([{"minLength": 2}, {"minimum": 3, "maxItems": 1}]),
        st.just({"$ref": "#/$defs/d"}),
    )


def _extended(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = {
        "properties": st.dictionaries(NAMES, inner, max_size=4),
        "required": st.lists(NAMES, max_size=3, unique=True),
        "additionalProperties": st.one_of(st.booleans(), inner),
        "patternProperties": st.dictionaries(st.sampled_from(["^x", "y$"]), inner, max_size=2),
        "description": st.just("d"),
        "minProperties": st.integers(0, 3),
        "maxProperties": st.integers(1, 4),
    }
    arrays = {
        "items": inner,
        "minItems": st.integers(0, 3),
        "maxItems": st.integers(0, 4),
        "prefixItems": st.lists(inner, max_size=2),
    }
    some = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        st.fixed_dictionaries({"type": st.just("object")}, optional=objects),
        st.fixed_dictionaries({"type": st.just("array")}, optional=arrays),
        *(some.map(lambda each, name=name: {name: each}) for name in ("anyOf", "oneOf", "allOf")),
        st.builds(
            lambda one, name, others: {**one, name: others},
            inner,
            st.sampled_from(["anyOf", "oneOf", "allOf"]),
            some,
        ),
        inner.map(lambda each: {"properties": {"p": each}, "required": ["p"]}),
        st.fixed_dictionaries(
            {"type": st.just("array"), "contains": inner},
            optional={**arrays, "minContains": st.integers(0, 2), "uniqueItems": st.booleans()},
        ),
        st.sampled_from([{"not": {}}, {"type": "array", "uniqueItems": True}]),
    )


_PARTS = st.recursive(_base(), _extended, max_leaves=8)
SCHEMAS: st.SearchStrategy[dict[str, Any]] = st.builds(
    lambda schema, shared: {**schema, "$defs": {"d": shared}}, _PARTS, _PARTS
)
"""Some demand what is not enforced, and some contain themselves."""
