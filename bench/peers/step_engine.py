"""step_engine.py: a batch of requests through a model of the qwen3 family: one graph for the prompts, one for a step.

Prompts: products by torch (cuBLAS), attention by FlashAttention 3 over contiguous heads, norms and rope by Triton. A
decode step is Triton alone. Its products are split over K. Norms, rope, append and attention are one kernel, SwiGLU is
the end of its product, and the logits stay on chip. Launches follow each other by programmatic dependent launch."""

import json
import math
import os

import torch

import step_kernels as kernels

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def power(n):
    """The least power of two from n on."""
    return 1 << max(0, n - 1).bit_length()


class Missing(Exception):
    pass


class Model:
    """Weights of a flat manifest (docs/models.md), as assay writes it, on the device."""

    def __init__(self, folder, device):
        with open(os.path.join(folder, "model.json")) as file:
            manifest = json.load(file)
        self.config, self.device = manifest["config"], device
        path = os.path.join(folder, manifest["data"])
        data = torch.from_file(path, size=os.path.getsize(path), dtype=torch.uint8)
        self.weights = {}
        for t in manifest["tensors"]:
            part = data[t["offset"] : t["offset"] + t["nbytes"]]
            self.weights[t["name"]] = part.view(TYPES[t["dtype"]]).view(t["shape"]).to(device)
        for key, name in (("L", "layers"), ("C", "hidden"), ("H", "heads"), ("HK", "kv_heads"), ("I", "intermediate"),
                          ("V", "vocab"), ("eps", "eps"), ("block", "block_size")):
            setattr(self, key, self.config[name])
        self.N = (self.H + 2 * self.HK) * 128

    def layer(self, number, name):
        return self.weights[f"layers.{number}.{name}"]

    @property
    def head(self):
        return self.weights["embed.w" if self.config["tied_head"] else "head.w"]

    def refused(self):
        """Why this engine cannot run the model, or None."""
        c = self.config
        wanted = {"arch": "qwen3", "head_size": 128, "rotated": 128, "rope_style": "neox", "rope_kind": "plain",
                  "qk_norm": True, "qkv_bias": False, "proj_bias": False, "mlp_bias": False, "weight_dtype": "bf16",
                  "act_dtype": "bf16", "kv_dtype": "bf16"}
        for name, value in wanted.items():
            if c[name] != value:
                return f"{name}: found {c[name]}, allowed {value}"
        for name, step in (("vocab", 128), ("intermediate", 64), ("hidden", 64)):
            if c[name] % step != 0:
                return f"{name}: found {c[name]}, allowed multiples of {step}"
        if self.C * max(self.V, 2 * self.I) >= 1 << 31:
            return "hidden · vocab: found 2^31 and more, allowed less: weights have 32-bit places"
        if power(self.C) != self.C or self.H // self.HK > 16:
            return f"hidden: found {self.C}, allowed powers of 2, and at most 16 heads for each head of keys"
        return None

    def angles(self, most):
        """Cosines and sines of all positions, from f64."""
        step = self.config["rope_base"] ** (-torch.arange(64, dtype=torch.float64) / 64)
        angle = torch.arange(most, dtype=torch.float64)[:, None] * step[None, :]
        return angle.cos().float().to(self.device).contiguous(), angle.sin().float().to(self.device).contiguous()


class Fa3:
    """Attention of prompts by FlashAttention 3."""

    name = "fa3"

    def __init__(self):
        try:
            from fa3_fwd_interface import flash_attn_varlen_func
        except Exception as why:  # what a wheel of another toolkit raises is its own affair
            raise Missing("fa3: " + str(why).strip().split("\n")[0][:200])
        self.function = flash_attn_varlen_func

    def __call__(self, q, k, v, batch):
        longest = max(batch.lengths)
        out = self.function(q, k, v, batch.starts, batch.starts, longest, longest, causal=True, num_splits=1,
                            pack_gqa=False if longest >= 512 else None)
        return out[0] if isinstance(out, tuple) else out


