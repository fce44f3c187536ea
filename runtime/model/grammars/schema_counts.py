"""Keywords of JSON schemas that the compiler of grammars does not know, said in its words.

What comes of them is valid under what was given. It may be less.
"""

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from raydix.runtime.model.grammars.schema_merging import conjunction
from raydix.runtime.model.grammars.schema_strings import refuse

_MAX_MULTIPLES = 1024
"""The most values that a multiple may have within its bounds."""
_MAX_CONTAINED = 16
"""The most items that may have to be contained."""
_MAX_WHOLE = 2**63 - 1
"""The largest number that the compiler reads as a whole one."""


_COUNTS = frozenset(
    {
        *("minLength", "maxLength", "minItems", "maxItems", "minContains"),
        *("minProperties", "maxProperties"),
    }
)


def whole(value: Any, name: str) -> Any:
    """What a keyword says; a count such as 2.0 is a whole number in JSON schemas, too."""
    is_count = name in _COUNTS and isinstance(value, float) and value.is_integer()
    return int(value) if is_count else value


def check_lengths(own: Mapping[str, Any], place: str) -> None:
    """Raise NotEnforced if no list has as many items as that."""
    least, most = own.get("minItems", 0), own.get("maxItems")
    for name in ("minItems", "maxItems"):
        count = own.get(name, 0)
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise refuse(f"{place}/{name}", f"{count!r:.40} is no whole number from 0")
    if most is not None and most < least:
        raise refuse(f"{place}/maxItems", "no list is as long as that")


def check_bounds(own: Mapping[str, Any], place: str) -> None:
    """Raise NotEnforced for bounds that are no numbers, or too large."""
    for name, bound in own.items():
        is_number = isinstance(bound, int | float) and not isinstance(bound, bool)
        if not is_number or not abs(bound) <= _MAX_WHOLE:
            raise refuse(f"{place}/{name}", f"a number of up to {_MAX_WHOLE} is expected")


def multiples(own: Mapping[str, Any], place: str) -> list[int | float]:
    """The multiples within the bounds of a number. Raises NotEnforced if these are too many."""
    step = Decimal(str(own["multipleOf"]))
    if step <= 0:
        raise refuse(f"{place}/multipleOf", "a number above 0 is expected")
    lower = [own[name] for name in ("minimum", "exclusiveMinimum") if name in own]
    upper = [own[name] for name in ("maximum", "exclusiveMaximum") if name in own]
    if lower and upper:
        first = math.ceil(Decimal(str(max(lower))) / step)
        last = math.floor(Decimal(str(min(upper))) / step)
        if last - first < _MAX_MULTIPLES:
            # Those that are on an exclusive bound are left out by the caller.
            return [_number(step * factor) for factor in range(first, last + 1)]
    raise refuse(
        f"{place}/multipleOf",
        f"the keyword 'multipleOf' is not enforced but for up to {_MAX_MULTIPLES} values within "
        "bounds",
    )


def _number(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)


def with_contained(own: Mapping[str, Any], place: str) -> dict[str, Any]:
    """An array in which what it has to contain comes first, behind `prefixItems`."""
    read = {name: each for name, each in own.items() if name not in ("contains", "minContains")}
    if "contains" not in own:
        return read
    count = own.get("minContains", 1)
    first = own.get("prefixItems", [])
    if (
        not isinstance(count, int)
        or not 0 <= count <= _MAX_CONTAINED
        or not isinstance(first, list)
    ):
        raise refuse(
            f"{place}/contains", f"'contains' is enforced for up to {_MAX_CONTAINED} items"
        )
    if not count:
        return read
    wanted = conjunction(own.get("items", True), own["contains"])
    read["prefixItems"] = [*first, *[wanted] * count]
    least, most = own.get("minItems", 0), own.get("maxItems")
    if wanted is False or (most is not None and most < len(read["prefixItems"])):
        raise refuse(f"{place}/contains", "there is no room for what has to be contained")
    return {**read, "minItems": max(least, len(read["prefixItems"]))}


def enough_required(
    own: Mapping[str, Any], properties: Mapping[str, Any], required: Sequence[str], place: str
) -> list[str]:
    """The required properties of an object, with as many of the others as it has to have."""
    least, most = own.get("minProperties", 0), own.get("maxProperties")
    names = list(dict.fromkeys([*required, *properties]))
    if not isinstance(least, int) or least > len(names):
        raise refuse(
            f"{place}/minProperties",
            f"the keyword 'minProperties' is not enforced beyond the {len(names)} that are named",
        )
    if most is not None and (not properties or not isinstance(most, int) or most < len(names)):
        raise refuse(
            f"{place}/maxProperties",
            f"the keyword 'maxProperties' is not enforced below the {len(names)} that are named",
        )
    return names[: max(least, len({*required}))]
