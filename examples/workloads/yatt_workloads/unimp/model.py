"""The network: graph transformer layers with gated residuals, on features to which visible labels are added."""

from __future__ import annotations

import torch
from torch.nn.functional import dropout, relu
from torch_geometric.nn import TransformerConv

from yatt_workloads.unimp.settings import NodeLabelSettings


class UniMP(torch.nn.Module):
    """UniMP (arXiv 2009.03509). A layer's gate, between its input and what it gathers, is `beta` of torch-geometric's layer."""

    def __init__(self, settings: NodeLabelSettings, features: int, classes: int) -> None:
        super().__init__()
        width = settings.width
        self._dropout = settings.dropout
        self.features = torch.nn.Linear(features, width)
        self.labels = torch.nn.Embedding(classes, width) if settings.labels else None
        self.layers = torch.nn.ModuleList(
            TransformerConv(
                width, width // settings.heads, heads=settings.heads, beta=True, dropout=settings.attention_dropout
            )
            for _ in range(settings.layers)
        )
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(settings.layers))
        self.classes = torch.nn.Linear(width, classes)

    def begin(self, noise: torch.Generator) -> None:
        """Draws labels' vectors from the standard normal distribution, and other weights by Glorot and Bengio.

        Biases begin at 0, and a norm's weights at 1.
        """
        with torch.no_grad():
            for name, tensor in self.named_parameters():
                if name.startswith("labels"):
                    tensor.normal_(generator=noise)
                elif tensor.ndim > 1:
                    torch.nn.init.xavier_uniform_(tensor, generator=noise)
                else:
                    tensor.fill_(1.0 if name.startswith("norms") and name.endswith("weight") else 0.0)

    def forward(
        self, features: torch.Tensor, edges: torch.Tensor, labels: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        """Returns logits, [nodes, classes].

        features: [nodes, features].
        edges: sources and targets, [2, edges].
        labels: [nodes]; read where they are visible only.
        visible: whether the network may see a node's label, [nodes].
        """
        hidden = self.features(features)
        if self.labels is not None:
            hidden = hidden + self.labels(labels.where(visible, 0)) * visible[:, None]
        for layer, norm in zip(self.layers, self.norms, strict=True):
            hidden = dropout(relu(norm(layer(hidden, edges))), self._dropout, self.training)
        found: torch.Tensor = self.classes(hidden)
        return found
