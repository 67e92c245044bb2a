"""Coordinate encodings of tokens and queries (CMT, Yan et al., 2023, Sections 3.1 and 3.2)."""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor, nn

from fedlib.models.detector.config import Config


def sine_cosine(places: Tensor, width: int) -> Tensor:
    """Return (..., 2 * width) for places (..., 2) in 0..1: ``width`` numbers for x, then for y.

    Number k is the sine (k even) or cosine (k odd) of 2 pi x / 10000^(2 floor(k / 2) / width).
    """
    k = torch.arange(width, device=places.device)
    rate = 2 * pi / 10000 ** (2 * (k // 2).to(places.dtype) / width)
    angle = places[..., None] * rate  # (..., 2, d)
    return torch.where(k % 2 == 0, angle.sin(), angle.cos()).flatten(-2)


def depths(config: Config, like: Tensor) -> Tensor:
    """Return d_k = 1 + k (x1 - 1) / D, (D,), metres."""
    steps = torch.arange(config.depth_bins, device=like.device, dtype=like.dtype)
    return 1 + steps * (config.reach - 1) / config.depth_bins


def normalise(places: Tensor, config: Config) -> Tensor:
    """Return places (..., 3) in metres as fractions of the space that is seen."""
    low, high = (places.new_tensor(end) for end in config.box)
    return (places - low) / (high - low)


def metres(places: Tensor, config: Config) -> Tensor:
    """Undo :func:`normalise`."""
    low, high = (places.new_tensor(end) for end in config.box)
    return low + places * (high - low)


def project(places: Tensor, projections: Tensor) -> tuple[Tensor, Tensor]:
    """Return pixels (B, V, Q, 2) and depths (B, V, Q) of places (B, Q, 3) under projections (B, V, 4, 4).

    Depths below 1 cm are divided as 1 cm, so pixels are finite; they mean nothing there.
    """
    seen = torch.einsum("bvij,bqj->bvqi", projections[..., :3, :3], places) + projections[:, :, None, :3, 3]
    depth = seen[..., 2]
    return seen[..., :2] / depth.clamp(min=1e-2)[..., None], depth


def ray_points(pixels: Tensor, inverse: Tensor, config: Config) -> Tensor:
    """Return the D points on the ray of each pixel, normalised, (B, V, N, 3 D).

    Args:
        pixels: (B or 1, V or 1, N, 2), column and row.
        inverse: (B, V, 4, 4), inverse projections.
        config: sizes.
    """
    d = depths(config, inverse)
    # q_k = T^-1 (u d_k, v d_k, d_k, 1) = d_k R (u, v, 1) + t
    ray = torch.einsum("bvij,bvnj->bvni", inverse[..., :3, :2], pixels.expand(*inverse.shape[:2], -1, -1))
    ray = ray + inverse[:, :, None, :3, 2]  # (B, V, N, 3)
    points = ray[..., None, :] * d[:, None] + inverse[:, :, None, None, :3, 3]  # (B, V, N, D, 3)
    return normalise(points, config).flatten(-2)


def bev_axis(config: Config, like: Tensor) -> Tensor:
    """Return the middles of the LiDAR tokens along a side in 0..1, (H,) = (W,)."""
    return (torch.arange(config.grid, device=like.device, dtype=like.dtype) + 0.5) / config.grid


def pixel_axes(config: Config, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the middles of the image tokens of one view in pixels: columns (w,) and rows (h,)."""
    rows, columns = (
        (torch.arange(size // config.stride, device=like.device, dtype=like.dtype) + 0.5) * config.stride
        for size in config.image_size
    )
    return columns, rows


def places(columns: Tensor, rows: Tensor) -> Tensor:
    """Return all pairs (h w, 2) of columns (w,) and rows (h,), row by row."""
    v, u = torch.meshgrid(rows, columns, indexing="ij")
    return torch.stack([u, v], dim=-1).flatten(0, 1)


def bev_centres(config: Config, like: Tensor) -> Tensor:
    """Return the centres of the LiDAR tokens in 0..1, (H W, 2), row by row (y), x fastest."""
    axis = bev_axis(config, like)
    return places(axis, axis)


def pixel_centres(config: Config, like: Tensor) -> Tensor:
    """Return the centres of the image tokens of one view in pixels, (h w, 2), column and row."""
    return places(*pixel_axes(config, like))


class Embedding(nn.Module):
    """The two encodings psi that tokens and queries share, and the anchors A in U(0, 1)^3 of the queries."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        d = config.width
        self.anchors = nn.Parameter(torch.rand(config.queries, 3))
        self.bev = nn.Sequential(nn.Linear(2 * d, d), nn.ReLU(), nn.Linear(d, d))
        self.image = nn.Sequential(
            nn.Linear(3 * config.depth_bins, config.image_hidden),
            nn.ReLU(),
            nn.Linear(config.image_hidden, d),
        )

    def tokens(self, inverse: Tensor) -> Tensor:
        """Return the positions of all tokens (B, H W + V h w, d): LiDAR first.

        Args:
            inverse: (B, V, 4, 4).
        """
        batch = inverse.shape[0]
        # Gamma_bev = psi_bev(sin-cos(x, y))
        bev = self.bev(sine_cosine(bev_centres(self.config, inverse), self.config.width))
        # Gamma_im = psi_im(concat_k n_k)
        image = self.image(ray_points(pixel_centres(self.config, inverse)[None, None], inverse, self.config))
        return torch.cat([bev.expand(batch, -1, -1), image.flatten(1, 2)], dim=1)

    def queries(self, anchors: Tensor, projections: Tensor, inverse: Tensor) -> Tensor:
        """Return Gamma_q (B, Q, d): psi_bev of the place plus psi_im of its ray in every view that shows it.

        Args:
            anchors: (B, Q, 3) in 0..1.
            projections: (B, V, 4, 4).
            inverse: (B, V, 4, 4).
        """
        pixels, depth = project(metres(anchors, self.config), projections)
        height, width = self.config.image_size
        inside = (pixels >= 0).all(-1) & (pixels[..., 0] < width) & (pixels[..., 1] < height)
        seen = inside & (depth > 1e-2)  # (B, V, Q)
        pixels = torch.where(seen[..., None], pixels, torch.zeros_like(pixels))
        rays = self.image(ray_points(pixels, inverse, self.config))  # (B, V, Q, d)
        bev: Tensor = self.bev(sine_cosine(anchors[..., :2], self.config.width))
        return bev + (rays * seen[..., None]).sum(1)
