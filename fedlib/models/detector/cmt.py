"""A compact cross-modal transformer for 3D detection (CMT, Yan et al., ICCV 2023) in pure torch.

Tokens of the LiDAR grid and of the pictures, both with coordinate encodings; queries at learned 3D anchors;
a transformer decoder over all tokens; heads at every layer. Parts are told apart by their names: ``img.``,
``lidar.``, ``embed.``, ``decoder.{i}.``, ``heads.{i}.{branch}.`` and, with the option, ``heat.``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedlib import seeds
from fedlib.models.detector import denoising, losses
from fedlib.models.detector.attention import prior
from fedlib.models.detector.backbones import LidarBackbone, image_backbone
from fedlib.models.detector.config import NUM_CLASSES, Config
from fedlib.models.detector.decoder import DecoderLayer
from fedlib.models.detector.denoising import Denoising
from fedlib.models.detector.encodings import Embedding
from fedlib.models.detector.heads import Head
from fedlib.models.detector.inputs import Inputs


@dataclass(frozen=True, eq=False)
class Outputs:
    """What the detector says about a batch.

    Attributes:
        logits: (L, B, Q, 10), one row per decoder layer.
        codes: (L, B, Q, 10), metres.
        dn_logits: (L, B, N, 10) of the denoising queries; N = 0 without.
        dn_codes: (L, B, N, 10).
        noisy: the denoising queries.
        heat: (B, 10, H, W), with the option and in training.
    """

    logits: Tensor
    codes: Tensor
    dn_logits: Tensor
    dn_codes: Tensor
    noisy: Denoising | None
    heat: Tensor | None


class CMT(nn.Module):
    """The detector; see :class:`Config` for its sizes."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.lidar = LidarBackbone(config)
        self.img = image_backbone(config)
        self.embed = Embedding(config)
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.heads = nn.ModuleList(Head(config) for _ in range(config.layers))
        d = config.width
        if config.heat_map:
            self.heat = nn.Sequential(
                nn.Conv2d(d, d, 3, padding=1, bias=False),
                nn.BatchNorm2d(d),
                nn.ReLU(),
                nn.Conv2d(d, NUM_CLASSES, 1),
            )
            nn.init.constant_(self.heat.get_parameter("3.bias"), -2.19)

    def forward(self, inputs: Inputs, generator: torch.Generator | None = None) -> Outputs:
        """Return the predictions of all layers.

        Args:
            inputs: a batch.
            generator: source of modality masks and denoising queries; None: neither.
        """
        config, training = self.config, self.training and generator is not None
        grid, images = inputs.grid, inputs.images
        if training and config.modality_mask:
            drawn = float(torch.rand((), generator=generator))  # one number decides: never both
            if drawn > 1 - config.modality_mask:
                images = torch.zeros_like(images)
            elif drawn > 1 - 2 * config.modality_mask:
                grid = torch.zeros_like(grid)
        projections = inputs.projections
        inverse = torch.linalg.inv(projections)
        batch, views = images.shape[:2]

        # M = [F_bev tokens; F_img tokens of all views], Gamma = [Gamma_bev; Gamma_im]
        with torch.autocast(grid.device.type, dtype=torch.bfloat16, enabled=config.bf16):
            bev = self.lidar(grid).float()  # (B, d, H, W)
            seen = self.img(images.flatten(0, 1)).float().unflatten(0, (batch, views))  # (B, V, d, h, w)
        tokens = torch.cat([bev.flatten(2).mT, seen.flatten(3).mT.flatten(1, 2)], dim=1)  # (B, N, d)
        keys = tokens + self.embed.tokens(inverse)

        anchors = self.embed.anchors.clamp(0, 1).expand(batch, -1, -1)  # (B, Q, 3)
        noisy = None
        if training and generator is not None and config.denoising:
            noisy = denoising.make(inputs.targets, config, generator)
        if noisy is not None:
            anchors = torch.cat([anchors, noisy.anchors], dim=1)
        allowed = None if noisy is None else noisy.allowed

        q = torch.zeros(batch, anchors.shape[1], config.width, device=grid.device, dtype=tokens.dtype)
        where, bias = self.embed.queries(anchors, projections, inverse), prior(anchors, projections, config)
        logits, codes, references = [], [], anchors
        for number, (layer, head) in enumerate(zip(self.decoder, self.heads)):
            if number and config.refine:
                anchors = references.detach()
                where = self.embed.queries(anchors, projections, inverse)
                bias = prior(anchors, projections, config)
            q = layer(q, where, keys, tokens, bias, allowed)
            said, code, references = head(q, anchors)
            logits.append(said)
            codes.append(code)
        all_logits, all_codes = torch.stack(logits), torch.stack(codes)  # (L, B, Q + N, 10)
        first = config.queries
        heat = self.heat(bev) if config.heat_map and self.training else None
        return Outputs(
            all_logits[:, :, :first],
            all_codes[:, :, :first],
            all_logits[:, :, first:],
            all_codes[:, :, first:],
            noisy,
            heat,
        )

    def losses(self, inputs: Inputs, outputs: Outputs) -> dict[str, Tensor]:
        """Return the parts () of the training loss, which is their sum."""
        parts = losses.matched(outputs.logits, outputs.codes, inputs.targets)
        if outputs.noisy is not None:
            parts |= losses.denoised(outputs.dn_logits, outputs.dn_codes, outputs.noisy)
        if outputs.heat is not None:
            parts["heat"] = losses.heat_map(outputs.heat, inputs.targets, self.config)
        return parts


def build(config: Config, seed: int) -> CMT:
    """Return a new detector whose initial values depend on ``seed`` alone."""
    with seeds.torch_global(seed, "detector"):
        return CMT(config)
