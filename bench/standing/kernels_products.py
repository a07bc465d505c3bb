"""kernels_products.py: products with scales and groups of torch and DeepGEMM as callables for the Python door.

torch's block-wise scaled_mm is cuBLASLt's, and its _grouped_mm is CUTLASS's. DeepGEMM is the wheel sgl-deep-gemm, which
compiles each shape when it first comes. The callables copy the judge's tensors to the GPU and the result back, so what
is judged is the arithmetic."""
import assay
import torch

from kernels_torch import DEVICE, back, on

SCALED = {"lanes": 1, "qk_lanes": 1, "pv_lanes": 1, "cut": 32}
GROUPED = {"lanes": 32, "cut": 16}


def scales(stored, transposed):
    """Returns the scales [rows, pieces] of the two layouts in which a call may have them."""
    return on(stored) if stored is not None else on(transposed).t()


def plain_scales(sfa, sfa_t, sfb, sfb_t, bias, c, **_):
    if (sfa is None and sfa_t is None) or (sfb is None and sfb_t is None):
        raise assay.Unsupported("sfa_packed, sfb_packed: found one, allowed scales in f32")
    if bias is not None:
        raise assay.Unsupported("bias: found one, allowed none")
    if c.dtype == "f16":
        raise assay.Unsupported("c: found f16, allowed f32, bf16")


def only_bf16(c, **more):
    if c.dtype != "bf16":
        raise assay.Unsupported(f"c: found {c.dtype}, allowed bf16")
    plain_scales(c=c, **more)


def filled(tensor, rows, columns):
    """Returns the tensor with zeros up to multiples of `rows` and `columns`: codes and scales of 0 add 0."""
    more = torch.zeros([-(-n // m) * m for n, m in zip(tensor.shape, (rows, columns))], dtype=tensor.dtype, device=DEVICE)
    more[:tensor.shape[0], :tensor.shape[1]] = tensor
    return more


# cuBLASLt wants scales in fours, and both take whole blocks of 128: zeros are added.
def whole(a, b, sfa, sfa_t, sfb, sfb_t, rows):
    return (filled(on(a), rows, 512), filled(scales(sfa, sfa_t), rows, 4), filled(on(b), 128, 512),
            filled(scales(sfb, sfb_t), 1, 4))


@assay.variant("fp8_block_gemm", name="cublaslt", claims="f32,bf16", tensors="torch", contract=SCALED,
               supports=plain_scales)
def block_cublaslt(a, b, sfa, sfa_t, sfb, sfb_t, c):
    from torch.nn.functional import ScalingType, scaled_mm
    x, rows, y, weights = whole(a, b, sfa, sfa_t, sfb, sfb_t, 16)
    made = scaled_mm(x, y.t(), scale_a=rows.t().contiguous().t(), scale_recipe_a=ScalingType.BlockWise1x128,
                     scale_b=weights.t(), scale_recipe_b=ScalingType.BlockWise128x128, output_dtype=c.dtype)
    c[...] = made[:c.shape[0], :c.shape[1]].cpu()


@assay.variant("fp8_block_gemm", name="deep_gemm", claims="bf16", tensors="torch", contract=SCALED, supports=only_bf16)
def block_deep_gemm(a, b, sfa, sfa_t, sfb, sfb_t, c):
    import deep_gemm
    x, rows, y, weights = whole(a, b, sfa, sfa_t, sfb, sfb_t, 1)
    made = torch.empty(x.shape[0], y.shape[0], dtype=torch.bfloat16, device=DEVICE)
    # A kernel is compiled for the type and the tile alone, and not anew for each drawn shape.
    deep_gemm.fp8_gemm_nt((x, rows), (y, weights), made, compiled_dims="")
    c[...] = made[:, :c.shape[1]].cpu()


def plain_groups(a, b, bias, c, **_):
    if bias is not None:
        raise assay.Unsupported("bias: found one, allowed none")
    if a.dtype != "bf16" or c.dtype != "bf16":
        raise assay.Unsupported(f"a, c: found {a.dtype}, {c.dtype}, allowed bf16")
    if a.shape[1] % 8 or b.shape[1] % 8:
        raise assay.Unsupported(f"N, K: found {b.shape[1]}, {a.shape[1]}, allowed multiples of 8")


# Rows are brought into the order of their groups. Rows without a group are left out, and become what `pad` says.
@assay.variant("grouped_gemm", name="cutlass", claims="bf16", tensors="torch", contract=GROUPED, supports=plain_groups)
def grouped_cutlass(a, b, group, c, pad):
    live = torch.nonzero(group >= 0).flatten()
    order = live[torch.argsort(group[live], stable=True)]
    ends = torch.bincount(group[live].long(), minlength=b.shape[0]).cumsum(0).int()
    if pad == "zero":
        c[group < 0] = 0
    if len(order) > 0:
        made = torch._grouped_mm(on(a[order]).contiguous(), on(b).contiguous().transpose(1, 2), offs=on(ends))
        c[order] = back(made, c)
