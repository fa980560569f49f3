"""What is wrong with a value, in this project's words: pydantic speaks of its own types and of validation."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping

_WHOLE = "a whole number is needed"
_NUMBER = "a number is needed"
_TRUTH = "true or false is needed"
_STRING = "a string is needed"
_LIST = "a list is needed, as in [64, 64]"
_SIZE = 'a size in bytes is needed, as in "8GiB"'
_SECTION = "it is a section, not a value: set the keys in it"

_PHRASES: Dict[str, str] = {
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_parsing_size": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": "a finite number is needed",
    "bool_type": _TRUTH,
    "bool_parsing": _TRUTH,
    "string_type": _STRING,
    "string_too_short": "it is empty",
    "string_pattern_mismatch": "it may hold letters from A to Z, digits, '.', '_' and '-' alone",
    "tuple_type": _LIST,
    "list_type": _LIST,
    "too_short": "the list is empty; at least one value is needed",
    "dict_type": "a table is needed, as in { name = 1 }",
    "byte_size": _SIZE,
    "byte_size_unit": _SIZE,
    "model_type": _SECTION,
    "model_attributes_type": _SECTION,
}
_PHRASES_WITH_VALUES: Dict[str, Callable[[Mapping[str, Any]], str]] = {
    "greater_than": lambda of: f"it must be greater than {_plain(of['gt'])}",
    "greater_than_equal": lambda of: f"it must be at least {_plain(of['ge'])}",
    "less_than": lambda of: f"it must be less than {_plain(of['lt'])}",
    "less_than_equal": lambda of: f"it must be at most {_plain(of['le'])}",
    "string_too_long": lambda of: f"it must have at most {of['max_length']} characters",
    "literal_error": lambda of: f"it must be {of['expected']}",
}


def reason(error: Mapping[str, Any]) -> str:
    """The end of a sentence about one of pydantic's errors; a kind that is not known keeps pydantic's words."""
    kind, message = error["type"], str(error["msg"])
    if kind == "value_error":
        return message.replace("Value error, ", "", 1)
    if isinstance(error["input"], dict) and kind in _PHRASES and kind not in ("model_type", "model_attributes_type"):
        return f"a table stands where one value must be: {_PHRASES[kind]}"
    if kind in _PHRASES_WITH_VALUES:
        return _PHRASES_WITH_VALUES[kind](error.get("ctx", {}))
    return _PHRASES.get(kind, message[:1].lower() + message[1:])


def _plain(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else str(bound)
