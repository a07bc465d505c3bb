"""flashinfer_paged.py: FlashInfer over a paged cache, blocks in any order; the wheel flashinfer-python from PyPI."""

import torch

from peer import Attention, Unsupported


class FlashInfer(Attention):
    name = "flashinfer"

    def missing(self):
        try:
            import flashinfer
        except Exception as why:  # what a wheel of another toolkit raises is its own affair
            return str(why).strip().split("\n")[0][:200]
        self.module = flashinfer
        self.work = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        return None

    def prepare(self, case, tensors):
        q, k, v = tensors
        if case.key.get("cu_k") == "true":
            raise Unsupported("keys without a block table")
        if case.values != case.size:
            raise Unsupported("values of other channels than keys")
        block, keys = case.block, case.lengths[0]
        if keys % block != 0:
            raise Unsupported("a last block that is not full")
        pages = keys // block
        order = torch.randperm(case.batch * pages, device="cuda")
        cache = torch.empty((2, case.batch * pages, block, case.kv_heads, case.size), dtype=q.dtype, device="cuda")
        for i, t in enumerate((k, v)):
            rows = t.transpose(1, 2).reshape(case.batch * pages, block, case.kv_heads, case.size)
            cache[i, order] = rows
        starts = torch.arange(case.batch + 1, dtype=torch.int32, device="cuda") * pages
        last = torch.full((case.batch,), block, dtype=torch.int32, device="cuda")
        table = order.to(torch.int32)
        if case.new[0] == 1:
            run = self.module.BatchDecodeWithPagedKVCacheWrapper(self.work, "NHD", use_tensor_cores=True)
            run.plan(starts, table, last, case.heads, case.kv_heads, case.size, block, q_data_type=q.dtype,
                     kv_data_type=q.dtype)
            rows = q[:, :, 0].contiguous()
            return lambda: run.run(rows, (cache[0], cache[1]))[:, :, None]
        run = self.module.BatchPrefillWithPagedKVCacheWrapper(self.work, "NHD")
        rows = torch.arange(case.batch + 1, dtype=torch.int32, device="cuda") * case.new[0]
        run.plan(rows, starts, table, last, case.heads, case.kv_heads, case.size, block, causal=True,
                 q_data_type=q.dtype, kv_data_type=q.dtype)
        flat = q.transpose(1, 2).reshape(-1, case.heads, case.size).contiguous()
        shape = (case.batch, case.new[0], case.heads, case.size)
        return lambda: run.run(flat, (cache[0], cache[1])).view(shape).transpose(1, 2)


PEERS = [FlashInfer()]
