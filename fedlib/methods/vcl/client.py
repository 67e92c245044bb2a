"""Local training of a client: encoder and variational proxies (the paper), or encoder and linear classifier (the
code).

Every random draw depends on (seed, client) and on nothing else, so that clients can be trained in any order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlib import seeds
from fedlib.errors import InputError
from fedlib.features.gaussian import SMALLEST_NORM, ClassGaussian, pack_tril, unpack_tril
from fedlib.federation.model_state import State, model_state
from fedlib.methods.federated.fedavg import batch_norm_layers
from fedlib.methods.vcl.inputs import (
    Labelled,
    balanced_rows,
    class_counts,
    device_of,
    output_dim,
    trained_part,
)
from fedlib.methods.vcl.presets import Options
from fedlib.methods.vcl.proxies import VariationalProxies, kl_factor, variational_loss
from fedlib.methods.vcl.shared_space import anchor_loss, public_loss


@dataclass(frozen=True)
class TrainedClient:
    """A client after its training; what of it is sent is decided in :mod:`fedlib.methods.vcl.messages`.

    Attributes:
        client: client id.
        counts: samples of each class, int64 (C,).
        encoder: its encoder.
        proxies: q_c of the classes that it holds, by class; empty after training with cross-entropy.
        losses: mean training loss of each epoch.
    """

    client: int
    counts: Tensor
    encoder: State
    proxies: dict[int, ClassGaussian]
    losses: tuple[float, ...]

    def to_tensors(self) -> State:
        """Return everything as tensors by name, for storage."""
        tensors = {"client": torch.tensor(self.client), "counts": self.counts}
        tensors["losses"] = torch.tensor(self.losses, dtype=torch.float64)
        tensors |= {f"encoder/{name}": tensor for name, tensor in self.encoder.items()}
        for label, q in self.proxies.items():
            tensors |= {f"proxy/{label}/mean": q.mean, f"proxy/{label}/tril": pack_tril(q.tril)}
        return tensors

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> TrainedClient:
        """Undo :meth:`to_tensors`."""
        encoder = {n.removeprefix("encoder/"): t for n, t in tensors.items() if n.startswith("encoder/")}
        labels = sorted(
            int(n.split("/")[1]) for n in tensors if n.startswith("proxy/") and n.endswith("mean")
        )
        proxies = {
            label: ClassGaussian(
                tensors[f"proxy/{label}/mean"],
                unpack_tril(tensors[f"proxy/{label}/tril"]),
                int(tensors["counts"][label]),
            )
            for label in labels
        }
        losses = tuple(tensors["losses"].tolist())
        return cls(int(tensors["client"]), tensors["counts"], encoder, proxies, losses)


@dataclass(frozen=True)
class Public:
    """Unlabelled images that all clients have, and their features under the server's initial encoder.

    Attributes:
        data: the images; labels are not used.
        reference: (P, d), of length 1.
    """

    data: Labelled
    reference: Tensor


def train_client_vi(
    data: Labelled,
    encoder: nn.Module,
    options: Options,
    *,
    client: int,
    seed: int,
    num_classes: int,
    anchors: Tensor | None = None,
    public: Public | None = None,
) -> TrainedClient:
    """Train encoder and proxies with variational Proxy-NCA (section 3.2) and return the client.

    The sum in (3.1) is over the classes that the client holds. With one class the likelihood is 1 and only the KL
    and the anchors act.

    Args:
        data: images, or features if no part of the encoder is trained.
        encoder: the initial encoder, images -> (B, d); it is trained in place.
        options: of the step ``clients``.
        client: client id.
        seed: of the run.
        num_classes: C.
        anchors: (C, d), for the shared spaces ``anchor`` and ``proxyset``.
        public: for ``pubdata``.

    Raises:
        InputError: no data, labels out of range, or options that do not fit the data.
        FloatingPointError: loss or model not finite, naming client and epoch.
    """
    counts = class_counts(data, num_classes, client)
    held = torch.nonzero(counts).flatten()
    place = torch.full((num_classes,), -1).index_copy_(0, held, torch.arange(len(held)))
    if options.exclude_positive and len(held) < 2:
        raise InputError(
            f"exclude_positive is True, but client {client} holds {len(held)} class; allowed: 2 or more"
        )
    net, inputs = trained_part(data, encoder, options)
    dim = output_dim(net, inputs)
    init_scale = 0.1 / math.sqrt(dim) if options.init_scale is None else options.init_scale
    prior_scale = 1 / math.sqrt(dim) if options.prior_scale is None else options.prior_scale
    targets = None if anchors is None else anchors[held]
    proxies = VariationalProxies.initial(
        len(held),
        dim,
        init_scale,
        seeds.torch_generator(seed, "vcl/proxies", client),
        mean=targets,
        train_mean=options.shared_space != "proxyset",
    ).to(device_of(data))
    if targets is not None:
        targets = targets.to(device_of(data))
    draws = seeds.torch_generator(seed, "vcl/monte-carlo", client)
    factor = options.kl_weight * kl_factor(options.kl_scale, len(data), options.batch_size)

    def loss(z: Tensor, labels: Tensor) -> Tensor:
        value = variational_loss(
            functional.normalize(z, dim=1, eps=SMALLEST_NORM),
            place.to(labels.device)[labels],
            proxies,
            draws,
            samples=options.mc_samples,
            tau=options.tau,
            kl_weight=factor,
            prior_scale=prior_scale,
            exclude_positive=options.exclude_positive,
        )
        if options.shared_space == "anchor" and targets is not None:
            # + gamma sum_c (1 - cos(m_c, a_c))
            value = value + options.anchor_weight * anchor_loss(proxies.mean, targets)
        return value

    losses = _optimise(net, inputs, proxies, loss, options, client, seed, public, decay=0.0)
    means, trils = proxies.mean.detach().cpu(), proxies.scale_tril().detach().cpu()
    own = {
        int(label): ClassGaussian(means[i].clone(), trils[i].clone(), int(counts[label]))
        for i, label in enumerate(held)
    }
    return TrainedClient(client, counts, model_state(encoder), own, losses)


def train_client_ce(
    data: Labelled,
    encoder: nn.Module,
    options: Options,
    *,
    client: int,
    seed: int,
    num_classes: int,
    public: Public | None = None,
) -> TrainedClient:
    """Train the encoder with cross-entropy on a linear classifier over all C classes, as the public code does.

    The classifier sees the LayerNorm's output, not vectors of length 1; it is thrown away. Arguments and errors as
    in :func:`train_client_vi`. If no part of the encoder is trained, nothing is done.
    """
    counts = class_counts(data, num_classes, client)
    losses: tuple[float, ...] = ()
    if options.trained_part != "none":
        net, inputs = trained_part(data, encoder, options)
        with seeds.torch_global(seed, "vcl/classifier", client):
            classifier = nn.Linear(output_dim(net, inputs), num_classes).to(device_of(data))

        def loss(z: Tensor, labels: Tensor) -> Tensor:
            return functional.cross_entropy(classifier(z), labels)

        losses = _optimise(
            net, inputs, classifier, loss, options, client, seed, public, decay=options.weight_decay
        )
    return TrainedClient(client, counts, model_state(encoder), {}, losses)


def _optimise(
    net: nn.Module,
    data: Labelled,
    head: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    options: Options,
    client: int,
    seed: int,
    public: Public | None,
    *,
    decay: float,
) -> tuple[float, ...]:
    """Run AdamW on ``net`` and ``head`` and return the mean loss of each epoch."""
    if public is not None and options.trained_part != "all":
        raise InputError(
            f"trained is {options.trained_part!r} with shared_space 'pubdata'; allowed: all, auto"
        )
    norms = batch_norm_layers(net)
    if options.batch_norm != "free":
        for layer in norms:
            layer.requires_grad_(False)
    body = [p for p in net.parameters() if p.requires_grad]
    top = [p for p in head.parameters() if p.requires_grad]
    factor = options.proxy_lr_factor if isinstance(head, VariationalProxies) else 1.0
    groups = [
        {"params": body, "weight_decay": options.weight_decay},
        {"params": top, "weight_decay": decay, "lr": options.lr * factor},
    ]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=options.lr, fused=True)
    public_rows = seeds.torch_generator(seed, "vcl/public", client)
    losses = []
    net.train()
    with seeds.torch_global(seed, "vcl/dropout", client):
        for epoch in range(options.epochs):
            order = seeds.torch_generator(seed, "vcl/batches", client, epoch)
            if options.sampler == "balanced":
                rows = balanced_rows(data.labels, order)
            else:
                rows = torch.randperm(len(data), generator=order)
            total = 0.0
            for batch in rows.split(options.batch_size):
                # (B frozen) running statistics stay too; one sample has no batch statistics
                for layer in norms:
                    layer.train(options.batch_norm != "frozen" and len(batch) > 1)
                x, y = data.batch(batch)
                optimizer.zero_grad(set_to_none=True)
                value = loss(net(x), y)
                if public is not None:
                    chosen = torch.randint(len(public.data), (options.batch_size,), generator=public_rows)
                    images = public.data.batch(chosen)[0]
                    reference = public.reference[chosen].to(images.device)
                    value = value + options.anchor_weight * public_loss(net(images), reference)
                value.backward()
                if options.clip is not None:
                    nn.utils.clip_grad_norm_(body + top, options.clip)
                optimizer.step()
                total += float(value.detach()) * len(batch)
            losses.append(total / len(data))
            if not math.isfinite(total):
                raise FloatingPointError(
                    f"client {client}, epoch {epoch + 1}: the loss is {total}; "
                    f"a smaller lr than {options.lr} may help"
                )
    if not all(torch.isfinite(p).all() for p in body + top):
        raise FloatingPointError(
            f"client {client}: the model is not finite; a smaller lr than {options.lr} may help"
        )
    return tuple(losses)
