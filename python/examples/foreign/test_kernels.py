import assay
import numpy as np

@assay.variant("rms_norm")
def rms(x, g, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * g

@assay.variant("rms_norm")
def rms_without_eps(x, g):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True)) * g
