"""One layer of the transformer decoder (CMT, Yan et al., 2023, Section 3.3; post-norm as in DETR)."""

from __future__ import annotations

from torch import Tensor, nn

from fedlib.models.detector.attention import Attention
from fedlib.models.detector.config import Config


class DecoderLayer(nn.Module):
    """Self-attention among queries, cross-attention to tokens, feed-forward."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        d = config.width
        self.self_attention = Attention(d, config.heads, config.dropout)
        self.cross_attention = Attention(d, config.heads, config.dropout)
        self.ffn = nn.Sequential(
            nn.Linear(d, config.ffn), nn.ReLU(), nn.Dropout(config.dropout), nn.Linear(config.ffn, d)
        )
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.drop = nn.Dropout(config.dropout)

    def forward(
        self,
        q: Tensor,
        where: Tensor,
        keys: Tensor,
        tokens: Tensor,
        bias: Tensor | None,
        allowed: Tensor | None,
    ) -> Tensor:
        """Return (B, Q, d).

        Args:
            q: (B, Q, d), content of the queries.
            where: (B, Q, d), Gamma_q.
            keys: (B, N, d), tokens plus positions.
            tokens: (B, N, d).
            bias: (B, heads, Q, N), the prior.
            allowed: bool (B, 1, Q, Q), which queries see which.
        """
        # q <- LN(q + SA(q + Gamma_q, q + Gamma_q, q))
        q = self.norm1(q + self.drop(self.self_attention(q + where, q + where, q, allowed)))
        # q <- LN(q + CA(q + Gamma_q, M + Gamma, M))
        q = self.norm2(q + self.drop(self.cross_attention(q + where, keys, tokens, bias)))
        # q <- LN(q + FFN(q))
        result: Tensor = self.norm3(q + self.drop(self.ffn(q)))
        return result
