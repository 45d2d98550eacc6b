"""A table of calls of grouped_gemm: every mode with every storage of the operands."""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import numpy as np
import oracle
import raggemm
from raggemm import GroupedTensor

GROUPS = 4
SIZES = np.array([3, 0, 2, 4], np.int32)
# M, K and N of each group for the mode "all ragged".
M_SIZES, K_SIZES, N_SIZES = (np.array(x, np.int32) for x in ([2, 3, 0, 1], [4, 0, 2, 3], [1, 2, 3, 2]))


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    lhs: GroupedTensor
    rhs: GroupedTensor
    static: dict[str, Any]  # keywords of grouped_gemm

    def __str__(self):
        return self.name

    @property
    def has_bias(self) -> bool:
        return not self.name.startswith(("N", "all"))

    def operands(self) -> dict[str, Any]:
        """Returns the data of lhs and rhs, their group sizes ("dims"), c, alpha, beta, and bias if has_bias."""
        rng = np.random.default_rng(7)
        out = jax.eval_shape(functools.partial(raggemm.grouped_gemm, **self.static), self.lhs, self.rhs)
        operands = {
            "lhs": self.lhs.data,
            "rhs": self.rhs.data,
            "dims": tuple((x.first_dims, x.last_dims) for x in (self.lhs, self.rhs)),
            "c": rng.normal(size=out.shape).astype(np.float32),
            "alpha": rng.normal(size=GROUPS).astype(np.float32),
            "beta": np.array([0, 1, 0.5, -2], np.float32),
        }
        if self.has_bias:
            operands["bias"] = rng.normal(size=(GROUPS, out.shape[-1])).astype(np.float32)
        return operands

    def run(self, operands: dict[str, Any], function=raggemm.grouped_gemm):
        rest = {name: x for name, x in operands.items() if name not in ("lhs", "rhs", "dims")}
        lhs_dims, rhs_dims = operands["dims"]
        lhs = GroupedTensor(operands["lhs"], *lhs_dims, layout=self.lhs.layout)
        rhs = GroupedTensor(operands["rhs"], *rhs_dims, layout=self.rhs.layout)
        return function(lhs, rhs, **self.static, **rest)

    def expected(self, operands: dict[str, Any]) -> oracle.Expected:
        return self.run(operands, oracle.grouped_gemm)


def all_cases(m: int, k: int, n: int, ragged: int) -> list[Case]:
    """Returns cases of every mode. m, k, n: extents of axes that are not ragged.

    ragged: extent of a single ragged axis, at least the sum of SIZES.
    """
    rng = np.random.default_rng(1)
    g = GROUPS

    def data(*shape):
        return rng.normal(size=shape).astype(np.float32)

    def stored(shape, trans, **dims):
        """Returns random matrices of this shape, [rows,columns] or [G,rows,columns], stored transposed if `trans`."""
        shape = (*shape[:-2], shape[-1], shape[-2]) if trans else shape
        return GroupedTensor(data(*shape), **dims)

    cases = []

    def add(name, lhs, rhs, lhs_axis, rhs_axis, **static):
        cases.append(Case(name, lhs, rhs, {"contracting_dims": ((lhs_axis,), (rhs_axis,)), **static}))

    layouts = ("STRIDED", "PACKED")
    for lt, rt in itertools.product((False, True), repeat=2):
        flags = f"{'t' if lt else 'n'}{'t' if rt else 'n'}"
        rhs_groups, rhs_axis = stored((g, k, n), rt), 2 if rt else 1
        lhs_groups, lhs_axis = stored((g, m, k), lt), 1 if lt else 2
        add(f"uniform-{flags}", lhs_groups, rhs_groups, lhs_axis, rhs_axis)

        # Sizes are first_dims if the ragged axis is the first stored axis, otherwise last_dims. Only last_dims allow
        # more than one layout.
        for layout in layouts if lt else layouts[:1]:
            dims = {"last_dims": SIZES, "layout": layout} if lt else {"first_dims": SIZES}
            add(f"M-{flags}-{layout}", stored((ragged, k), lt, **dims), rhs_groups, 0 if lt else 1, rhs_axis)
        for layout in layouts if not lt or rt else layouts[:1]:
            dims = {"first_dims": SIZES} if lt else {"last_dims": SIZES, "layout": layout}
            rhs_dims = {"last_dims": SIZES, "layout": layout} if rt else {"first_dims": SIZES}
            lhs, rhs = stored((m, ragged), lt, **dims), stored((ragged, n), rt, **rhs_dims)
            add(f"K-{flags}-{layout}", lhs, rhs, 0 if lt else 1, 1 if rt else 0)
        for rhs_layout, out_layout in itertools.product(layouts[:1] if rt else layouts, layouts):
            dims = {"first_dims": SIZES} if rt else {"last_dims": SIZES, "layout": rhs_layout}
            rhs, axis = stored((k, ragged), rt, **dims), 1 if rt else 0
            name = f"{flags}-{rhs_layout}-{out_layout}"
            add(f"N-shared-{name}", stored((m, k), lt), rhs, 0 if lt else 1, axis, out_layout=out_layout)
            add(f"N-grouped-{name}", lhs_groups, rhs, lhs_axis, axis, out_layout=out_layout)

        def packed(length, rows, cols, trans):
            return GroupedTensor(data(length), *((cols, rows) if trans else (rows, cols)), layout="PACKED")

        lhs, rhs = packed(20, M_SIZES, K_SIZES, lt), packed(22, K_SIZES, N_SIZES, rt)
        add(f"all-{flags}", lhs, rhs, 0 if lt else 1, 1 if rt else 0, out_size=13, out_layout="PACKED")
    return cases


CASES = all_cases(m=7, k=5, n=6, ragged=11)
BY_NAME = {case.name: case for case in CASES}
