"""Element types by role, from the library's table of formats, and the rules for combining them."""

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np

from raggemm._src.library import tables

_S32, _F32, _F64 = np.dtype(np.int32), np.dtype(np.float32), np.dtype(np.float64)
# Rows of the library's table of element formats, by name.
_FORMATS = {row["name"]: row for row in tables()["formats"] if row["role"] != "panel"}
_DTYPES = {name: np.dtype(row["numpy"]) for name, row in _FORMATS.items()}


def _dtypes_with_role(role: str) -> dict[np.dtype, np.dtype]:
    return {_DTYPES[name]: _DTYPES[row["expands_to"]] for name, row in _FORMATS.items() if row["role"] == role}


# Dtypes of matrices (FLOATS) and of quantized elements (QUANTIZED), each with the dtype of its sums.
FLOATS, QUANTIZED = _dtypes_with_role("matrix"), _dtypes_with_role("quantized")
INTEGER_ELEMENTS = tuple(x for x, sums in QUANTIZED.items() if sums == _S32)
E2M1, E8M0 = np.dtype(ml_dtypes.float4_e2m1fn), np.dtype(ml_dtypes.float8_e8m0fnu)
CODES = (*INTEGER_ELEMENTS, E2M1)  # elements that are integers, or integers after doubling
BYTES = {x: _S32 for x in INTEGER_ELEMENTS if x in (np.int8, np.uint8)}
MATRICES = FLOATS | BYTES


def _one_byte_type(dtype: np.dtype) -> Any:
    if dtype not in INTEGER_ELEMENTS:
        return ml_dtypes.float8_e4m3fn
    return np.uint8 if ml_dtypes.iinfo(dtype).min == 0 else np.int8


# For each type narrower than a byte: elements per byte, and a one-byte type that holds all its values.
SUB_BYTE = {
    _DTYPES[name]: (8 // row["bits"], _one_byte_type(_DTYPES[name]))
    for name, row in _FORMATS.items()
    if row["bits"] < 8
}
SCALES = tuple(_DTYPES[name] for name, row in _FORMATS.items() if row["is_scale"])
INTEGERS = tuple(_dtypes_with_role("sizes"))


def elements_per_byte(dtype: np.dtype) -> int:
    info = ml_dtypes.iinfo(dtype) if dtype in INTEGER_ELEMENTS else ml_dtypes.finfo(dtype)
    return max(1, 8 // info.bits)


WORD_ELEMENTS = tuple(x for x in CODES if elements_per_byte(x) <= 2)  # elements that WORD_BLOCKS may have


def format_dtypes(dtypes: Iterable[np.dtype], conjunction: str = "or") -> str:
    """Returns a list for error messages, such as "int32, int64 or uint32"."""
    *others, last = map(str, dtypes)
    return f"{', '.join(others)} {conjunction} {last}" if others else last


def compute_dtype(*dtypes: Any) -> np.dtype:
    """Returns the type of sums and epilogue: int32 if given, else float64 if given, else float32."""
    given = [np.dtype(x) for x in dtypes]
    return next((wanted for wanted in (_S32, _F64) if wanted in given), _F32)


def addend_dtypes(compute: np.dtype) -> Iterable[np.dtype]:
    return (_S32,) if compute == _S32 else FLOATS


def find_bad_dtype(lhs: Any, rhs: Any, out: Any, narrow: bool = False) -> tuple[str, Iterable[np.dtype]] | None:
    """Finds an unsupported dtype of a product. Returns ("lhs", "rhs" or "result", the allowed dtypes), or None.

    narrow: True also allows arrays of quantized element types, as numbers without scales. The result of two integers
    must be int32, and any other result must be a float. Two operands of float8_e5m2 are not supported.
    """
    has_bytes = lhs in BYTES or rhs in BYTES
    operands: Iterable[np.dtype] = BYTES if has_bytes else MATRICES
    results = (_S32,) if has_bytes else FLOATS
    if narrow and all(x in INTEGER_ELEMENTS for x in (lhs, rhs)):
        operands, results = INTEGER_ELEMENTS, (_S32,)
    elif narrow and any(x in QUANTIZED for x in (lhs, rhs)):
        both_wide = lhs == rhs == ml_dtypes.float8_e5m2
        operands, results = FLOATS if both_wide else (*FLOATS, *QUANTIZED), FLOATS
    triples = (("lhs", lhs, operands), ("rhs", rhs, operands), ("result", out, results))
    return next(((name, allowed) for name, dtype, allowed in triples if dtype not in allowed), None)
