"""step_kernels.py: Triton kernels of the step peer. Activations are bf16, sums f32, and a head has 128 channels.

A product over K is split into PARTS, and the kernel that reads its result adds the parts up. A kernel with PDL lets its
successor start at once, and waits for its predecessor before it reads anything but weights."""

import triton
import triton.language as tl


@triton.jit
def follow(PDL: tl.constexpr):
    """Waits for the kernel before, after the next one was let in."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def normed(x, g, eps, C: tl.constexpr):
    return x * tl.rsqrt(tl.sum(x * x, 0) / C + eps) * g


@triton.jit
def embed_norm(IDS, TABLE, X, G, H, eps, C: tl.constexpr):
    """Writes the embedding of a row's id to X, and its norm to H."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, C)
    token = tl.load(IDS + row).to(tl.int64)
    x = tl.load(TABLE + token * C + c)
    tl.store(X + row * C + c, x)
    tl.store(H + row * C + c, normed(x.to(tl.float32), tl.load(G + c).to(tl.float32), eps, C).to(tl.bfloat16))


@triton.jit(do_not_specialize=["rows"])
def add_norm(Y, X, ROWS, G, H, eps, rows, C: tl.constexpr, PARTS: tl.constexpr, PICK: tl.constexpr, PDL: tl.constexpr):
    """Adds the parts of Y [PARTS, rows, C] to X, and writes the norm of it to H. PICK: row ROWS[i] becomes row i of H."""
    to = tl.program_id(0)
    c = tl.arange(0, C)
    g = tl.load(G + c).to(tl.float32)
    follow(PDL)
    row = tl.load(ROWS + to) if PICK else to
    if PARTS == 1:  # rows of prompts
        row = row.to(tl.int64)
    x = tl.load(X + row * C + c).to(tl.float32)
    y = tl.zeros([C], tl.float32)
    for part in tl.static_range(PARTS):
        y += tl.load(Y + (part * rows + row) * C + c).to(tl.float32)
    x = (x + y).to(tl.bfloat16)
    if not PICK:
        tl.store(X + row * C + c, x)
    tl.store(H + to * C + c, normed(x.to(tl.float32), g, eps, C).to(tl.bfloat16))


