"""Types of elements: those that the library has, by their roles, and those that go together.

The library's table of formats is the only list of types."""

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np

from raggemm._src.library import tables

_S32, _F32, _F64 = np.dtype(np.int32), np.dtype(np.float32), np.dtype(np.float64)
# The formats of the library, by their names there.
_FORMATS = {row["name"]: row for row in tables()["formats"] if row["role"] != "panel"}
_DTYPES = {name: np.dtype(row["numpy"]) for name, row in _FORMATS.items()}


def _dtypes_with_role(role: str) -> dict[np.dtype, np.dtype]:
    """The types of a role, each with the one that products of it are summed in."""
    return {_DTYPES[name]: _DTYPES[row["expands_to"]] for name, row in _FORMATS.items() if row["role"] == role}


# The types of matrices, and of the elements of quantized ones.
FLOATS, QUANTIZED = _dtypes_with_role("matrix"), _dtypes_with_role("quantized")
INTEGER_ELEMENTS = tuple(x for x, sums in QUANTIZED.items() if sums == _S32)
BYTES = {x: _S32 for x in INTEGER_ELEMENTS if x in (np.int8, np.uint8)}
MATRICES = FLOATS | BYTES


def _wider(dtype: np.dtype) -> Any:
    """A type of a byte that has all values of a narrower one."""
    if dtype not in INTEGER_ELEMENTS:
        return ml_dtypes.float8_e4m3fn
    return np.uint8 if ml_dtypes.iinfo(dtype).min == 0 else np.int8


# Elements of less than a byte: how many make one, and a type of a byte that has all their values.
SUB_BYTE = {
    _DTYPES[name]: (8 // row["bits"], _wider(_DTYPES[name])) for name, row in _FORMATS.items() if row["bits"] < 8
}
SCALES = tuple(_DTYPES[name] for name, row in _FORMATS.items() if row["is_scale"])
INTEGERS = tuple(_dtypes_with_role("sizes"))


def elements_per_byte(dtype: np.dtype) -> int:
    """1 also where an element of a matrix has several bytes."""
    info = ml_dtypes.iinfo(dtype) if dtype in INTEGER_ELEMENTS else ml_dtypes.finfo(dtype)
    return max(1, 8 // info.bits)


def format_dtypes(dtypes: Iterable[np.dtype], conjunction: str = "or") -> str:
    """Returns the text of an error: "int32, int64 or uint32"."""
    *others, last = map(str, dtypes)
    return f"{', '.join(others)} {conjunction} {last}" if others else last


def compute_dtype(*dtypes: Any) -> np.dtype:
    """The type of what follows the sums: int32 if out is, else f64 if lhs, rhs or out is, else f32."""
    given = [np.dtype(x) for x in dtypes]
    return next((wanted for wanted in (_S32, _F64) if wanted in given), _F32)


def addend_dtypes(compute: np.dtype) -> Iterable[np.dtype]:
    """Returns the types that alpha, beta and bias may have beside sums of this type."""
    return (_S32,) if compute == _S32 else FLOATS


def find_bad_dtype(lhs: Any, rhs: Any, out: Any, narrow: bool = False) -> tuple[str, Iterable[np.dtype]] | None:
    """Returns the first of lhs, rhs and result whose dtype does not go with the others', and its allowed types.

    narrow: elements of quantized operands are numbers, beside a float and beside their like.
    """
    has_bytes = lhs in BYTES or rhs in BYTES
    factors: Iterable[np.dtype] = BYTES if has_bytes else MATRICES
    results = (_S32,) if has_bytes else FLOATS
    if narrow and all(x in INTEGER_ELEMENTS for x in (lhs, rhs)):
        factors, results = INTEGER_ELEMENTS, (_S32,)
    elif narrow and any(x in QUANTIZED for x in (lhs, rhs)):
        both_wide = lhs == rhs == ml_dtypes.float8_e5m2  # the custom call refuses them
        factors, results = FLOATS if both_wide else (*FLOATS, *QUANTIZED), FLOATS
    triples = (("lhs", lhs, factors), ("rhs", rhs, factors), ("result", out, results))
    return next(((name, allowed) for name, dtype, allowed in triples if dtype not in allowed), None)
