"""flex.py: torch.nn.attention.flex_attention, compiled."""

import torch

from peer import Attention, Unsupported


class Flex(Attention):
    name = "flex_attention"

    def __init__(self):
        self.compiled = None

    def missing(self):
        try:
            from torch.nn.attention.flex_attention import flex_attention
        except ImportError as why:
            return str(why)
        torch._dynamo.config.cache_size_limit = 256  # one shape, one kernel
        self.compiled = torch.compile(flex_attention, dynamic=False)
        return None

    def prepare(self, case, tensors):
        from torch.nn.attention.flex_attention import create_block_mask

        q, k, v = tensors
        if case.new[0] not in (1, case.lengths[0]):
            raise Unsupported("a chunk")
        mask = None
        if case.new[0] > 1:
            mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, case.new[0], case.lengths[0], device="cuda")
        grouped = case.heads != case.kv_heads
        return lambda: self.compiled(q, k, v, block_mask=mask, enable_gqa=grouped)


PEERS = [Flex()]