@triton.jit
def swiglu(UP, OUT, I: tl.constexpr, TILE: tl.constexpr):
    """Writes silu(gate) · up. The gate half comes first."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * TILE + tl.arange(0, TILE)
    gate = tl.load(UP + row * 2 * I + i, mask=i < I).to(tl.float32)
    up = tl.load(UP + row * 2 * I + I + i, mask=i < I).to(tl.float32)
    tl.store(OUT + row * I + i, (gate / (1 + tl.exp(-gate)) * up).to(tl.bfloat16), mask=i < I)


# ---- prompts ---------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["rows"])
def prompt_heads(QKV, KEYS, VALUES, GQ, GK, COS, SIN, POSITION, SLOT, eps, rows, H: tl.constexpr, HK: tl.constexpr,
                 TILE: tl.constexpr):
    """Normalises and rotates one head of q or k in place, for TILE rows. Keys and values go to the cache as well."""
    head = tl.program_id(1)
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    there = (row < rows)[:, None]
    c = tl.arange(0, 64)
    at = row.to(tl.int64)[:, None] * ((H + 2 * HK) * 128) + head * 128 + c[None, :]
    low = tl.load(QKV + at, mask=there, other=0).to(tl.float32)
    high = tl.load(QKV + at + 64, mask=there, other=0).to(tl.float32)
    slot = tl.load(SLOT + row, mask=row < rows, other=0).to(tl.int64)
    if head < H + HK:
        g_low = tl.where(head < H, tl.load(GQ + c), tl.load(GK + c)).to(tl.float32)
        g_high = tl.where(head < H, tl.load(GQ + 64 + c), tl.load(GK + 64 + c)).to(tl.float32)
        scale = tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / 128 + eps)[:, None]
        low = low * scale * g_low[None, :]
        high = high * scale * g_high[None, :]
        position = tl.load(POSITION + row, mask=row < rows, other=0)
        angle = position[:, None] * 64 + c[None, :]
        cosine = tl.load(COS + angle)
        sine = tl.load(SIN + angle)
        turned = (low * cosine - high * sine).to(tl.bfloat16)
        other = (high * cosine + low * sine).to(tl.bfloat16)
        tl.store(QKV + at, turned, mask=there)
        tl.store(QKV + at + 64, other, mask=there)
        if head >= H:
            to = slot[:, None] * (HK * 128) + (head - H) * 128 + c[None, :]
            tl.store(KEYS + to, turned, mask=there)
            tl.store(KEYS + to + 64, other, mask=there)
    else:
        to = slot[:, None] * (HK * 128) + (head - H - HK) * 128 + c[None, :]
        tl.store(VALUES + to, low.to(tl.bfloat16), mask=there)
        tl.store(VALUES + to + 64, high.to(tl.bfloat16), mask=there)


# ---- products of a decode step ---------------------------------------------------------------------------------------


@triton.jit
def tile_product(X, W, rows, K: tl.constexpr, n, m, begin, DEPTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
                 BK: tl.constexpr, STAGES: tl.constexpr):
    """Returns rows n of W times rows m of X, [BN, BM], over DEPTH channels from `begin` on."""
    k = begin + tl.arange(0, BK)
    w = W + n[:, None] * K + k[None, :]
    x = X + m[None, :] * K + k[:, None]
    there = (m < rows)[None, :]
    sums = tl.zeros([BN, BM], tl.float32)
    for _ in tl.range(0, DEPTH, BK, num_stages=STAGES):
        sums = tl.dot(tl.load(w), tl.load(x, mask=there, other=0), sums)
        w += BK
        x += BK
    return sums


@triton.jit(do_not_specialize=["rows"])
def product(X, W, Y, rows, N: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
            BK: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr):
    """Writes Y[part] = X · Wᵀ over that part of K, f32 [PARTS, rows, N]."""
    part = tl.program_id(1)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.program_id(2) * BM + tl.arange(0, BM)
    follow(PDL)
    sums = tile_product(X, W, rows, K, n, m, part * (K // PARTS), K // PARTS, BM, BN, BK, STAGES)
    tl.store(Y + (part * rows + m)[None, :] * N + n[:, None], sums, mask=(m < rows)[None, :])


@triton.jit(do_not_specialize=["rows"])
def product_swiglu(X, W, OUT, rows, I: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
                   STAGES: tl.constexpr, PDL: tl.constexpr):
    """Writes silu(gate) · up of 32 channels: their 32 rows of the gate and 32 of up are one tile."""
    i = tl.arange(0, 64)
    first = tl.program_id(0) * 32
    n = first + i % 32 + i // 32 * I
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    follow(PDL)
    sums = tile_product(X, W, rows, K, n, m, 0, K, BM, 64, BK, STAGES)
    gate, up = tl.split(tl.permute(tl.reshape(sums, (2, 32, BM)), (1, 2, 0)))
    out = gate / (1 + tl.exp(-gate)) * up
    to = first + tl.arange(0, 32)
    tl.store(OUT + m[None, :] * I + to[:, None], out.to(tl.bfloat16), mask=(m < rows)[None, :])


@triton.jit(do_not_specialize=["rows"])
def head_best(X, W, BEST, WHICH, rows, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
              STAGES: tl.constexpr, PDL: tl.constexpr):
    """Writes the largest logit of BN ids and the lowest id that has it, [tiles, rows]. No logit reaches memory."""
    tile = tl.program_id(0)
    n = tile * BN + tl.arange(0, BN)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    follow(PDL)
    sums = tile_product(X, W, rows, K, n, m, 0, K, BM, BN, BK, STAGES)
    best = tl.max(sums, 0)
    which = tl.min(tl.where(sums == best[None, :], n[:, None], 2147483647), 0)
    tl.store(BEST + tile * rows + m, best, mask=m < rows)
    tl.store(WHICH + tile * rows + m, which, mask=m < rows)


@triton.jit(do_not_specialize=["tiles", "most"])
def next_token(BEST, WHICH, tiles, TABLE, X, G, H, POSITION, MADE, TOKENS, most, eps, C: tl.constexpr,
               TILES: tl.constexpr, PDL: tl.constexpr):
    """Takes the best id of a request, goes on by one position, and writes its embedding and the first norm."""
    b = tl.program_id(0)
    rows = tl.num_programs(0)
    t = tl.arange(0, TILES)
    c = tl.arange(0, C)
    g = tl.load(G + c).to(tl.float32)
    follow(PDL)
    best = tl.load(BEST + t * rows + b, mask=t < tiles, other=-float("inf"))
    which = tl.load(WHICH + t * rows + b, mask=t < tiles, other=2147483647)
    token = tl.min(tl.where(best == tl.max(best, 0), which, 2147483647), 0)
    made = tl.load(MADE + b)
    tl.store(TOKENS + b * most + made, token)
    tl.store(MADE + b, made + 1)
    tl.store(POSITION + b, tl.load(POSITION + b) + 1)
    x = tl.load(TABLE + token.to(tl.int64) * C + c)
    tl.store(X + b * C + c, x)
    tl.store(H + b * C + c, normed(x.to(tl.float32), g, eps, C).to(tl.bfloat16))


# ---- attention of a decode step --------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["rows", "blocks"])
def attend(QKV, OUT, SUM, KEYS, VALUES, GQ, GK, COS, SIN, POSITION, TABLE, blocks, eps, scale, rows, H: tl.constexpr,
           HK: tl.constexpr, PARTS: tl.constexpr, SPLITS: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
           BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Norms, rope, append and attention of one request and one head of keys, over a split of its cached keys.

    Grid (requests, HK, SPLITS). Split 0 has the new key as well, and appends it. With one split OUT is bf16
    [rows, H · 128]. Otherwise it is f32 [rows, H, SPLITS, 128], and SUM has the base-2 logarithms of the weights."""
    N: tl.constexpr = (H + 2 * HK) * 128
    RATIO: tl.constexpr = H // HK
    b = tl.program_id(0)
    kv = tl.program_id(1)
    split = tl.program_id(2)
    r = tl.arange(0, 16)  # heads of q, padded to a tile
    c = tl.arange(0, 64)
    wide = tl.arange(0, 128)
    gq_low = tl.load(GQ + c).to(tl.float32)
    gq_high = tl.load(GQ + 64 + c).to(tl.float32)
    gk_low = tl.load(GK + c).to(tl.float32)
    gk_high = tl.load(GK + 64 + c).to(tl.float32)
    follow(PDL)
    position = tl.load(POSITION + b)
    cosine = tl.load(COS + position * 64 + c)
    sine = tl.load(SIN + position * 64 + c)

    is_head = (r < RATIO)[:, None]
    at_q = b * N + (kv * RATIO + r)[:, None] * 128 + c[None, :]
    at_k = b * N + (H + kv) * 128 + c
    at_v = b * N + (H + HK + kv) * 128 + wide
    q_low = tl.zeros([16, 64], tl.float32)
    q_high = tl.zeros([16, 64], tl.float32)
    k_low = tl.zeros([64], tl.float32)
    k_high = tl.zeros([64], tl.float32)
    v = tl.zeros([128], tl.float32)
    for part in tl.static_range(PARTS):
        FROM = QKV + part * rows * N
        q_low += tl.load(FROM + at_q, mask=is_head, other=0).to(tl.float32)
        q_high += tl.load(FROM + at_q + 64, mask=is_head, other=0).to(tl.float32)
        k_low += tl.load(FROM + at_k).to(tl.float32)
        k_high += tl.load(FROM + at_k + 64).to(tl.float32)
        v += tl.load(FROM + at_v).to(tl.float32)
    by = tl.rsqrt((tl.sum(q_low * q_low, 1) + tl.sum(q_high * q_high, 1)) / 128 + eps)[:, None]
    q_low = q_low * by * gq_low[None, :]
    q_high = q_high * by * gq_high[None, :]
    q_a = (q_low * cosine[None, :] - q_high * sine[None, :]).to(tl.bfloat16)
    q_b = (q_high * cosine[None, :] + q_low * sine[None, :]).to(tl.bfloat16)
    by_k = tl.rsqrt((tl.sum(k_low * k_low, 0) + tl.sum(k_high * k_high, 0)) / 128 + eps)
    k_low = k_low * by_k * gk_low
    k_high = k_high * by_k * gk_high
    k_a = (k_low * cosine - k_high * sine).to(tl.bfloat16)
    k_b = (k_high * cosine + k_low * sine).to(tl.bfloat16)
    v_new = v.to(tl.bfloat16)

    factor = scale * 1.4426950408889634  # powers of 2
    if split == 0:
        block = tl.load(TABLE + b * blocks + position // BLOCK)
        to = (block * BLOCK + position % BLOCK).to(tl.int64) * (HK * 128) + kv * 128
        tl.store(KEYS + to + c, k_a)
        tl.store(KEYS + to + 64 + c, k_b)
        tl.store(VALUES + to + wide, v_new)
        most = (tl.sum(q_a.to(tl.float32) * k_a.to(tl.float32)[None, :], 1)
                + tl.sum(q_b.to(tl.float32) * k_b.to(tl.float32)[None, :], 1)) * factor
        total = tl.full([16], 1.0, tl.float32)
        out = tl.zeros([16, 128], tl.float32) + v_new.to(tl.float32)[None, :]
    else:
        most = tl.full([16], -1.0e30, tl.float32)
        total = tl.zeros([16], tl.float32)
        out = tl.zeros([16, 128], tl.float32)

    share = (tl.cdiv(position, TILE) + SPLITS - 1) // SPLITS * TILE
    first = split * share
    last = tl.minimum(position, first + share)
    t = tl.arange(0, TILE)
    for tile in tl.range(first, last, TILE, num_stages=STAGES):
        key = tile + t
        there = key < last
        block = tl.load(TABLE + b * blocks + key // BLOCK, mask=there, other=0)
        at = (block * BLOCK + key % BLOCK).to(tl.int64) * (HK * 128) + kv * 128
        k_1 = tl.load(KEYS + at[None, :] + c[:, None], mask=there[None, :], other=0)
        k_2 = tl.load(KEYS + at[None, :] + 64 + c[:, None], mask=there[None, :], other=0)
        values = tl.load(VALUES + at[:, None] + wide[None, :], mask=there[:, None], other=0)
        scores = tl.dot(q_b, k_2, tl.dot(q_a, k_1))
        scores = tl.where(there[None, :], scores * factor, -1.0e30)
        larger = tl.maximum(most, tl.max(scores, 1))
        weights = tl.exp2(scores - larger[:, None])
        shrunk = tl.exp2(most - larger)
        total = total * shrunk + tl.sum(weights, 1)
        out = tl.dot(weights.to(tl.bfloat16), values, out * shrunk[:, None])
        most = larger

    head = kv * RATIO + r
    if SPLITS == 1:
        to_out = (b * H + head)[:, None] * 128 + wide[None, :]
        tl.store(OUT + to_out, (out / total[:, None]).to(tl.bfloat16), mask=is_head)
    else:
        safe = tl.maximum(total, 1e-37)
        place = (b * H + head) * SPLITS + split
        tl.store(OUT + place[:, None] * 128 + wide[None, :], out / safe[:, None], mask=is_head)
        tl.store(SUM + place, most + tl.log2(safe), mask=r < RATIO)


@triton.jit
def merge(PARTIAL, SUM, OUT, SPLITS: tl.constexpr, PDL: tl.constexpr):
    """Adds the splits of one head up, by their weights."""
    head = tl.program_id(0)
    s = tl.arange(0, SPLITS)
    c = tl.arange(0, 128)
    follow(PDL)
    weight = tl.load(SUM + head * SPLITS + s)
    weight = tl.exp2(weight - tl.max(weight, 0))
    weight = weight / tl.sum(weight, 0)
    out = tl.load(PARTIAL + (head * SPLITS + s)[:, None] * 128 + c[None, :])
    tl.store(OUT + head * 128 + c, tl.sum(out * weight[:, None], 0).to(tl.bfloat16))
