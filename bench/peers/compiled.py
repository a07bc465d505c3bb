"""compiled.py: row-wise operators as torch.compile makes kernels of them. The standing judges them, and rows.py times them."""
import torch
import torch.nn.functional as F


def rms_norm(x, g, eps):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * g.float()).to(x.dtype)


def layer_norm(x, g, b, eps):
    wide = [None if factor is None else factor.float() for factor in (g, b)]
    return F.layer_norm(x.float(), (x.shape[-1],), *wide, eps).to(x.dtype)


def swiglu(x):
    gate, up = x.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(x.dtype)


def bias_gelu_new(x, b):
    return F.gelu(x.float() + b.float(), approximate="tanh").to(x.dtype)


kernels = {}


def by_inductor(function, *tensors):
    """Compiles a function at its first call, and calls it."""
    if function not in kernels:
        kernels[function] = torch.compile(function, dynamic=True)
    return kernels[function](*tensors)
