import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from services.learner.algorithm.losses import policy_loss, sequence_mean_weights, value_loss
from tests import oracles
from tests.learner.samples import padded, rows_of

OLD = torch.tensor([[-1.0, -0.5, -2.0, -1.5], [-0.7, -1.2, 0.0, 0.0]])
NEW = torch.tensor([[-0.9, -0.6, -1.0, -1.5], [-0.7, -1.5, 0.0, 0.0]])
MASK = torch.tensor([[True, True, True, True], [True, True, False, False]])
MASK_WITH_NEXT_STATE = torch.tensor([[True, True, True, True], [True, True, True, False]])
COATI_ADVANTAGES = torch.tensor([[18.5363, 14.1540, 9.52, 4.60], [-1.481, -0.38, 0.0, 0.0]])
TRL_ADVANTAGES = torch.tensor([[0.821988, 0.76525, 0.695, 0.6], [-0.944875, -0.3525, -0.75, 0.0]])
TRL_WHITENED = torch.tensor([[0.758749, 0.681577, 0.586027, 0.456813], [-1.644441, -0.838725, 0.0, 0.0]])
PER_SEQUENCE = MASK / MASK.sum(dim=1, keepdim=True)


def near(value: Tensor, expected: float, tolerance: float = 1e-6) -> bool:
    return math.isclose(float(value), expected, abs_tol=tolerance)


def test_policy_loss_matches_trl() -> None:
    result = policy_loss(NEW, OLD, TRL_WHITENED, MASK, 0.2, 0.2)
    tokens = MASK.sum()
    assert near(result.loss / tokens, -0.0499814)
    assert near(result.clipped / tokens, 0.333333)
    # TRL averages these two over padding as well, where the ratio is 1 and the distance 0.
    assert near(result.approx_kl / MASK.numel(), 0.0693750)
    assert near((result.ratio + (~MASK).sum()) / MASK.numel(), 1.1836386)


def test_value_loss_and_the_total_match_trl() -> None:
    values = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, -0.1, 0.25, 9.0]])
    new_values = torch.tensor([[0.5, 0.2, 0.0, 0.4], [0.4, 0.2, 0.1, 5.0]])
    value = value_loss(new_values, values, TRL_ADVANTAGES + values, MASK_WITH_NEXT_STATE, 0.2)
    states = MASK_WITH_NEXT_STATE.sum()
    assert near(value.loss / states, 0.2730051)
    assert near(value.clipped / states, 0.1428571)

    policy = policy_loss(NEW, OLD, TRL_WHITENED, MASK, 0.2, 0.2)
    assert near(policy.loss / MASK.sum() + 0.1 * value.loss / states, -0.0226809)


def test_policy_loss_matches_coati() -> None:
    """Coati takes the mean of each sequence and then of the batch."""
    result = policy_loss(NEW, OLD, COATI_ADVANTAGES, MASK, 0.2, 0.2, weights=PER_SEQUENCE)
    assert near(result.loss / 2, -5.718356, 1e-5)
    assert near(result.max_ratio, 2.718282)
    everywhere = torch.ones_like(MASK)
    assert near(policy_loss(NEW, OLD, COATI_ADVANTAGES, everywhere, 0.2, 0.2).loss / 8, -5.941481, 1e-5)


def test_exploded_ratios_show_in_the_metrics_as_they_do_in_coati() -> None:
    """Coati skips the step when the mean ratio, padding included, is above 20, and clamps ratios to 10."""
    exploded = OLD + 4 * MASK
    mean_ratio = (policy_loss(exploded, OLD, COATI_ADVANTAGES, MASK, 0.2, 0.2).ratio + 2) / 8
    assert near(mean_ratio, 41.199, 1e-3) and mean_ratio > 20

    loss = (
        policy_loss(
            exploded, OLD, COATI_ADVANTAGES, MASK, 0.2, 0.2, weights=PER_SEQUENCE, ratio_clamp=10.0
        ).loss
        / 2
    )
    assert near(loss, -2.369046, 1e-5)


