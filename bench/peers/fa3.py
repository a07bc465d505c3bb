"""fa3.py: FlashAttention 3 over contiguous keys, by its inference wheel fa3-fwd from PyPI. Splits of decode are its own
choice."""

from peer import Attention, Unsupported


class FlashAttention3(Attention):
    name = "fa3"

    def missing(self):
        try:
            from fa3_fwd_interface import flash_attn_func
        except Exception as why:  # what a wheel of another toolkit raises is its own affair
            return str(why).strip().split("\n")[0][:200]
        self.function = flash_attn_func
        return None

    def prepare(self, case, tensors):
        if case.new[0] not in (1, case.lengths[0]):
            raise Unsupported("a chunk")
        q, k, v = (t.transpose(1, 2).contiguous() for t in tensors)
        splits = 0 if case.new[0] == 1 else 1

        def launch():
            out = self.function(q, k, v, causal=True, num_splits=splits)
            return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

        return launch


PEERS = [FlashAttention3()]
