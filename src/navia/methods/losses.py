"""The losses of test-time adaptation, as pure functions."""

import torch
import torch.nn.functional as F
from torch import Tensor


def entropy(logits: Tensor) -> Tensor:
    """H(y) = -sum_c softmax(y)_c log softmax(y)_c of each row [B, C] -> [B], in nats."""
    log_p = F.log_softmax(logits, dim=1)
    return -(log_p.exp() * log_p).sum(dim=1)


def discrepancy(mean: Tensor, std: Tensor, source_mean: Tensor, source_std: Tensor) -> Tensor:
    """Mean squared distance of the CLS statistics over all layers and dimensions [L, D]: std's plus mean's (Eq. 7)."""
    return F.mse_loss(std, source_std) + F.mse_loss(mean, source_mean)


def symmetric_cross_entropy(student: Tensor, teacher: Tensor) -> Tensor:
    """-1/2 p_t log p_s - 1/2 p_s log p_t of each row [B, C] -> [B] (CoTTA)."""
    log_s, log_t = F.log_softmax(student, dim=1), F.log_softmax(teacher, dim=1)
    return -0.5 * (log_t.exp() * log_s).sum(dim=1) - 0.5 * (log_s.exp() * log_t).sum(dim=1)


def effective_classes(distribution: Tensor) -> Tensor:
    """exp of the entropy of a class distribution [C]: 1 when all predictions agree, C when all classes are as frequent."""
    p = distribution / distribution.sum()
    return torch.special.entr(p).sum().exp()