def test_value_loss_matches_coati() -> None:
    values = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, -0.1, 0.0, 0.0]])
    new_values = torch.tensor([[0.5, 0.2, 0.0, 0.4], [0.4, 0.2, 0.0, 0.0]])
    loss = value_loss(new_values, values, COATI_ADVANTAGES + values, MASK, 0.2).loss
    assert near(loss / MASK.sum(), 54.709808, 1e-3)


@given(
    data=st.data(), clip_low=st.floats(0.01, 0.9), clip_high=st.floats(0.01, 0.9), padding=st.integers(0, 3)
)
def test_losses_match_the_oracle(
    data: st.DataObject, clip_low: float, clip_high: float, padding: int
) -> None:
    lengths = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=5))
    new, old = (data.draw(rows_of(lengths, -4, 0)) for _ in range(2))
    advantages, values, old_values, returns = (data.draw(rows_of(lengths, -3, 3)) for _ in range(4))

    def tensors(*rows: list[list[float]]) -> list[Tensor]:
        return [padded(each, padding)[0] for each in rows]

    mask = padded(new, padding)[1]
    logprobs, old_logprobs, adv = tensors(new, old, advantages)
    got = policy_loss(logprobs, old_logprobs, adv, mask, clip_low, clip_high)
    want = oracles.policy_loss(new, old, advantages, clip_low, clip_high)
    assert [float(x) for x in got[:4]] == pytest.approx(want, rel=1e-9, abs=1e-9)

    now, before, target = tensors(values, old_values, returns)
    value = value_loss(now, before, target, mask, clip_low)
    assert [float(x) for x in value] == pytest.approx(
        oracles.value_loss(values, old_values, returns, clip_low), rel=1e-9, abs=1e-9
    )


@given(seed=st.integers(0, 2**31), split=st.integers(1, 5), padding=st.integers(0, 4))
def test_padding_order_and_split_change_neither_loss_nor_gradient(
    seed: int, split: int, padding: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 8, (6,), generator=generator)
    mask = torch.arange(7) < lengths[:, None]
    new, old, advantages, values = torch.randn(4, 6, 7, generator=generator, dtype=torch.float64)

    def losses_and_gradients(groups: list[Tensor], extra: int) -> tuple[Tensor, Tensor]:
        logprobs, estimates = new.clone().requires_grad_(), values.clone().requires_grad_()
        total = torch.zeros(())
        for rows in groups:

            def cut(x: Tensor, rows: Tensor = rows) -> Tensor:
                return torch.nn.functional.pad(x[rows], (0, extra), value=float(x.dtype.is_floating_point))

            policy = policy_loss(cut(logprobs), cut(old), cut(advantages), cut(mask), 0.2, 0.3)
            value = value_loss(cut(estimates), cut(old), cut(advantages), cut(mask), 0.2)
            total = total + (policy.loss + value.loss) / max(int(mask.sum()), 1)
        gradients = torch.autograd.grad(total, [logprobs, estimates])
        return total.detach(), torch.stack(gradients)

    whole = losses_and_gradients([torch.arange(6)], 0)
    shuffled = torch.randperm(6, generator=generator)
    pieces = losses_and_gradients(list(shuffled.tensor_split(split)), padding)
    torch.testing.assert_close(pieces, whole)


def test_nothing_outside_the_mask_gets_a_gradient_even_where_it_is_not_a_number() -> None:
    logprobs = torch.tensor([[-1.0, float("nan")]], requires_grad=True)
    mask = torch.tensor([[True, False]])
    policy_loss(logprobs, torch.zeros(1, 2), torch.ones(1, 2), mask, 0.2, 0.2).loss.backward()
    assert logprobs.grad is not None and logprobs.grad[0, 1] == 0 and logprobs.grad[0, 0] != 0


