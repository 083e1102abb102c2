"""Settings: frozen, documented data. A whole run is one TOML file; unknown keys are refused."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from metreg.errors import MetregError
from metreg.settings.nested import merge, nest, read_toml, split_change
from metreg.settings.presets import PRESETS

AS_TRAINED, OWN_RANGE = "metric", "own"
"""Of intensities: as in the training of the metric, or each image by its own range."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Width = Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


def _voxels_or_less_than_one(value: float) -> float:
    if value < 1 or (value >= 3 and value % 2 == 1):
        return value if value < 1 else int(value)
    raise ValueError(f"must be odd, 3 or more, or less than 1, got {value:g}")


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    constants: ClassVar[Mapping[str, Any]] = {}
    """What was a setting once and always has this value now. Files that say so are read, other values are refused."""

    @model_validator(mode="before")
    @classmethod
    def _drop_constants(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        for name, constant in cls.constants.items():
            if name in values and values[name] != constant:
                raise ValueError(f"{name} is no setting any more, it is always {constant!r}; got {values[name]!r}")
        return {name: value for name, value in values.items() if name not in cls.constants}


class MetricSettings(_Settings):
    """The kernel K: a mixture of Gaussians."""

    sigma: tuple[Width, ...] = Field(default=(0.01, 0.05, 0.1, 0.2), min_length=1)
    """Standard deviations in reference lengths, increasing."""
    weights: tuple[NotNegative, ...] | None = None
    """Constant weights, one per sigma, of sum one; none: sigma_i^2 / sum_j sigma_j^2."""
    realisation: Literal["separable", "fourier"] = "separable"
    """`separable`: nothing wraps round, for real images. `fourier`: periodic, the paper's."""
    window: Annotated[int, Field(ge=0, le=50)] = 3
    """Width, in voxels of the map at the last level, of the border in which the velocity falls to zero; 0 for none."""

    @model_validator(mode="after")
    def _fits(self) -> MetricSettings:
        if list(self.sigma) != sorted(self.sigma):
            raise ValueError(f"sigma must increase, got {self.sigma}")
        if self.weights is not None and (len(self.weights) != len(self.sigma) or abs(sum(self.weights) - 1) > 1e-3):
            raise ValueError(f"weights: wanted {len(self.sigma)} numbers of sum one, got {self.weights}")
        return self


class NetworkSettings(_Settings):
    """The CNN that predicts the weights."""

    constants = {"width": 20, "kernel": 5}
    depth: Annotated[int, Field(ge=0)] = 2
    """Number of convolutions; 0 learns one mixture for all points of all images."""
    momentum_input: bool = False
    """Whether the network looks at the momentum beside the source. Training with `sgd` knows how weights change with the
    momentum; `lbfgs` takes the momentum that the network sees for fixed during a turn."""


class LearnedSettings(_Settings):
    """How the network's output becomes weights, and what they cost."""

    constants = {"range": 1.0}
    network: NetworkSettings = NetworkSettings()
    simplex: Literal["linear", "softmax"] = "linear"
    """`linear` moves from the set point along the simplex; `softmax` knows no set point."""
    smoothing: Positive | None = None
    """Standard deviation with which pre-weights are smoothed; none: 0.02 in 2-D, 0.05 in 3-D."""
    transport: NotNegative = 50.0
    """lambda_OMT: the price of leaving the largest Gaussian."""
    transport_power: Positive = 1.0
    """r: by which power of the ratio of widths that price grows."""
    transport_by: Literal["space", "brightness"] = "space"
    """Where that price is asked for: `space`, everywhere; `brightness`, in proportion to it: in T1 brains fluid is dark."""
    variation: NotNegative = 0.1
    """lambda_TV: the price of weights that vary."""
    variation_kind: Literal["tv", "h1"] = "tv"
    """`tv`: total variation, cheap at the image's edges. `h1`: squared gradients."""
    differences: Literal["forward", "central"] = "forward"
    """By which differences the gradients of weights and image are taken for that price. `central` ones do not see weights
    that change from voxel to voxel and back."""
    edge: NotNegative = 2.0
    """alpha of the edge weight 1 / (1 + alpha |grad I|), times the voxel size: how cheap a step of the image makes it."""

    def smoothing_in(self, dim: int) -> float:
        return self.smoothing or (0.02 if dim == 2 else 0.05)


class FlowSettings(_Settings):
    """From velocity to map."""

    integrator: Literal["rk4", "squaring"] = "rk4"
    """`rk4` transports the map in time; `squaring` composes it with itself."""
    steps: Count = 10
    """Least number of RK4 steps (or squarings); more are taken where stability asks for them."""
    map_factor: Annotated[float, Field(ge=0.05, le=1)] = 0.5
    """Resolution of map, momentum and weights relative to the images; along axes with larger voxels it may be higher."""

    @model_validator(mode="after")
    def _few_squarings(self) -> FlowSettings:
        if self.integrator == "squaring" and self.steps > 30:
            raise ValueError(f"steps: more than 30 squarings lose all precision, got {self.steps}")
        return self


class SimilaritySettings(_Settings):
    """How images are compared."""

    constants = {"weight": 100.0, "kernel": "box", "bins": 32}
    name: Literal["ssd", "ncc", "lncc", "mi"] = "lncc"
    """Squared differences, correlation, local correlation, or mutual information (across modalities)."""
    window: Annotated[float, Field(gt=0), AfterValidator(_voxels_or_less_than_one)] = 7
    """Width of the local window (lncc): voxels, odd; or less than 1, in reference lengths, and at least 5 voxels."""
    noise: Annotated[float, Field(ge=0, le=10)] = 0.1
    """More than 0: a window counts by the logarithm of this share and what lncc^2 leaves of 1; 0: by lncc^2 (lncc)."""


class SolveSettings(_Settings):
    """The search for the momentum."""

    constants = {
        "momentum": 0.9,
        "plateau_factor": 0.5,
        "plateau_patience": 10,
        "least_determinant": 0.2,
        "coarsest": 0.03,
        "both_ways": "coarse",
    }
    optimiser: Literal["sgd", "lbfgs"] = "lbfgs"
    """`sgd` is the paper's; `lbfgs` gets further in fewer iterations."""
    learning_rate: Positive = 1.0
    """Length of a step (sgd)."""
    clip: Positive | None = None
    """Largest norm of a pair's gradient (sgd); none: unlimited."""
    regularity: NotNegative = 350.0
    """lambda, the factor of <m, v>."""
    folding: NotNegative = 1000.0
    """The price of determinants that are smaller than they may be; it keeps maps from folding while they are sought."""
    repair: bool = True
    """Whether a map that folds at the end is changed until it does not. Folds before are counted in any case."""
    shrink: tuple[Positive, ...] = Field(default=(4, 2, 1), min_length=1)
    """Image resolution of each level of the pyramid, coarse to fine: 4 is a quarter of the points per axis,
    but not along axes whose voxels are larger already than the others become. Before these, fine images get more levels."""
    iterations: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(60, 60, 40), min_length=1)
    """Most iterations of each level."""
    local_iterations: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """With a local metric: iterations of a second pass, after one with the global metric. None: the local one at once."""
    tolerance: NotNegative = 1e-3
    """A level ends when the last ten iterations lowered the energy by less than this fraction of it; 0: never."""

    @model_validator(mode="after")
    def _levels(self) -> SolveSettings:
        if len(self.shrink) != len(self.iterations):
            raise ValueError(f"shrink names {len(self.shrink)} levels, iterations {len(self.iterations)}")
        if self.local_iterations is not None and len(self.shrink) != len(self.local_iterations):
            raise ValueError(f"shrink names {len(self.shrink)} levels, local_iterations {len(self.local_iterations)}")
        if min(self.shrink) < 1:
            raise ValueError(f"shrink must be 1 or more, got {self.shrink}")
        return self


