"""The order in which prompts are issued: one dataset, several, weighted, resumed at any place."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.learner.data.prompts import Dataset, PromptSource, Row, turns_per_epoch
from shared.experience import Int32Array, Prompt, Sampling, prompt_id


def rows(name: str, count: int) -> list[Row]:
    return [Row(f"{name} {number}", Int32Array([1]), None, {"dataset": name}) for number in range(count)]


def dataset(name: str, count: int, weight: float | None = None) -> Dataset:
    return Dataset(name, rows(name, count), weight=weight)


def source(*datasets: Dataset, seed: int = 0, position: int = 0) -> PromptSource:
    made = PromptSource("run", datasets, seed, n=2, sampling=Sampling(max_tokens=8))
    made.position = position
    return made


def take(prompts: PromptSource, count: int) -> list[Prompt]:
    return [prompts.take(0) for _ in range(count)]


def test_with_a_sampling_seed_each_prompt_has_a_seed_that_comes_again_in_a_repeated_run() -> None:
    datasets = [dataset("a", 5), dataset("b", 5)]
    sampling = Sampling(max_tokens=8, seed=3)
    runs = [take(PromptSource(run, datasets, 0, n=2, sampling=sampling), 20) for run in ("x", "y")]
    seeds = [[prompt.sampling.seed for prompt in prompts] for prompts in runs]
    assert seeds[0] == seeds[1] and len(set(seeds[0])) == 20


MIXTURES = st.lists(st.tuples(st.integers(1, 12), st.floats(0.05, 20)), min_size=1, max_size=4).map(
    lambda parts: [dataset(f"d{number}", *part) for number, part in enumerate(parts)]
)


def test_every_pass_covers_all_rows_once_in_a_new_order() -> None:
    prompts = source(dataset("train", 10))
    first, second = take(prompts, 10), take(prompts, 10)
    assert sorted(p.index for p in first) == sorted(p.index for p in second) == list(range(10))
    assert [p.index for p in first] != [p.index for p in second]
    assert {p.epoch for p in first} == {0} and {p.epoch for p in second} == {1}
    assert len({p.id for p in first + second}) == 20


def test_one_dataset_keeps_the_order_and_the_ids_that_runs_had_before_there_could_be_several() -> None:
    order = list(range(10))
    random.Random("3/1").shuffle(order)
    prompts = take(source(dataset("train", 10), seed=3, position=10), 10)
    assert [p.index for p in prompts] == order
    assert prompts[0].id == prompt_id("run", "train", 1, order[0])


def test_the_order_depends_on_the_seed() -> None:
    assert take(source(dataset("t", 10), seed=3), 10) != take(source(dataset("t", 10), seed=4), 10)


def test_a_prompt_tells_the_dataset_it_is_from() -> None:
    prompts = take(source(dataset("a", 3), dataset("b", 2)), 5)
    assert Counter(p.metadata["dataset"] for p in prompts) == {"a": 3, "b": 2}
    assert all(p.text == f"{p.metadata['dataset']} {p.index}" for p in prompts)


def test_without_weights_an_epoch_is_one_pass_over_all_rows_of_all_datasets() -> None:
    prompts = source(dataset("a", 7), dataset("b", 2), dataset("c", 1))
    for epoch in range(3):
        taken = take(prompts, 10)
        assert len({p.id for p in taken}) == 10 and {p.epoch for p in taken} == {epoch}


def test_adding_a_dataset_leaves_the_order_within_the_first_one() -> None:
    alone = [p.id for p in take(source(dataset("a", 8)), 16)]
    beside = [p.id for p in take(source(dataset("a", 8), dataset("b", 8)), 32) if p.text.startswith("a")]
    assert beside == alone


def test_datasets_of_one_size_are_not_walked_in_step() -> None:
    prompts = take(source(dataset("a", 20), dataset("b", 20)), 40)
    orders = [[p.index for p in prompts if p.text.startswith(name)] for name in "ab"]
    assert orders[0] != orders[1]


@given(mixture=MIXTURES, seed=st.integers(0, 99), position=st.integers(0, 200))
def test_a_run_resumed_at_any_position_goes_on_as_if_it_had_not_stopped(
    mixture: list[Dataset], seed: int, position: int
) -> None:
    whole = take(source(*mixture, seed=seed), position + 15)
    assert take(source(*mixture, seed=seed, position=position), 15) == whole[position:]


@given(mixture=MIXTURES, seed=st.integers(0, 99))
def test_no_row_comes_again_before_all_rows_of_its_dataset_have_come(
    mixture: list[Dataset], seed: int
) -> None:
    prompts = take(source(*mixture, seed=seed), 150)
    assert len({p.id for p in prompts}) == len(prompts)
    for part in mixture:
        mine = [p for p in prompts if p.metadata["dataset"] == part.name]
        for start in range(0, len(mine), len(part.rows)):
            a_pass = mine[start : start + len(part.rows)]
            assert {p.epoch for p in a_pass} == {start // len(part.rows)}
            assert len({p.index for p in a_pass}) == len(a_pass)


@given(mixture=MIXTURES)
def test_each_dataset_has_its_share_of_an_epoch_and_at_least_one_turn(mixture: list[Dataset]) -> None:
    turns = turns_per_epoch(mixture)
    whole = sum(part.weight or 0 for part in mixture)
    assert sum(turns) >= sum(len(part.rows) for part in mixture)
    for part, count in zip(mixture, turns, strict=True):
        assert count >= 1
        assert abs(count - (part.weight or 0) / whole * sum(turns)) < 1 + 1e-6


def test_weights_are_kept_over_every_epoch_exactly() -> None:
    prompts = take(source(dataset("a", 5, 3.0), dataset("b", 15, 1.0)), 60)
    for start in (0, 20, 40):
        names = Counter(p.metadata["dataset"] for p in prompts[start : start + 20])
        assert names == {"a": 15, "b": 5}


def test_a_small_weight_beside_few_rows_still_gets_its_turn() -> None:
    prompts = take(source(dataset("often", 1, 99.0), dataset("seldom", 1, 1.0)), 300)
    assert Counter(p.metadata["dataset"] for p in prompts) == {"often": 297, "seldom": 3}


@pytest.mark.parametrize("position", [0, 13, 25])
def test_one_dataset_is_resumed_at_a_position(position: int) -> None:
    ids = [p.id for p in take(source(dataset("t", 10), seed=3), 40)]
    assert [p.id for p in take(source(dataset("t", 10), seed=3, position=position), 10)] == ids[position:][
        :10
    ]