def test_a_weight_scales_its_token_and_no_other() -> None:
    weights = torch.tensor([[0.5, 1.0]])
    logprobs = torch.zeros(1, 2, requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    policy_loss(logprobs, torch.zeros(1, 2), torch.ones(1, 2), mask, 0.2, 0.2, weights).loss.backward()
    assert logprobs.grad is not None and logprobs.grad.tolist() == [[-0.5, -1.0]]


def test_an_empty_mask_gives_zeros() -> None:
    empty = torch.zeros(1, 3, dtype=torch.bool)
    assert [float(x) for x in policy_loss(NEW[:1, :3], OLD[:1, :3], OLD[:1, :3], empty, 0.2, 0.2)] == [0] * 5
    assert [float(x) for x in value_loss(NEW[:1, :3], OLD[:1, :3], OLD[:1, :3], empty, 0.2)] == [0, 0]


def test_without_a_clip_the_value_loss_is_half_the_squared_error() -> None:
    values, returns = torch.tensor([[3.0, 1.0]]), torch.tensor([[1.0, 1.5]])
    result = value_loss(values, torch.zeros(1, 2), returns, torch.ones(1, 2, dtype=torch.bool), None)
    assert float(result.loss) == (4 + 0.25) / 2 and float(result.clipped) == 0


ONES = torch.ones(1, 3, dtype=torch.bool)


def gradient(logprobs: Tensor, advantages: Tensor, **options: float | bool) -> tuple[float, list[float]]:
    logprobs = logprobs.clone().requires_grad_()
    old = torch.zeros_like(logprobs)
    result = policy_loss(logprobs, old, advantages, ONES, 0.2, 0.2, **options)  # type: ignore[arg-type]
    result.loss.backward()
    assert logprobs.grad is not None
    return float(result.loss.detach()), logprobs.grad[0].tolist()


def test_dual_clip_bounds_the_loss_of_an_unwanted_token_that_became_likely() -> None:
    logprobs, advantages = torch.tensor([[2.0, 2.0, 0.5]]), torch.tensor([[-1.0, 1.0, -1.0]])
    unbounded, free = gradient(logprobs, advantages)
    bounded, kept = gradient(logprobs, advantages, dual_clip=3.0)
    assert unbounded - bounded == pytest.approx(math.exp(2.0) - 3.0)
    assert free[0] != 0 and kept[0] == 0, "no gradient beyond the bound"
    assert kept[1:] == free[1:], "wanted tokens and those within the bound are as before"


def test_a_clamped_ratio_gives_no_gradient() -> None:
    logprobs, advantages = torch.tensor([[3.0, 0.1, 0.1]]), torch.tensor([[-1.0, 1.0, 1.0]])
    _, free = gradient(logprobs, advantages)
    loss, kept = gradient(logprobs, advantages, ratio_clamp=10.0)
    assert free[0] != 0 and kept == [0.0, *free[1:]]
    assert loss == pytest.approx(10 - 2 * math.exp(0.1), abs=1e-5)


def test_a_sequence_ratio_is_the_geometric_mean_on_every_token() -> None:
    logprobs, advantages = torch.tensor([[0.3, -0.1, 0.1]]), torch.ones(1, 3)
    loss, slopes = gradient(logprobs, advantages, sequence_ratio=True)
    assert loss == pytest.approx(-3 * math.exp(0.1), abs=1e-6)
    assert slopes == pytest.approx([-math.exp(0.1)] * 3, abs=1e-6)
    _, clipped = gradient(logprobs + 0.3, advantages, sequence_ratio=True)
    assert clipped == [0, 0, 0], "the whole sequence is clipped together"


def test_sequence_mean_weights_give_the_mean_of_means() -> None:
    losses = torch.tensor([[1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    mask = torch.arange(4) < torch.tensor([4, 2, 0])[:, None]
    weights = sequence_mean_weights(mask, tokens=6, sequences=2)
    assert float((losses * mask * weights).sum() / 6) == pytest.approx((2.5 + 15) / 2)
