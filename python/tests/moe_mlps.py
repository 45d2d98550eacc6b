"""Makes calls of moe_mlp whose routing has special cases, and compares results with moe_oracle.py."""

import functools

import ml_dtypes
import moe_oracle
import numpy as np
import raggemm

TOKENS, HIDDEN, INNER, GROUPS = 9, 64, 32, 4
SIZES = np.array([6, 0, 9, 3], np.int32)
ROWS = 21
# Token of each row. Token 0 has eight rows, several in the same group. Token 8 has no row in a group. The last three
# rows are in no group, so their tokens may be out of range.
ROW_TOKENS = np.array([0, 0, 1, 2, 3, 5, 0, 0, 0, 1, 2, 3, 4, 5, 6, 0, 0, 0, 8, -7, 2**31 - 1], np.int32)
GATES = (None, "separate", "halves", "interleaved")


class Case:
    """Arguments of a moe_mlp call: `given` for moe_mlp, and `values` for the oracle. Both have the same numbers."""

    def __init__(self, gate="separate", transposed=(False, False), biases=True, seed=0, large=1.0):
        random = np.random.default_rng(seed)
        columns = 2 * INNER if gate in ("halves", "interleaved") else INNER
        self.transposed = transposed
        self.merged = gate if columns != INNER else None

        def normal(*shape, by=1.0):
            return (by * random.normal(size=shape)).astype(np.float32)

        def matrices(k, n, is_transposed):
            return normal(GROUPS, *((n, k) if is_transposed else (k, n)), by=large * k**-0.5)

        self.values = {"x": normal(TOKENS, HIDDEN), "w_up": matrices(HIDDEN, columns, transposed[0])}
        self.values["w_down"] = matrices(INNER, HIDDEN, transposed[1])
        if gate == "separate":
            self.values["w_gate"] = matrices(HIDDEN, INNER, transposed[0])
        if biases:
            self.values |= {"b_up": normal(GROUPS, columns), "b_down": normal(GROUPS, HIDDEN)}
            if gate == "separate":
                self.values["b_gate"] = normal(GROUPS, INNER)
        self.values["x"][8] = np.nan
        self.values["row_weights"] = normal(ROWS)
        self.values["row_weights"][SIZES.sum() :] = np.nan
        self.given = dict(self.values)

    def cast(self, **dtypes):
        """Casts arrays of the case, such as cast(x=np.float16, w=np.float16).

        Keywords are names of arguments, "w" for all weights, or "b" for all biases.
        """
        for name, x in self.given.items():
            if dtype := dtypes.get(name, dtypes.get(name[0] if "_" in name else name)):
                self.given[name] = x.astype(dtype)
                self.values[name] = np.float64(self.given[name])
        return self

    def __call__(self, values=None, **options):
        given = {"row_weights": None} | self.given | (values or {})
        rows = {"row_tokens": ROW_TOKENS, "group_sizes": SIZES}
        transposes = {"transpose_up": self.transposed[0], "transpose_down": self.transposed[1]}
        return raggemm.moe_mlp(**(rows | given | transposes | {"merged": self.merged} | options))

    @property
    def oracle(self):
        return functools.partial(
            moe_oracle.mlp, row_tokens=ROW_TOKENS, sizes=SIZES, merged=self.merged, transposed=self.transposed
        )

    def check(self, got, activation="silu", relative=3e-6, **options):
        """Compares a result with the float64 oracle.

        An error may be `relative` times the MLP of the arguments' magnitudes, plus the rounding of the result. Token 8
        has no row in a group, so its result must be +0.
        """
        got = np.asarray(got)
        values = {name: np.float64(x) for name, x in self.values.items()}
        want = self.oracle(values, activation=activation, **options)
        magnitudes = {name: np.abs(x) for name, x in values.items()}
        bound = self.oracle(magnitudes, activation=activation, activate=moe_oracle.largest, **options)
        out = relative if got.dtype == np.float32 else float(ml_dtypes.finfo(got.dtype).eps)
        error = np.abs(np.float64(got) - want)
        assert got.shape == want.shape
        assert (error <= relative * bound + out * np.abs(want)).all(), (error / (relative * bound + 1e-30)).max()
        assert not np.asarray(got[8]).view(np.uint8).any()