class TrainSettings(_Settings):
    """Learning the metric: stage 1 momenta only, with the global metric; stage 2 momenta and network."""

    constants = {"momentum": 0.9, "plateau_factor": 0.5, "plateau_patience": 10, "memory_gb": None}
    optimiser: Literal["sgd", "lbfgs"] = "lbfgs"
    """`sgd` moves momenta and network together (the paper's); `lbfgs` registers all pairs, then both take turns."""
    epochs: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]] = (1, 50)
    """Epochs of the two stages."""
    batch: Count = 2
    """Pairs that are worked on together."""
    steps: Count = 5
    """Steps on a batch before the next one (sgd); iterations on the momenta after a step of the network (lbfgs)."""
    momentum_rate: Positive = 0.7
    """Learning rate of the momenta (sgd)."""
    network_rate: Positive = 0.01
    """Learning rate of the network, its gradient clipped after summing over the batch."""
    clip: Positive = 1.0
    """Largest norm of the gradient of the momenta, and of that of the network."""
    clip_over: Literal["pair", "batch"] = "pair"
    """Whose momenta have that norm (sgd): each pair's its own, so that no pair depends on its batch; or all of a batch
    together, for which the learning rate of the momenta has to grow with the root of the batch."""
    weight_decay: NotNegative = 1e-5
    """Of the network."""
    keep: Literal["best", "last"] = "best"
    """Which network becomes the metric: that of the epoch with the lowest mean energy, or the last one."""