class Sdpa:
    """Attention of prompts by torch alone, request by request."""

    name = "sdpa"

    def __call__(self, q, k, v, batch):
        outs, at = [], 0
        for length in batch.lengths:
            part = [t[at : at + length].transpose(0, 1)[None] for t in (q, k, v)]
            out = torch.nn.functional.scaled_dot_product_attention(*part, is_causal=True, enable_gqa=True)
            outs.append(out[0].transpose(0, 1))
            at += length
        return torch.cat(outs)


class Plan:
    """How a decode step is shared out: parts of the products over K, splits of the keys, and their tiles."""

    def __init__(self, parts, splits, tile, stages):
        self.parts, self.splits, self.tile, self.stages = parts, splits, tile, stages

    def __str__(self):
        return "parts " + "/".join(map(str, self.parts)) + f" splits {self.splits} tile {self.tile} x {self.stages}"


class Batch:
    """Buffers of the requests, and what the host feeds."""

    def __init__(self, model, prompts, output, attention):
        self.model, self.attention, self.output = model, attention, output
        self.prompts, self.lengths = prompts, [len(p) for p in prompts]
        self.B, self.T = len(prompts), sum(self.lengths)
        self.cuda = model.device == "cuda"
        block = model.block
        self.blocks = max(-(-(n + output) // block) for n in self.lengths)
        pool = sum(-(-(n + output) // block) for n in self.lengths)
        make = lambda *shape, dtype=torch.bfloat16: torch.zeros(shape, dtype=dtype, device=model.device)
        self.keys = make(model.L, pool * block, model.HK, 128)
        self.values = make(model.L, pool * block, model.HK, 128)
        self.tokens = make(self.B, output + 1, dtype=torch.int32)
        self.kept = torch.zeros(self.tokens.shape, dtype=torch.int32, pin_memory=self.cuda)
        self.cosine, self.sine = model.angles(max(self.lengths) + output + 1)
        self._host(pool)
        self._rows(make)
        self.plan = None

    def _host(self, pool):
        """One buffer for all that the host sends, with blocks in an order by chance."""
        model, device = self.model, self.model.device
        order = torch.randperm(pool, generator=torch.Generator().manual_seed(1)).int()
        table, at = torch.zeros(self.B, self.blocks, dtype=torch.int32), 0
        for i, n in enumerate(self.lengths):
            count = -(-(n + self.output) // model.block)
            table[i, :count] = order[at : at + count]
            at += count
        lengths = torch.tensor(self.lengths, dtype=torch.int32)
        position = torch.cat([torch.arange(n, dtype=torch.int32) for n in self.lengths])
        request = torch.repeat_interleave(torch.arange(self.B), lengths.long())
        slot = table[request, (position // model.block).long()] * model.block + position % model.block
        ends = lengths.cumsum(0, dtype=torch.int32)
        parts = {"ids": torch.cat([torch.tensor(p, dtype=torch.int32) for p in self.prompts]), "rows": position,
                 "slot": slot, "starts": torch.cat([torch.zeros(1, dtype=torch.int32), ends]), "last": ends - 1,
                 "position": lengths - 1, "made": torch.zeros(self.B, dtype=torch.int32), "table": table.flatten()}
        sizes = {name: -(-t.numel() // 32) * 32 for name, t in parts.items()}
        self.host = torch.zeros(sum(sizes.values()), dtype=torch.int32, pin_memory=self.cuda)
        self.fed = torch.zeros(self.host.shape, dtype=torch.int32, device=device)
        at = 0
        for name, t in parts.items():
            self.host[at : at + t.numel()] = t
            setattr(self, name, self.fed[at : at + t.numel()])
            at += sizes[name]

    def _rows(self, make):
        m, T, B = self.model, self.T, self.B
        heads = m.H * 128
        self.long = {"x": make(T, m.C), "h": make(T, m.C), "y": make(T, m.C), "qkv": make(T, m.N), "att": make(T, heads),
                     "up": make(T, 2 * m.I), "act": make(T, m.I)}
        self.x, self.h, self.att, self.act = make(B, m.C), make(B, m.C), make(B, heads), make(B, m.I)
        self.best = make(m.V // 128, B, dtype=torch.float32)
        self.which = make(m.V // 128, B, dtype=torch.int32)

    def choose(self, plan):
        m, B = self.model, self.B
        make = lambda *shape: torch.zeros(shape, dtype=torch.float32, device=m.device)
        self.plan = plan
        self.parts_qkv, self.parts_proj = make(plan.parts[0], B, m.N), make(plan.parts[1], B, m.C)
        self.parts_down = make(plan.parts[2], B, m.C)
        self.partial, self.sum = make(B, m.H, plan.splits, 128), make(B, m.H, plan.splits)

    def plans(self):
        """Returns plans worth a try, and other parts of the products for the best of them.

        There are few splits of the keys or several times as many, and no split is less than 64 keys."""
        m, keys = self.model, max(self.lengths) + self.output
        split = lambda K, most: max(p for p in range(1, most + 1) if K % (p * 64) == 0)
        few = (split(m.C, 2), split(m.H * 128, 4), split(m.I, 3))
        many = (split(m.C, 4), split(m.H * 128, 8), split(m.I, 6))
        parts = [few[:i] + many[i : i + 1] + few[i + 1 :] for i in range(3)] + [many[:1] + few[1:2] + many[2:], many]
        usual = power(-(-256 // (self.B * m.HK)))
        splits = sorted({max(1, min(s, power(-(-keys // 64)))) for s in (usual // 2, usual, 2 * usual)})
        made = [Plan(few, s, tile, stages) for s in splits for tile, stages in ((128, 2), (64, 3), (32, 3))]
        return made, parts

    # ---- the host's part ----

    def feed(self):
        self.fed.copy_(self.host, non_blocking=True)

    def launch(self, kernel, grid, *given, warps=4, follows=True, **constants):
        if self.cuda:
            constants["num_warps"] = warps
            if follows:
                constants["launch_pdl"] = True
        kernel[grid](*given, **constants)

    # ---- the device's part ----

    def prompt(self):
        """All prompts at once, and each request's first token."""
        m, r, T = self.model, self.long, self.T
        heads, keys = m.H * 128, m.HK * 128
        q, k, v = (r["qkv"][:, a:b].view(T, -1, 128) for a, b in ((0, heads), (heads, heads + keys), (heads + keys, m.N)))
        launch = lambda *given, **constants: self.launch(*given, follows=False, **constants)
        launch(kernels.embed_norm, (T,), self.ids, m.weights["embed.w"], r["x"], m.layer(0, "attn.pre.g"), r["h"], m.eps,
               C=m.C)
        for l in range(m.L):
            torch.mm(r["h"], m.layer(l, "attn.qkv.w").t(), out=r["qkv"])
            launch(kernels.prompt_heads, (-(-T // 16), m.H + 2 * m.HK), r["qkv"], self.keys[l], self.values[l],
                   m.layer(l, "attn.q_norm.g"), m.layer(l, "attn.k_norm.g"), self.cosine, self.sine, self.rows, self.slot,
                   m.eps, T, H=m.H, HK=m.HK, TILE=16)
            att = self.attention(q, k, v, self).view(T, heads)
            torch.mm(att, m.layer(l, "attn.proj.w").t(), out=r["y"])
            self.norm_rows(r, T, m.layer(l, "mlp.pre.g"))
            torch.mm(r["h"], m.layer(l, "mlp.up.w").t(), out=r["up"])
            launch(kernels.swiglu, (T, -(-m.I // 1024)), r["up"], r["act"], I=m.I, TILE=1024)
            torch.mm(r["act"], m.layer(l, "mlp.down.w").t(), out=r["y"])
            if l + 1 < m.L:
                self.norm_rows(r, T, m.layer(l + 1, "attn.pre.g"))
        launch(kernels.add_norm, (self.B,), r["y"], r["x"], self.last, m.weights["final.g"], self.h, m.eps, T, C=m.C,
               PARTS=1, PICK=True, PDL=False)
        self.sample(False)

    def norm_rows(self, r, T, g):
        self.launch(kernels.add_norm, (T,), r["y"], r["x"], self.last, g, r["h"], self.model.eps, T, follows=False,
                    C=self.model.C, PARTS=1, PICK=False, PDL=False)

    def sample(self, follows):
        m, BM = self.model, min(128, max(16, power(self.B)))
        pdl = follows and self.cuda
        warps, stages = (8, 3) if BM >= 64 else (4, 4)
        self.launch(kernels.head_best, (m.V // 128, -(-self.B // BM)), self.h, m.head, self.best, self.which, self.B,
                    warps=warps, follows=follows, K=m.C, BM=BM, BN=128, BK=64, STAGES=stages, PDL=pdl)
        self.launch(kernels.next_token, (self.B,), self.best, self.which, m.V // 128, m.weights["embed.w"], self.x,
                    m.layer(0, "attn.pre.g"), self.h, self.position, self.made, self.tokens, self.tokens.shape[1], m.eps,
                    follows=follows, C=m.C, TILES=power(m.V // 128), PDL=pdl)

    def step(self):
        """One token of each request."""
        m, p, B, pdl = self.model, self.plan, self.B, self.cuda
        BM = min(128, max(16, power(B)))
        deep, stages = (128, 4) if BM <= 32 else (64, 5)

        def product(x, w, to, N, K):
            parts = to.shape[0]
            BK = deep if K // parts % deep == 0 else 64
            self.launch(kernels.product, (N // 64, parts, -(-B // BM)), x, w, to, B, N=N, K=K, PARTS=parts, BM=BM, BN=64,
                        BK=BK, STAGES=stages, PDL=pdl)

        def add_norm(parts, g):
            self.launch(kernels.add_norm, (B,), parts, self.x, self.last, g, self.h, m.eps, B, C=m.C,
                        PARTS=parts.shape[0], PICK=False, PDL=pdl)

        for l in range(m.L):
            product(self.h, m.layer(l, "attn.qkv.w"), self.parts_qkv, m.N, m.C)
            self.launch(kernels.attend, (B, m.HK, p.splits), self.parts_qkv, self.partial if p.splits > 1 else self.att,
                        self.sum, self.keys[l], self.values[l], m.layer(l, "attn.q_norm.g"), m.layer(l, "attn.k_norm.g"),
                        self.cosine, self.sine, self.position, self.table, self.blocks, m.eps, 1 / math.sqrt(128), B,
                        H=m.H, HK=m.HK, PARTS=p.parts[0], SPLITS=p.splits, TILE=p.tile, STAGES=p.stages, BLOCK=m.block,
                        PDL=pdl)
            if p.splits > 1:
                self.launch(kernels.merge, (B * m.H,), self.partial, self.sum, self.att,
                            warps=1 if p.splits <= 4 else 4, SPLITS=p.splits, PDL=pdl)
            product(self.att, m.layer(l, "attn.proj.w"), self.parts_proj, m.C, m.H * 128)
            add_norm(self.parts_proj, m.layer(l, "mlp.pre.g"))
            self.launch(kernels.product_swiglu, (m.I // 32, -(-B // BM)), self.h, m.layer(l, "mlp.up.w"), self.act, B,
                        I=m.I, K=m.C, BM=BM, BK=deep if m.C % deep == 0 else 64, STAGES=stages, PDL=pdl)
            product(self.act, m.layer(l, "mlp.down.w"), self.parts_down, m.C, m.I)
            add_norm(self.parts_down, m.layer(l + 1, "attn.pre.g") if l + 1 < m.L else m.weights["final.g"])
        self.sample(True)
