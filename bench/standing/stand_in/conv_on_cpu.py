"""conv_on_cpu.py: what kernels_conv.py calls of flash-linear-attention, in torch on a CPU (CONV_INTERFACE=conv_on_cpu).
CONV_MISTAKE plants a mistake that the suite must find."""
import os

import torch

MISTAKE = os.environ.get("CONV_MISTAKE", "")
MISTAKES = ("taps_reversed", "first_row_of_state_used", "short_request_forgets", "request_before_seen")


def causal_conv1d(x, weight, bias, initial_state, output_final_state, activation, cu_seqlens):
    assert output_final_state and x.shape[0] == 1 and cu_seqlens.dtype == torch.int64
    taps = weight.shape[1]
    turned = weight.flip(1) if MISTAKE == "taps_reversed" else weight
    made, last = [], []
    for i in range(len(cu_seqlens) - 1):
        begin, end = int(cu_seqlens[i]), int(cu_seqlens[i + 1])
        rows = torch.cat([initial_state[i].t(), x[0, begin:end]])
        if MISTAKE == "request_before_seen" and begin > 0:
            rows[taps - 1] = x[0, begin - 1]
        at = 0 if MISTAKE == "first_row_of_state_used" else 1
        own = torch.zeros(end - begin, x.shape[2])
        for j in range(taps):
            own = (own + rows[at + j:at + j + end - begin].double() * turned[:, j].double()).float()  # as an FMA rounds
        own = own if bias is None else own + bias.float()
        made.append(own * torch.sigmoid(own) if activation == "silu" else own)
        after = rows[rows.shape[0] - taps:].t().clone()
        if MISTAKE == "short_request_forgets" and end - begin < taps - 1:
            after[:, :taps - (end - begin)] = 0
        last.append(after)
    return torch.cat(made).to(x.dtype)[None], torch.stack(last)
