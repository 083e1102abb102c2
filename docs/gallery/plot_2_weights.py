"""
Weights made by hand
====================

A local metric is an image of weights. Here it is made by hand: the half where x is small may only move with the largest
Gaussian, the other half with the usual mixture. The two halves of the rings then deform differently.

Pictures are in radiological view, as for a head: x grows from right to left.
"""

import numpy as np
import torch

import metreg
from metreg import plots
from metreg.experiments.rings.draw import ring_pair

pair = ring_pair(torch.Generator().manual_seed(4))
affine = np.eye(3)
moving, fixed = pair.source[0, 0].numpy(), pair.target[0, 0].numpy()

# %%
# The weights
# -----------
# ``stiff`` is one where x is small, zero where it is large, and goes from one to the other within some 12 pixels. Weights
# should never jump: where they do, so does the velocity.

settings = metreg.make_settings(changes={"length_mm": 127.0, "affine.kind": "none"})
sigma = np.array(settings.metric.sigma)
usual = sigma**2 / np.sum(sigma**2)
largest = np.array([0.0, 0.0, 0.0, 1.0])

x = np.arange(128.0)
stiff = 1 / (1 + np.exp((x - 63.5) / 3))
weights = stiff[:, None] * largest + (1 - stiff[:, None]) * usual
weights = np.broadcast_to(weights[:, None], (128, 128, 4)).astype(np.float32)
print("small x:", weights[0, 64].round(4))
print("large x:", weights[-1, 64].round(4))

# %%
# sigma(x) and the weights of a result
# ------------------------------------
# ``sigma(x)`` is the root of ``sum_i w_i(x) sigma_i^2``, in millimetres: what the mixture amounts to at a point. The
# smallest Gaussian has little weight even in the free half, 0.2 percent; that little is what makes fine detail possible.

result = metreg.register((moving, affine), (fixed, affine), weights=(weights, affine), settings=settings)
names = [f"weight of {127 * s:.3g} mm" for s in sigma]
figure = plots.metric_maps(result, names)

# %%
# What the metric did
# -------------------
# In the stiff half, on the right of the pictures, the grid stays smooth. In the free one it follows the rings.

figure = plots.panel(result)

# %%
log_det = np.log(result.jacobian)
seen = fixed > 0.2
for name, half in (("stiff", x < 58), ("free", x > 69)):
    inside = seen & half[:, None]
    print(f"{name:<6} spread of the log determinant in the rings {log_det[inside].std():.3f}")
