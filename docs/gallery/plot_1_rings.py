"""
Two metrics on one pair
=======================

A pair of rings is registered twice: with the global metric, and with a local one that has the true weights of this pair.
The disc and the background are stiff, the ring between them is soft. The true map is known, so the error can be measured.
"""

import numpy as np
import torch

import metreg
from metreg import plots
from metreg.experiments.rings.draw import ring_pair

# %%
# The pair is drawn by a generator, so it is the same at every run. A pixel is 1 mm, and the unit square of the paper is
# 127 mm wide.

pair = ring_pair(torch.Generator().manual_seed(4))
affine = np.eye(3)
moving, fixed = pair.source[0, 0].numpy(), pair.target[0, 0].numpy()
weights = pair.weights[0].movedim(0, -1).numpy()
changes = {"length_mm": 127.0, "affine.kind": "none"}

# %%
# The global metric
# -----------------
# One mixture of four Gaussians everywhere.

one_metric = metreg.register((moving, affine), (fixed, affine), changes=changes)
figure = plots.panel(one_metric)

# %%
# The true weights
# ----------------
# ``weights`` is an image of its own: at every pixel of the moving image four numbers of sum one. The last picture shows the
# standard deviation that follows from them, small in the ring.

own_metric = metreg.register((moving, affine), (fixed, affine), weights=(weights, affine), changes=changes)
figure = plots.panel(own_metric)

# %%
# Errors
# ------
# The mean distance between the map found and the true map, in pixels, over the disc and over the ring of the fixed image.

true_map = 127.0 * pair.phi_inv[0].numpy().reshape(2, -1).T
labels = pair.target_labels.numpy().ravel()
pixels = np.stack(np.meshgrid(np.arange(128.0), np.arange(128.0), indexing="ij"), axis=-1).reshape(-1, 2)

maps = {"nothing": pixels, "global": one_metric.transform.apply(pixels), "local": own_metric.transform.apply(pixels)}
for name, found in maps.items():
    error = np.linalg.norm(found - true_map, axis=1)
    print(f"{name:<8} disc {error[labels == 1].mean():.2f}   ring {error[labels == 2].mean():.2f}")
