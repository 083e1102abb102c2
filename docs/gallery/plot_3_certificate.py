"""
Folds, Jacobians and the certificate
====================================

A map is of use only if it can be inverted. Three tests say more and more: central differences at the voxels, one-sided
differences at the voxels, and the certificate, which holds between the voxels too.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import metreg
from metreg import plots
from metreg.core.fields import jacobian_determinant
from metreg.deformation.maps import bernstein_minimum, certify, count_folds
from metreg.experiments.rings.draw import ring_pair

# %%
# A map that folds
# ----------------
# Every second column moves to the right, by more and more. Central differences compare a column with the one after the
# next, which moves just as it does, so they see nothing at all. The strict test and the certificate look at neighbours.

grid = metreg.Grid((32, 32), (1.0, 1.0))
x = grid.points(torch.empty(0, dtype=torch.float64))
every_second = torch.zeros_like(x)
every_second[:, 1, 2:-2, 2:-2:2] = 1.0

shifts = np.linspace(0, 1.5, 31)
central, smallest, folds = [], [], []
for shift in shifts:
    phi = x + shift * every_second
    central.append(float(jacobian_determinant(phi, grid)[..., 4:-4, 4:-4].min()))
    smallest.append(certify(phi, grid).smallest)
    folds.append(int(count_folds(phi, grid)))

first = shifts[np.array(folds) > 0][0]
print(f"central differences, smallest determinant at a shift of {shifts[-1]:.1f}: {central[-1]:.2f}")
print(f"the strict test finds folds from a shift of {first:.2f} on")

fig, axis = plt.subplots(figsize=(7, 3), layout="constrained")
axis.plot(shifts, central, label="central differences, away from the border")
axis.plot(shifts, smallest, label="smallest Bernstein coefficient")
axis.axhline(0, color="0.5", linewidth=0.8)
axis.set_xlabel("shift of every second column, in voxels")
axis.set_ylabel("determinant")
axis.legend()

# %%
# A registration
# --------------
# The certificate of a result is about the map as it is written to disk. ``smallest`` is a lower bound of the determinant
# everywhere, ``border_fixed`` says that the box maps onto itself. Both together mean that the map is invertible.

pair = ring_pair(torch.Generator().manual_seed(4))
moving, fixed = ((image[0, 0].numpy(), np.eye(3)) for image in (pair.source, pair.target))
result = metreg.register(moving, fixed, changes={"length_mm": 127.0, "affine.kind": "none"})
print(result.certificate)
print("invertible everywhere:", result.certificate.holds, "- folds:", result.folds)

figure = plots.jacobian_histogram(result)

# %%
# Where it is tight
# -----------------
# The lower bound of every cell of the map. It is smallest where the moving ring had to grow most.

bound = bernstein_minimum(result.written_map, result.registration.grid)[0].numpy()
fig, axis = plt.subplots(figsize=(4.6, 3.8), layout="constrained")
shown = axis.imshow(np.log2(bound).T, origin="lower", cmap="PuOr", vmin=-1.5, vmax=1.5)
axis.set_title("log2 of the bound, cell by cell")
axis.set_xticks([])
axis.set_yticks([])
fig.colorbar(shown)
