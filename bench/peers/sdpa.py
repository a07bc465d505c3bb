"""sdpa.py: torch.nn.functional.scaled_dot_product_attention, a backend each. K and V lie contiguous, request by request:
head by head, [B, H_kv, L, D], or, _nhd, token by token, [B, L, H_kv, D], as a cache whose blocks are in order."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from peer import Attention, Unsupported


class Sdpa(Attention):
    def __init__(self, name, backend, groups, by_token=False):
        self.name, self.backend, self.groups, self.by_token = "sdpa_" + name, backend, groups, by_token

    def tensors(self, case, seed):
        q, k, v = super().tensors(case, seed)
        if self.by_token:
            k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (k, v))
        return [q, k, v]

    def prepare(self, case, tensors):
        q, k, v = tensors
        if case.new[0] not in (1, case.lengths[0]):
            raise Unsupported("a chunk: its mask is aligned to the top left")
        if not self.groups and case.heads != case.kv_heads:  # the heads of a group have keys of their own
            k, v = (t.repeat_interleave(case.heads // case.kv_heads, 1) for t in (k, v))
        causal = case.new[0] > 1
        grouped = self.groups and case.heads != case.kv_heads

        def launch():
            with sdpa_kernel(self.backend):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

        return launch


PEERS = [
    Sdpa("cudnn", SDPBackend.CUDNN_ATTENTION, True),
    Sdpa("cudnn_nhd", SDPBackend.CUDNN_ATTENTION, True, by_token=True),
    Sdpa("flash", SDPBackend.FLASH_ATTENTION, True),
    Sdpa("efficient", SDPBackend.EFFICIENT_ATTENTION, False),
]