class AffineSettings(_Settings):
    """The linear alignment that comes first."""

    kind: Literal["affine", "rigid", "none"] = "affine"
    """12 parameters in 3-D (6 in 2-D), 6 (3), or headers as they are."""
    similarity: Literal["ncc", "mi"] = "ncc"
    """`ncc` for images of one kind, in which it is the more exact; `mi` across kinds."""
    resolution: tuple[Positive, ...] = Field(default=(0.04, 0.02, 0.01), min_length=1)
    """Voxel size of each level in reference lengths, coarse to fine; never finer than the image."""
    iterations: Count = 60
    """Most iterations of each level."""


class Settings(_Settings):
    """Everything that decides a registration, but for the images."""

    constants = {"model": "vsvf"}
    preset: str = "default"
    """What these settings began with."""
    length_mm: Positive | None = None
    """The reference length, in which sigma counts: 0.05 of 200 mm is 10 mm. None: the longest side of what FIXED shows."""
    unit_cube: bool = False
    """The paper's coordinates: every axis runs from 0 to 1, whatever the voxel size."""
    intensity: Annotated[str, Field(min_length=1)] = AS_TRAINED
    """What intensities are matched to. `metric`: the average over the images that the learned metric was trained on, and
    in a training over those it trains on; without a learned metric each image has its own range. `own`: that always. Or
    the name or file of a metric: its average. `evaluate` and `bench peers` take that of the first learned metric for all
    methods; metrics that are to be compared are best trained with one and the same."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Of everything random."""
    metric: MetricSettings = MetricSettings()
    flow: FlowSettings = FlowSettings()
    similarity: SimilaritySettings = SimilaritySettings()
    solve: SolveSettings = SolveSettings()
    affine: AffineSettings = AffineSettings()
    learned: LearnedSettings = LearnedSettings()
    train: TrainSettings = TrainSettings()

    def to_toml(self) -> str:
        """The same settings as a file that `read_settings` takes back."""
        import tomli_w

        return tomli_w.dumps(self.model_dump(exclude_none=True))


def make_settings(
    preset: str | None = None,
    *,
    config: str | Path | None = None,
    changes: Iterable[str] | Mapping[str, Any] = (),
    usual: Mapping[str, Any] | None = None,
) -> Settings:
    """A preset, changed by a TOML file, changed by `key=value` strings or a mapping of dotted keys.

    `usual` settings, with a preset of their own, are those to begin with where none of these names a preset.
    """
    config = None if config is None else Path(config)
    values = read_toml(config) if config else {}
    items = dict(changes.items() if isinstance(changes, Mapping) else [split_change(change) for change in changes])
    preset = preset or items.pop("preset", None) or values.get("preset")
    usual = usual or {} if preset is None else {}
    preset = preset or usual.get("preset", "default")
    if not isinstance(preset, str) or preset not in PRESETS:
        raise MetregError(f"preset: unknown '{preset}'; use one of {', '.join(PRESETS)}")
    merged = merge(merge(merge(PRESETS[preset], usual), values), {"preset": preset})
    for key, value in items.items():
        merged = merge(merged, nest(key, value))
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        raise MetregError(_explain(error, config)) from None


def changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """The same settings but for some, named by dotted keys."""
    values = settings.model_dump(exclude_unset=True)
    for key, value in changes.items():
        values = merge(values, nest(key, value))
    return Settings.model_validate(values)


def is_set(settings: Settings, key: str, *, otherwise: Any) -> bool:
    """Whether the setting of a dotted key was asked for, by more than the name of a preset, and is not `otherwise`."""
    model: Any = settings
    preset: Any = PRESETS[settings.preset]
    *folders, name = key.split(".")
    for folder in folders:
        model = getattr(model, folder)
        preset = preset.get(folder, {})
    value = getattr(model, name)
    of_preset = name in preset and getattr(type(model)(**{name: preset[name]}), name) == value
    return name in model.model_fields_set and not of_preset and value != otherwise


def _explain(error: ValidationError, config: Path | None) -> str:
    """The first complaint in one line: where, what was wanted, what came."""
    first = error.errors()[0]
    names = [str(part) for part in first["loc"]]
    where, source = ".".join(names) or "settings", f" ({config})" if config else ""
    if first["type"] == "extra_forbidden":
        known = _known_keys(names[:-1])
        close = difflib.get_close_matches(names[-1], known, n=1, cutoff=0.5)
        hint = f"did you mean '{close[0]}'?" if close else f"known here: {', '.join(known)}"
        return f"{where}: unknown setting; {hint}{source}"
    message = first["msg"].removeprefix("Value error, ")
    came = "" if first["type"] == "value_error" else f", got {first['input']!r}"
    return f"{where}: {message[0].lower()}{message[1:]}{came}{source}"


def _known_keys(names: list[str]) -> list[str]:
    model: type[BaseModel] = Settings
    for name in names:
        annotation = model.model_fields[name].annotation
        assert isinstance(annotation, type) and issubclass(annotation, BaseModel)
        model = annotation
    return list(model.model_fields)
