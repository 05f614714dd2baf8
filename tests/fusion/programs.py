"""Loop programs as lowering makes them, for the tests of fusion."""

from __future__ import annotations

GELU_NORM = """
loops gelu_norm
    x: f32[s0, 64] = input 0
    b: f32[64] = input 1
    res: f32[s0, 64] = input 2
    w: f32[64] = input 3
    y: f32[s0, 64] = pointwise (i0: s0, i1: 64):
        v0 = add(load x[i0, i1], load b[i1])
        v1 = mul(v0, add(erf(mul(v0, f32(0.5))), f32(1.0)))
        -> add(v1, load res[i0, i1])
    total: f32[s0] = reduction sum over (i1: 64) keeping (i0: s0): load y[i0, i1]
    square: f32[s0] = reduction sum over (i1: 64) keeping (i0: s0):
        v0 = sub(load y[i0, i1], mul(load total[i0], f32(0.015625)))
        -> mul(v0, v0)
    out: f32[s0, 64] = pointwise (i0: s0, i1: 64):
        v0 = sub(load y[i0, i1], mul(load total[i0], f32(0.015625)))
        v1 = rsqrt(add(mul(load square[i0], f32(0.015625)), f32(0.0009765625)))
        -> mul(mul(v0, v1), load w[i1])
    return out
"""
SOFTMAX = """
loops softmax
    x: f32[2, s0, 96] = input 0
    top: f32[2, s0] = reduction amax over (i2: 96) keeping (i0: 2, i1: s0): load x[i0, i1, i2]
    e: f32[2, s0, 96] = pointwise (i0: 2, i1: s0, i2: 96): exp(sub(load x[i0, i1, i2], load top[i0, i1]))
    total: f32[2, s0] = reduction sum over (i2: 96) keeping (i0: 2, i1: s0): load e[i0, i1, i2]
    out: f32[2, s0, 96] = pointwise (i0: 2, i1: s0, i2: 96): div(load e[i0, i1, i2], load total[i0, i1])
    return out
"""
CROSS_ENTROPY = """
loops cross_entropy
    x: f32[s0, 50] = input 0
    target: i64[s0] = input 1
    top: f32[s0] = reduction amax over (i1: 50) keeping (i0: s0): load x[i0, i1]
    total: f32[s0] = reduction sum over (i1: 50) keeping (i0: s0): exp(sub(load x[i0, i1], load top[i0]))
    picked: f32[s0] = pointwise (i0: s0):
        j0 = indirect(load target[i0], 50)
        v0 = sub(load x[i0, j0], load top[i0])
        -> sub(log(load total[i0]), v0)
    loss: f32[] = reduction sum over (i0: s0) keeping (): load picked[i0]
    return loss
"""
RMS_NORM = """
loops rms_norm
    x: f32[s0, 128] = input 0
    w: f32[128] = input 1
    square: f32[s0] = reduction sum over (i1: 128) keeping (i0: s0): mul(load x[i0, i1], load x[i0, i1])
    scale: f32[s0] = pointwise (i0: s0): rsqrt(add(mul(load square[i0], f32(0.0078125)), f32(0.0009765625)))
    out: f32[s0, 128] = pointwise (i0: s0, i1: 128): mul(mul(load x[i0, i1], load scale[i0]), load w[i1])
    return out, scale
"""
NORM_BACKWARD = """
loops norm_backward
    g: f32[600, 64] = input 0
    h: f32[600, 64] = input 1
    w: f32[64] = input 2
    rstd: f32[600] = input 3
    a: f32[600] = reduction sum over (i1: 64) keeping (i0: 600): mul(load g[i0, i1], load w[i1])
    b: f32[600] = reduction sum over (i1: 64) keeping (i0: 600):
        -> mul(mul(load g[i0, i1], load w[i1]), load h[i0, i1])
    dx: f32[600, 64] = pointwise (i0: 600, i1: 64):
        v0 = sub(mul(load g[i0, i1], load w[i1]), mul(load a[i0], f32(0.015625)))
        v1 = sub(v0, mul(load h[i0, i1], mul(load b[i0], f32(0.015625))))
        -> mul(v1, load rstd[i0])
    dw: f32[64] = reduction sum over (i0: 600) keeping (i1: 64): mul(load g[i0, i1], load h[i0, i1])
    db: f32[64] = reduction sum over (i0: 600) keeping (i1: 64): load g[i0, i1]
    return dx, dw, db
"""
VIEWS = """
loops views
    s0: size = input 0
    mm: f32[8*s0, 96] = input 1
    b: f32[96] = input 2
    y: f32[s0, 8, 96] = pointwise (i0: s0, i1: 8, i2: 96): tanh(add(load mm[8*i0 + i1, i2], load b[i2]))
    total: f32[8*s0] = reduction sum over (i1: 96) keeping (i0: 8*s0): load y[i0//8, i0%8, i1]
    out: f32[768*s0] = pointwise (i0: 768*s0):
        -> sub(load y[i0//768, (i0//96)%8, i0%96], load total[i0//96])
    return out
"""
FULL_SUM = """
loops full_sum
    x: f32[300, 1000] = input 0
    y: f32[300, 1000] = pointwise (i0: 300, i1: 1000): mul(load x[i0, i1], load x[i0, i1])
    total: f32[] = reduction sum over (i0: 300, i1: 1000) keeping (): load y[i0, i1]
    mean: f32[] = pointwise (): mul(load total[], f32(0.5))
    return mean
"""
BIAS_GRADIENT = """
loops bias_gradient
    g: f32[128, 96] = input 0
    x: f32[128, 96] = input 1
    dx: f32[128, 96] = pointwise (i0: 128, i1: 96): mul(load g[i0, i1], exp(load x[i0, i1]))
    db: f32[96] = reduction sum over (i0: 128) keeping (i1: 96): load dx[i0, i1]
    return dx, db
"""
LONG_COLUMNS = """
loops long_columns
    g: f32[5000, 16] = input 0
    db: f32[16] = reduction sum over (i0: 5000) keeping (i1: 16): load g[i0, i1]
    return db
"""
TRANSPOSED = """
loops transposed
    x: f32[s0, 24, 40] = input 0
    y: f32[24, s0, 40] = pointwise (i0: 24, i1: s0, i2: 40): exp(load x[i1, i0, i2])
    z: f32[s0, 24, 40] = pointwise (i0: s0, i1: 24, i2: 40): add(load y[i1, i0, i2], load x[i0, i1, i2])
    return z
"""
CAT = """
loops cat
    x: f32[1, 1, 40] = input 0
    y: f32[1, s0, 40] = input 1
    p: f32[1, s0 + 1, 40] = input 2
    out: f32[1, s0 + 1, 40] = pointwise (i0: 1, i1: s0 + 1, i2: 40):
        v0 = test(i1 < 1)
        v1 = load x[i0, i1, i2] if v0
        v2 = load y[i0, i1 - 1, i2] if logical_not(v0)
        -> add(where(v0, v1, v2), load p[i0, i1, i2])
    return out
"""
HEADS = """
loops heads
    s0: size = input 0
    g: f32[s0, 12, 8, 4 | 384, 4, 48, 1] = input 1
    db: f32[48] = reduction sum over (i1: 8*s0) keeping (i0: 48): load g[i1//8, i0//4, i1%8, i0%4]
    y: f32[s0, 8, 48] = pointwise (i0: s0, i1: 8, i2: 48): exp(load g[i0, i2//4, i1, i2%4])
    return db, y
"""
TWO_COLUMNS = """
loops two_columns
    g: f32[s0, 600, 64] = input 0
    h: f32[s0, 600, 64] = input 1
    row: f32[s0, 600] = reduction sum over (i2: 64) keeping (i0: s0, i1: 600): mul(load g[i0, i1, i2], load h[i0, i1, i2])
    db: f32[64] = reduction sum over (i1: s0, i2: 600) keeping (i0: 64): load g[i1, i2, i0]
    dw: f32[600, 64] = reduction sum over (i2: s0) keeping (i0: 600, i1: 64): sub(load g[i2, i0, i1], load row[i2, i0])
    return db, dw
"""
LOOKED_UP = """
loops looked_up
    x: f32[s0, 500] = input 0
    target: i64[s0] = input 1
    top: f32[s0] = reduction amax over (i1: 500) keeping (i0: s0): load x[i0, i1]
    total: f32[s0] = reduction sum over (i1: 500) keeping (i0: s0): exp(sub(load x[i0, i1], load top[i0]))
    logp: f32[s0, 500] = pointwise (i0: s0, i1: 500): sub(sub(load x[i0, i1], load top[i0]), log(load total[i0]))
    loss: f32[] = reduction sum over (i0: s0) keeping ():
        j0 = indirect(load target[i0], 500)
        -> neg(load logp[i0, j0])
    return loss
"""
PICKED = """
loops picked
    x: f32[s0, 500] = input 0
    target: i64[s0] = input 1
    top: f32[s0] = reduction amax over (i1: 500) keeping (i0: s0): load x[i0, i1]
    low: f32[s0, 500] = pointwise (i0: s0, i1: 500): sub(load x[i0, i1], load top[i0])
    total: f32[s0] = reduction sum over (i1: 500) keeping (i0: s0): exp(load low[i0, i1])
    logp: f32[s0, 500] = pointwise (i0: s0, i1: 500): sub(load low[i0, i1], log(load total[i0]))
    loss: f32[s0] = pointwise (i0: s0):
        j0 = indirect(load target[i0], 500)
        -> neg(load logp[i0, j0])
    return loss
"""
PROGRAMS = {
    text.split()[1]: text
    for text in (
        GELU_NORM, SOFTMAX, CROSS_ENTROPY, RMS_NORM, NORM_BACKWARD, VIEWS, FULL_SUM, BIAS_GRADIENT, LONG_COLUMNS,
        TRANSPOSED, CAT, HEADS, TWO_COLUMNS, LOOKED_UP, PICKED,
    )
}  # fmt: skip
