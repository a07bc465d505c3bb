"""fa3.py: FlashAttention 3 over contiguous keys, by its inference wheel fa3-fwd from PyPI. Splits of decode are its own
choice. Where lengths differ, keys lie request by request without gaps."""

import torch

from peer import Attention


class FlashAttention3(Attention):
    name = "fa3"
    ragged = True

    def missing(self):
        try:
            from fa3_fwd_interface import flash_attn_func, flash_attn_varlen_func
        except Exception as why:  # what a wheel of another toolkit raises is its own affair
            return str(why).strip().split("\n")[0][:200]
        self.function, self.varlen = flash_attn_func, flash_attn_varlen_func
        return None

    def prepare(self, case, tensors):
        if not case.same_lengths():
            return self.prepare_ragged(case, tensors)
        q, k, v = (t.transpose(1, 2).contiguous() for t in tensors)
        splits = 0 if case.new[0] < case.lengths[0] else 1

        def launch():
            out = self.function(q, k, v, causal=True, num_splits=splits)
            return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

        return launch

    def prepare_ragged(self, case, tensors):
        q, k, v = tensors
        q = q[:, :, 0].contiguous()
        rows = torch.arange(case.batch + 1, dtype=torch.int32, device="cuda")
        keys = torch.tensor([0, *case.lengths]).cumsum(0).to(torch.int32).cuda()
        longest = max(case.lengths)

        def launch():
            out = self.varlen(q, k, v, rows, keys, 1, longest, causal=True, num_splits=0)
            return (out[0] if isinstance(out, tuple) else out)[:, :, None]

        return launch


PEERS = [FlashAttention3()]
